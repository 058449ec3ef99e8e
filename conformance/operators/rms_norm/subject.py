"""Calls of an RMSNorm, and the expected results: the definition in float64, with its bound."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.operators.rms_norm.bounds import Bounds, bounds
from attnspec.conformance.operators.rms_norm.case import RMSNormCase
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.operator_implementations import RMS_NORM
from attnspec.reference.rms_norm import rms_norm
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormImplementation, RMSNormProfile

AXES = ("batch", "head", "row", "channel")
"""Names of the axes in a message; rows of lower rank use the last ones."""


@dataclass(kw_only=True)
class RMSNormSubject(OperatorSubject):
    """An RMSNorm under test."""

    implementation: RMSNormImplementation

    @property
    def profile(self) -> RMSNormProfile:
        """The declared answers."""
        return self.implementation.profile

    def call(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return the output, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the output has a wrong form.
        """
        got = self.run(_call(x, weight, epsilon), lambda: self._made(x, weight, epsilon))
        return checked(got, tuple(x.shape), x.dtype)

    def _made(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> Any:
        return self.implementation.function(x, (x.shape[-1],), weight, epsilon)

    def gradients(
        self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the output, and the gradients of rows and gain, in the strides that rows have.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or a gradient is missing.
        """
        leaves = {"input": x.detach().requires_grad_(), "weight": weight.detach().requires_grad_()}
        rows, learned = leaves["input"], leaves["weight"]
        out, grads = self.differentiate(
            _call(rows, learned, epsilon, grad_out=grad_out, wrt=tuple(leaves)),
            lambda: self._made(rows, learned, epsilon),
            lambda got: checked(got, tuple(x.shape), x.dtype),
        )
        for name, grad in grads.items():
            checked(grad, tuple(leaves[name].shape), x.dtype, f"gradient of {name}")
        return out, grads

    def expect(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        epsilon: float,
        grad_out: torch.Tensor | None = None,
    ) -> "Expected":
        """Return the exact results in float64, and the distance that is allowed."""
        return expect(x, weight, epsilon, self.profile, grad_out, is_reference=self.is_reference)

    @property
    def is_reference(self) -> bool:
        """True for the reference, which torch's function judges."""
        return self.implementation.function is RMS_NORM.function

    def judge_case(self, case: RMSNormCase, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(*case.draw(self.profile.gain), case.epsilon, message)

    def judge(
        self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, message: str
    ) -> torch.Tensor:
        """Check the output of a call against the definition, and return it."""
        expected, got = self.expect(x, weight, epsilon), self.call(x, weight, epsilon)
        check_close(got, expected.out, expected.bounds.out, what="out", message=message, axes=AXES)
        return got


def _call(x: torch.Tensor, weight: torch.Tensor, epsilon: float, **backward: Any) -> OperatorCall:
    return OperatorCall(
        tensors={"input": x, "weight": weight},
        arguments=("input", f"({x.shape[-1]},)", "weight", repr(epsilon)),
        **backward,
    )


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Exact results of one call, in float64.

    Attributes:
        out: the output.
        grads: the gradients of `input` and `weight`, if there is a backward pass.
        bounds: the largest distance from each.
    """

    out: torch.Tensor
    grads: dict[str, torch.Tensor]
    bounds: Bounds


def expect(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    profile: RMSNormProfile,
    grad_out: torch.Tensor | None = None,
    *,
    is_reference: bool = False,
) -> Expected:
    """Compute the definition in float64, and the bound of a conforming RMSNorm.

    Args:
        x: the rows.
        weight: the learned numbers.
        epsilon: is added to the mean square.
        profile: the declared answers.
        grad_out: the incoming gradient, if there is a backward pass.
        is_reference: whether the reference is under test, so that torch's function is the oracle.
    """
    started = time.perf_counter()
    with torch.enable_grad():
        leaves = [each.detach().double().requires_grad_() for each in (x, weight)]
        rows, learned = leaves
        is_one_plus = profile.gain is Gain.ONE_PLUS
        if is_reference:
            gain = 1 + learned if is_one_plus else learned
            out = torch.nn.functional.rms_norm(rows, (x.shape[-1],), gain, epsilon)
        else:
            out = rms_norm(rows, learned, epsilon=epsilon, is_one_plus=is_one_plus)
        grads = {}
        if grad_out is not None:
            found = torch.autograd.grad(out, leaves, grad_out.double())
            grads = dict(zip(("input", "weight"), found, strict=True))
    allowed = bounds(x, weight, epsilon, profile, grad_out)
    # the oracle rounds too
    wide = replace(profile, float64_precision=Float64Precision.FLOAT64)
    own = bounds(rows, learned, epsilon, wide, None if grad_out is None else grad_out.double())
    tally.spent("oracle", started)
    return Expected(out=out.detach(), grads=grads, bounds=allowed.plus(own))
