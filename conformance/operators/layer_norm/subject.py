"""Calls of a LayerNorm, and the expected results: the definition in float64, with its bound."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.operators.layer_norm.bounds import Bounds, bounds
from attnspec.conformance.operators.layer_norm.case import LayerNormCase
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.operator_implementations import LAYER_NORM
from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile
from attnspec.spec.profiles import Float64Precision

AXES = ("batch", "head", "row", "channel")
"""Names of the axes in a message; rows of lower rank use the last ones."""

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Rows, gain and bias."""

NAMES = ("input", "weight", "bias")
"""The parameters that take them."""


@dataclass(kw_only=True)
class LayerNormSubject(OperatorSubject):
    """A LayerNorm under test."""

    implementation: LayerNormImplementation

    @property
    def profile(self) -> LayerNormProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's function judges."""
        return self.implementation.function is LAYER_NORM.function

    def call(self, operands: Operands, epsilon: float) -> torch.Tensor:
        """Return the output, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the output has a wrong form.
        """
        x = operands[0]
        got = self.run(_call(operands, epsilon), lambda: self._made(operands, epsilon))
        return checked(got, tuple(x.shape), x.dtype)

    def _made(self, operands: Operands, epsilon: float) -> Any:
        x, weight, bias = operands
        return self.implementation.function(x, (x.shape[-1],), weight, bias, epsilon)

    def gradients(
        self, operands: Operands, epsilon: float, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the output, and the gradients of rows, gain and bias.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        rows, weight, bias = (each.detach().requires_grad_() for each in operands)
        leaves = (rows, weight, bias)
        out, grads = self.differentiate(
            _call(leaves, epsilon, grad_out=grad_out, wrt=NAMES),
            lambda: self._made(leaves, epsilon),
            lambda got: checked(got, tuple(rows.shape), rows.dtype),
        )
        for name, leaf in zip(NAMES, leaves, strict=True):
            checked(grads[name], tuple(leaf.shape), rows.dtype, f"gradient of {name}")
        return out, grads

    def expect(
        self, operands: Operands, epsilon: float, grad_out: torch.Tensor | None = None
    ) -> "Expected":
        """Return the exact results in float64, and the distance that is allowed."""
        return expect(operands, epsilon, self.profile, grad_out, is_reference=self.is_reference)

    def judge_case(self, case: LayerNormCase, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(), case.epsilon, message)

    def judge(self, operands: Operands, epsilon: float, message: str) -> torch.Tensor:
        """Check the output of a call against the definition, and return it."""
        expected, got = self.expect(operands, epsilon), self.call(operands, epsilon)
        check_close(got, expected.out, expected.bounds.out, what="out", message=message, axes=AXES)
        return got


def _call(operands: Operands, epsilon: float, **backward: Any) -> OperatorCall:
    count = operands[0].shape[-1]
    return OperatorCall(
        tensors=dict(zip(NAMES, operands, strict=True)),
        arguments=("input", f"({count},)", "weight", "bias", repr(epsilon)),
        **backward,
    )


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Exact results of one call, in float64.

    Attributes:
        out: the output.
        grads: the gradients of `input`, `weight` and `bias`, if there is a backward pass.
        bounds: the largest distance from each.
    """

    out: torch.Tensor
    grads: dict[str, torch.Tensor]
    bounds: Bounds


def expect(
    operands: Operands,
    epsilon: float,
    profile: LayerNormProfile,
    grad_out: torch.Tensor | None = None,
    *,
    is_reference: bool = False,
) -> Expected:
    """Compute the definition in float64, and the bound of a conforming LayerNorm.

    Args:
        operands: rows, gain and bias.
        epsilon: is added to the variance.
        profile: the declared answers.
        grad_out: the incoming gradient, if there is a backward pass.
        is_reference: whether the reference is under test, so that torch's function is the oracle.
    """
    started = time.perf_counter()
    with torch.enable_grad():
        rows, weight, bias = (each.detach().double().requires_grad_() for each in operands)
        if is_reference:
            out = torch.nn.functional.layer_norm(rows, (rows.shape[-1],), weight, bias, epsilon)
        else:
            out = layer_norm(rows, weight, bias, epsilon=epsilon)
        grads = {}
        if grad_out is not None:
            found = torch.autograd.grad(out, (rows, weight, bias), grad_out.double())
            grads = dict(zip(NAMES, found, strict=True))
    allowed = bounds(*operands, epsilon, profile, grad_out)
    # the oracle rounds too
    wide = replace(profile, float64_precision=Float64Precision.FLOAT64)
    exact_grad = None if grad_out is None else grad_out.double()
    own = bounds(rows, weight, bias, epsilon, wide, exact_grad)
    tally.spent("oracle", started)
    return Expected(out=out.detach(), grads=grads, bounds=allowed.plus(own))
