"""Mutants of gated MLPs: swapped, misread, wrongly activated, without a bias or a gradient."""

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.gated_mlp import PlainGatedMLP, gated_mlp_mistake
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.gated_mlp.regimes import AXES, call_of
from attnspec.spec.gated_mlp import GatedMLPImplementation, GateForm, GatePacking

DEFINITION = "gated-mlp-equals-the-definition"
ORDER = "gate-and-up-lie-in-the-declared-order"
FUNCTION = "the-gate-function-is-the-declared-one"
CLAMPS = "the-clamped-form-clamps-gate-above-and-up-on-both-sides"
BIASES = "biases-of-gate-up-and-down-are-added"


@gated_mlp_mistake("own-gate-up-swapped", "gate and up are swapped", killed_by=ORDER)
class Swapped(PlainGatedMLP):
    def combine(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return super().combine(up, gate)


@gated_mlp_mistake(
    "own-gate-up-halves",
    "interleaved rows of gate and up are read as two halves",
    killed_by=ORDER,
    form=GateForm.CLAMPED,
    packing=GatePacking.INTERLEAVED,
)
class Halves(PlainGatedMLP):
    def split(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = both.chunk(2, dim=-1)
        return gate, up


@gated_mlp_mistake(
    "own-packed-up-first",
    "the first half of a packed matrix is read as up",
    killed_by=ORDER,
    packing=GatePacking.GATE_FIRST,
)
class UpFirst(PlainGatedMLP):
    def split(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        up, gate = both.chunk(2, dim=-1)
        return gate, up


@gated_mlp_mistake(
    "own-geglu-erf",
    "GeGLU with the erf form of GELU where the tanh form is declared",
    killed_by=FUNCTION,
    form=GateForm.GEGLU_TANH,
)
class ErfGate(PlainGatedMLP):
    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        return functional.gelu(gate)


@gated_mlp_mistake("own-gate-not-activated", "the gate has no activation", killed_by=DEFINITION)
class NoActivation(PlainGatedMLP):
    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        return gate


@gated_mlp_mistake(
    "own-gated-product-activated",
    "the activation is applied to the product of gate and up",
    killed_by="gated-mlp-is-affine-in-up",
)
class ProductActivated(PlainGatedMLP):
    def combine(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.activate(gate * up)


@gated_mlp_mistake(
    "own-clamped-gate-below",
    "the clamped form clamps the gate below as well",
    killed_by=CLAMPS,
    form=GateForm.CLAMPED,
    packing=GatePacking.INTERLEAVED,
)
class GateClampedBelow(PlainGatedMLP):
    def clamped(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return super().clamped(gate.clamp(min=-7.0), up)


@gated_mlp_mistake(
    "own-clamped-up-above",
    "the clamped form clamps up above only",
    killed_by=CLAMPS,
    form=GateForm.CLAMPED,
    packing=GatePacking.INTERLEAVED,
)
class UpClampedAbove(PlainGatedMLP):
    def clamped(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.clamp(max=7.0), up.clamp(max=7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@gated_mlp_mistake(
    "own-clamped-without-one",
    "the clamped form forgets to add 1 to up",
    killed_by=DEFINITION,
    form=GateForm.CLAMPED,
    packing=GatePacking.INTERLEAVED,
)
class WithoutOne(PlainGatedMLP):
    def clamped(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return super().clamped(gate, up.clamp(-7.0, 7.0) - 1)


@gated_mlp_mistake("own-gated-mlp-down-bias", "the bias of down is forgotten", killed_by=BIASES)
class NoDownBias(PlainGatedMLP):
    def __call__(self, *tensors: torch.Tensor, **biases: torch.Tensor) -> torch.Tensor:
        biases.pop("down_bias", None)
        return super().__call__(*tensors, **biases)


@gated_mlp_mistake("own-gated-mlp-up-bias", "the bias of up is forgotten", killed_by=BIASES)
class NoUpBias(PlainGatedMLP):
    def __call__(self, *tensors: torch.Tensor, **biases: torch.Tensor) -> torch.Tensor:
        biases.pop("up_bias", None)
        return super().__call__(*tensors, **biases)


@gated_mlp_mistake(
    "own-gated-mlp-rows",
    "the gate of each row is divided by the largest gate of all rows",
    killed_by="gated-mlp-treats-rows-independently",
)
class ScaledByAll(PlainGatedMLP):
    def combine(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        largest = gate.abs().amax().clamp(min=1.0)
        return super().combine(gate / largest, up)


class _SiLUWithoutSlope(torch.autograd.Function):
    """SiLU whose backward pass forgets the derivative of the logistic function."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, gate: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate)
        return functional.silu(gate)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (gate,) = ctx.saved_tensors
        return grad * torch.sigmoid(gate)


@gated_mlp_mistake(
    "own-silu-backward",
    "the backward pass of SiLU forgets the derivative of the logistic function",
    killed_by="gradients-of-gated-mlp-equal-the-definition",
)
class SiLUWithoutSlope(PlainGatedMLP):
    def activate(self, gate: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _SiLUWithoutSlope.apply(gate)  # type: ignore[no-untyped-call]
        return result


plant(
    id="own-gated-mlp-wrong-at-257",
    title="wrong at 255 to 257 inner channels",
    subject=GatedMLPImplementation(
        name="wrong_at_257",
        function=wrong_at(PlainGatedMLP(), call_of, AXES, ("d_inner", "255 to 257")),
        features=frozenset({"bias"}),
    ),
    killed_by="gated-mlp-is-right-in-every-two-regimes",
)
