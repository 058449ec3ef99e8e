"""Calls of experts, and the expected results: the definition in float64, with its bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.operators.experts import bounds
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.experts import experts
from attnspec.reference.gated_mlp import pack, unpack
from attnspec.reference.scalar_experts import scalar_experts
from attnspec.spec.experts import ExpertsImplementation
from attnspec.spec.gated_mlp import GatedMLPProfile, GatePacking

Tensors = Mapping[str, torch.Tensor]
"""`x`, `indices`, `scores`, `gate`, `up`, `down`, biases if there are any, and the weights of a
shared expert as `shared_gate`, `shared_up`, `shared_down`."""

AXES = ("expert", "token", "channel")
"""Names of the axes in a message; tensors of lower rank use the last ones."""

_BIASES = ("gate_bias", "up_bias", "down_bias")


@dataclass(kw_only=True)
class ExpertsSubject(OperatorSubject):
    """A function of experts under test."""

    implementation: ExpertsImplementation

    @property
    def profile(self) -> GatedMLPProfile:
        """The declared answers of each expert."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which scalar loops judge."""
        return self.implementation.function is experts

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
        names = ("x", "indices", "scores", "gate", "up", "gate_up", "down")
        positional = [given[name] for name in names if name in given]
        keywords: dict[str, Any] = {name: each for name, each in given.items() if "bias" in name}
        if shared := shared_of(given):
            keywords["shared"] = shared
        return self.implementation.function(*positional, **keywords)

    def gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the gradients of every tensor, those of a packed matrix apart.

        The operands have the strides that they are given with.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        given = packed(tensors, self.profile.packing)
        leaves = {
            name: each if name == "indices" else each.detach().requires_grad_()
            for name, each in given.items()
        }
        wrt = tuple(name for name in leaves if name != "indices")
        shape, dtype = tuple(tensors["x"].shape), tensors["x"].dtype
        _, grads = self.differentiate(
            _call(leaves, grad_out=grad_out, wrt=wrt),
            lambda: self._made(leaves),
            lambda got: checked(got, shape, dtype),
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), dtype, f"gradient of {name}")
        return unpacked(grads, self.profile.packing)

    def expect(self, tensors: Tensors) -> Allowed:
        """Return the exact output, and the distance allowed."""
        exact = {name: each.detach().double() for name, each in tensors.items()}
        exact["indices"] = tensors["indices"]
        own = {name: each for name, each in exact.items() if not name.startswith("shared_")}
        shared = shared_of(exact) or None
        form = self.profile.form
        if self.is_reference:
            arrays = {name: each.numpy() for name, each in own.items()}
            others = {name: each.numpy() for name, each in (shared or {}).items()} or None
            value = torch.from_numpy(scalar_experts(**arrays, shared=others, form=form))
        else:
            value = experts(**own, shared=shared, form=form)
        radius = sum(
            self._enclosed(tensors, Precision.of(dtype)).out.radius
            for dtype in (tensors["x"].dtype, torch.float64)  # the oracle rounds too
        )
        return Allowed(value=value, bound=torch.as_tensor(radius))

    def _enclosed(self, tensors: Tensors, precision: Precision) -> bounds.Forward:
        weights = {
            name: tensors[name].detach()
            for name in ("gate", "up", "down", *_BIASES)
            if name in tensors
        }
        x, scores = tensors["x"].detach(), tensors["scores"].detach()
        shared = shared_of(tensors) or None
        return bounds.forward(
            x, tensors["indices"], scores, weights, shared, self.profile.form, precision
        )

    def expect_gradients(self, tensors: Tensors, grad_out: torch.Tensor) -> dict[str, Allowed]:
        """Return the exact gradient of every tensor, and the distances allowed."""
        enclosed = []
        for dtype in (tensors["x"].dtype, torch.float64):
            precision = Precision.of(dtype)
            forward = self._enclosed(tensors, precision)
            enclosed.append(
                bounds.backward(forward, tensors["scores"], grad_out.double(), precision)
            )
        if self.is_reference:  # the closed forms of the bound are its oracle
            values = {name: each.value for name, each in enclosed[0].items()}
        else:
            leaves = {
                name: each.detach().double().clone().requires_grad_()
                for name, each in tensors.items()
                if name != "indices"
            }
            own = {name: each for name, each in leaves.items() if not name.startswith("shared_")}
            with torch.enable_grad():
                out = experts(
                    indices=tensors["indices"],
                    **own,
                    shared=shared_of(leaves) or None,
                    form=self.profile.form,
                )
            found = torch.autograd.grad(out, list(leaves.values()), grad_out.double())
            values = dict(zip(leaves, found, strict=True))
        return {
            name: Allowed(value=value, bound=enclosed[0][name].radius + enclosed[1][name].radius)
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


def shared_of(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights of a shared expert without their prefix; empty if there is none."""
    prefix = "shared_"
    return {
        name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)
    }


def packed(tensors: Tensors, packing: GatePacking) -> dict[str, torch.Tensor]:
    """Return the tensors as a call takes them, gate and up of each expert in one matrix if packed.

    The weights of a shared expert are packed likewise.
    """
    result = dict(tensors)
    if packing is GatePacking.SEPARATE:
        return result
    for prefix, suffix in (("", ""), ("", "_bias"), ("shared_", "")):
        names = [f"{prefix}{part}{suffix}" for part in ("gate", "up")]
        if names[0] not in result:
            continue
        gate, up = (result.pop(name) for name in names)
        if prefix:
            both = pack(gate, up, packing)
        else:
            both = torch.stack([pack(*pair, packing) for pair in zip(gate, up, strict=True)])
        result[f"{prefix}gate_up{suffix}"] = both
    return result


def unpacked(tensors: Tensors, packing: GatePacking) -> dict[str, torch.Tensor]:
    """Return the tensors of `packed` with gate and up apart."""
    result = dict(tensors)
    for prefix, suffix in (("", ""), ("", "_bias"), ("shared_", "")):
        both = result.pop(f"{prefix}gate_up{suffix}", None)
        if both is None:
            continue
        parts = [unpack(one, packing) for one in ([both] if prefix else both)]
        for place, name in enumerate(("gate", "up")):
            each = [pair[place] for pair in parts]
            result[f"{prefix}{name}{suffix}"] = each[0] if prefix else torch.stack(each)
    return result


def _call(tensors: Tensors, **backward: Any) -> OperatorCall:
    names = ("x", "indices", "scores", "gate", "up", "gate_up", "down")
    arguments = [name for name in names if name in tensors]
    arguments += [f"{name}={name}" for name in tensors if "bias" in name]
    if shared := shared_of(tensors):
        items = ", ".join(f"{name!r}: shared_{name}" for name in shared)
        arguments.append(f"shared={{{items}}}")
    return OperatorCall(tensors=tensors, arguments=tuple(arguments), **backward)
