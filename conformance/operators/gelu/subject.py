"""Calls of a GELU, and the expected results: the definition in float64, with its bound."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.operators.gelu.bounds import FORMS, Bounds, bounds
from attnspec.conformance.operators.gelu.case import GELUCase
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked
from attnspec.reference.activation import gelu_erf, gelu_tanh
from attnspec.reference.operator_implementations import GELU
from attnspec.spec.gelu import Approximate, GELUImplementation, GELUProfile
from attnspec.spec.profiles import Float64Precision

AXES = ("batch", "sequence", "row", "channel")
"""Names of the axes in a message; arguments of lower rank use the last ones."""

DEFINITIONS: Mapping[Approximate, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {Approximate.NONE: gelu_erf, Approximate.TANH: gelu_tanh}
)
"""The reference of each form."""


@dataclass(kw_only=True)
class GELUSubject(OperatorSubject):
    """A GELU under test."""

    implementation: GELUImplementation

    @property
    def profile(self) -> GELUProfile:
        """The declared answers."""
        return self.implementation.profile

    @property
    def is_reference(self) -> bool:
        """True for the reference, which the complementary error function of Python judges."""
        return self.implementation.function is GELU.function

    def call(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, checked for type, shape and storage type.

        Raises:
            Raised: if the function raises.
            Violation: if the output has a wrong form.
        """
        call = OperatorCall(tensors={"input": x}, arguments=("input",))
        got = self.run(call, lambda: self.implementation.function(x))
        return checked(got, tuple(x.shape), x.dtype)

    def gradients(
        self, x: torch.Tensor, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output, and the gradient of the argument.

        Raises:
            Raised: if the function raises, forward or backward.
            Violation: if the output has a wrong form, or there is no gradient.
        """
        leaf = x.detach().requires_grad_()
        call = OperatorCall(
            tensors={"input": leaf}, arguments=("input",), grad_out=grad_out, wrt=("input",)
        )
        out, grads = self.differentiate(
            call,
            lambda: self.implementation.function(leaf),
            lambda got: checked(got, tuple(x.shape), x.dtype),
        )
        return out, checked(grads["input"], tuple(x.shape), x.dtype, "gradient of input")

    def expect(self, x: torch.Tensor, grad_out: torch.Tensor | None = None) -> "Expected":
        """Return the exact results in float64, and the distance that is allowed."""
        return expect(x, self.profile, grad_out, is_reference=self.is_reference)

    def judge_case(self, case: GELUCase, message: str) -> None:
        """Check the output of a case against the definition."""
        self.judge(case.draw(), message)

    def judge(self, x: torch.Tensor, message: str) -> torch.Tensor:
        """Check the output of a call against the definition, and return it."""
        expected, got = self.expect(x), self.call(x)
        check_close(got, expected.out, expected.bounds.out, what="out", message=message, axes=AXES)
        return got


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Exact results of one call, in float64.

    Attributes:
        out: the output.
        grad: the gradient of the argument, if there is a backward pass.
        bounds: the largest distance from each.
    """

    out: torch.Tensor
    grad: torch.Tensor | None
    bounds: Bounds


def expect(
    x: torch.Tensor,
    profile: GELUProfile,
    grad_out: torch.Tensor | None = None,
    *,
    is_reference: bool = False,
) -> Expected:
    """Compute the definition in float64, and the bound of a conforming GELU.

    Args:
        x: the arguments.
        profile: the declared answers.
        grad_out: the incoming gradient, if there is a backward pass.
        is_reference: whether the reference is under test, which Python's own functions judge.
    """
    started = time.perf_counter()
    exact = x.detach().double()
    grad = None
    if is_reference:
        out = _by_number(exact, profile.approximate)
        if grad_out is not None:
            grad = grad_out.double() * FORMS[profile.approximate].slope(exact)
    else:
        with torch.enable_grad():
            leaf = exact.clone().requires_grad_()
            out = DEFINITIONS[profile.approximate](leaf)
            if grad_out is not None:
                (grad,) = torch.autograd.grad(out, leaf, grad_out.double())
    allowed = bounds(x, profile, grad_out)
    # the oracle rounds too
    wide = replace(profile, float64_precision=Float64Precision.FLOAT64)
    own = bounds(exact, wide, None if grad_out is None else grad_out.double())
    tally.spent("oracle", started)
    return Expected(out=out.detach(), grad=grad, bounds=allowed.plus(own))


def _by_number(x: torch.Tensor, form: Approximate) -> torch.Tensor:
    """Return the function of each number, by Python's `math`."""

    def value(at: float) -> float:
        if form is Approximate.NONE:
            return 0.5 * at * math.erfc(-at / math.sqrt(2))
        return 0.5 * at * (1 + math.tanh(math.sqrt(2 / math.pi) * (at + 0.044715 * at**3)))

    numbers = [value(at) for at in x.flatten().tolist()]
    return torch.tensor(numbers, dtype=torch.float64).reshape(x.shape)
