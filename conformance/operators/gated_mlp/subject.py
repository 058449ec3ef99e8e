"""Calls of a gated MLP, and the expected results: the definition in float64, with its bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.models.bounds.enclosure import Enclosure
from attnspec.conformance.operators.gated_mlp.bounds import backward, forward
from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.gated_mlp import gated_mlp, pack, unpack
from attnspec.reference.scalar_experts import scalar_gated_mlp
from attnspec.spec.gated_mlp import (
    GatedMLPImplementation,
    GatedMLPProfile,
    GateForm,
    GatePacking,
)

Tensors = Mapping[str, torch.Tensor]
"""`x`, `gate`, `up`, `down`, and the biases if there are any."""

AXES = ("batch", "sequence", "token", "channel")
"""Names of the axes in a message; rows of lower rank use the last ones."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """An exact result in float64, and the distance that is allowed.

    Attributes:
        value: the result.
        bound: the largest distance of each element.
    """

    value: torch.Tensor
    bound: torch.Tensor


@dataclass(kw_only=True)
class GatedMLPSubject(OperatorSubject):
    """A gated MLP under test."""

    implementation: GatedMLPImplementation

    @property
    def profile(self) -> GatedMLPProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return self.implementation.function is gated_mlp

    def call(self, tensors: Tensors) -> torch.Tensor:
        """Return the output, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the output has a wrong form.
        """
        given = packed(tensors, self.profile.packing)
        result = self.run(_call(given), lambda: self._made(given))
        return checked(result, tuple(tensors["x"].shape), tensors["x"].dtype)

    def _made(self, given: Tensors) -> Any:
        positional = [each for name, each in given.items() if not name.endswith("bias")]
        biases = {name: each for name, each in given.items() if name.endswith("bias")}
        return self.implementation.function(*positional, **biases)

    def gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the gradients of every tensor, those of a packed matrix apart.

        The operands have the strides that they are given with.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        given = packed(tensors, self.profile.packing)
        leaves = {name: each.detach().requires_grad_() for name, each in given.items()}
        shape, dtype = tuple(tensors["x"].shape), tensors["x"].dtype
        _, grads = self.differentiate(
            _call(leaves, grad_out=grad_out, wrt=tuple(leaves)),
            lambda: self._made(leaves),
            lambda got: checked(got, shape, dtype),
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), dtype, f"gradient of {name}")
        return unpacked(grads, self.profile.packing)

    def expect(self, tensors: Tensors, form: GateForm | None = None) -> Allowed:
        """Return the exact output in the declared form or another, and the distance allowed."""
        form = form or self.profile.form
        x = tensors["x"].detach().flatten(0, -2)
        weights = {name: each for name, each in tensors.items() if name != "x"}
        exact = {name: each.detach().double() for name, each in tensors.items()}
        if self.is_reference:
            arrays = {name: each.numpy() for name, each in exact.items() if name != "x"}
            loops = scalar_gated_mlp(x.double().numpy(), **arrays, form=form)
            value = torch.from_numpy(loops).reshape(exact["x"].shape)
        else:
            value = gated_mlp(**exact, form=form)
        own = forward(x, weights, form, Precision.of(x.dtype)).out.radius
        # the oracle rounds too
        oracle = forward(x, weights, form, Precision.of(torch.float64)).out.radius
        return Allowed(value=value, bound=(own + oracle).reshape(value.shape))

    def expect_gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, Allowed]:
        """Return the exact gradient of every tensor, and the distances allowed."""
        form, x = self.profile.form, tensors["x"].detach().flatten(0, -2)
        weights = {name: each.detach() for name, each in tensors.items() if name != "x"}
        v = Enclosure.exact(grad_out.flatten(0, -2))
        enclosed = []
        for dtype in (x.dtype, torch.float64):
            precision = Precision.of(dtype)
            enclosed.append(backward(forward(x, weights, form, precision), weights, v, precision))
        values = {
            name: each.value.reshape(tensors[name].shape) for name, each in enclosed[0].items()
        }
        if not self.is_reference:  # of the reference, the closed forms of the bound are the oracle
            leaves = {
                name: each.detach().double().clone().requires_grad_()
                for name, each in tensors.items()
            }
            with torch.enable_grad():
                out = gated_mlp(**leaves, form=form)
            found = torch.autograd.grad(out, list(leaves.values()), grad_out.double())
            values = dict(zip(leaves, found, strict=True))
        return {
            name: Allowed(
                value=value,
                bound=(enclosed[0][name].radius + enclosed[1][name].radius).reshape(value.shape),
            )
            for name, value in values.items()
        }

    def judge_case(self, case: Any, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(), message)

    def judge(self, tensors: Tensors, message: str) -> torch.Tensor:
        """Check the output of a call against the definition, and return it."""
        expected, got = self.expect(tensors), self.call(tensors)
        check_close(got, expected.value, expected.bound, what="out", message=message, axes=AXES)
        return got


def is_within(got: torch.Tensor, allowed: Allowed) -> bool:
    """Return whether a result is what some definition allows."""
    return bool(((got.detach().double() - allowed.value).abs() <= allowed.bound).all())


def packed(tensors: Tensors, packing: GatePacking) -> dict[str, torch.Tensor]:
    """Return the tensors as a call takes them, gate and up in one matrix if they are packed."""
    if packing is GatePacking.SEPARATE:
        return dict(tensors)
    result = {
        "x": tensors["x"],
        "gate_up": pack(tensors["gate"], tensors["up"], packing),
        "down": tensors["down"],
    }
    if "gate_bias" in tensors:
        result["gate_up_bias"] = pack(tensors["gate_bias"], tensors["up_bias"], packing)
        result["down_bias"] = tensors["down_bias"]
    return result


def unpacked(tensors: Tensors, packing: GatePacking) -> dict[str, torch.Tensor]:
    """Return the tensors of `packed` with gate and up apart."""
    result = dict(tensors)
    for name, parts in (("gate_up", ("gate", "up")), ("gate_up_bias", ("gate_bias", "up_bias"))):
        if name in result:
            result |= dict(zip(parts, unpack(result.pop(name), packing), strict=True))
    return result


def _call(tensors: Tensors, **backward: Any) -> OperatorCall:
    arguments = [name if not name.endswith("bias") else f"{name}={name}" for name in tensors]
    return OperatorCall(tensors=tensors, arguments=tuple(arguments), **backward)
