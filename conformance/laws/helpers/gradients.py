"""Helpers of the laws of GRD: incoming gradients, and gradients compared with the oracle.

An incoming gradient is drawn from the case, not from an output or its layout: otherwise two
backends whose outputs have different strides would get different gradients.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle_gradients import ExpectedGradients, Gradient
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.values import normal
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.helpers import cases
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import F16
from attnspec.spec import Case, EmptyRow, Feature, Mask, MaskKind, MaskPattern, MaskShape

TINIEST = cases.TINIEST.but(backward=True)
SMALL = cases.SMALL.but(backward=True)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=9)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
LONG = GROUPED.but(batch=1, queries=300, keys=290)
"""A call of several tiles of queries and keys, with grouped heads."""
BACKWARD = (Feature.BACKWARD,)

Gradients = Mapping[str, torch.Tensor | None]

AXES = {
    "query": ("batch", "head", "query", "channel"),
    "key": ("batch", "head", "key", "channel"),
    "value": ("batch", "head", "key", "channel"),
    "attn_mask": ("batch", "head", "query", "key"),
}

KINDS = ("normal", "one hot", "constant", "large", "small", "spiked")
"""The kinds of incoming gradients."""


def has_float_mask(case: Case) -> bool:
    """Return whether a plain case has a float mask."""
    return case.mask is not None and case.mask.kind is MaskKind.FLOAT and plain(case)


def incoming_gradient(
    case: Case, kind: str = "normal", purpose: str = "grad"
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Draw an incoming gradient of a case, contiguous, the same bits on every machine.

    Args:
        case: gives shape, dtype, device and seed.
        kind: one of `KINDS`.
        purpose: selects the random numbers.
    """
    grad = normal(case, purpose, case.batch, case.heads, case.queries, case.d_value)
    index = torch.arange(grad.numel()).reshape(grad.shape)
    match kind:
        case "one hot":
            grad = (index == (7 * case.seed + grad.numel() // 2) % max(grad.numel(), 1)).double()
        case "constant":
            grad = torch.ones_like(grad)
        case "large":
            grad = grad * (2.0**9 if case.dtype == F16 else 2.0**40)
        case "small":
            grad = grad * (2.0**-6 if case.dtype == F16 else 2.0**-40)
        case "spiked":
            grad = torch.where(index % 5 == case.seed % 5, 64 * grad, grad / 64)
    return grad.to(case.dtype).to(case.device)


def incoming_kind(case: Case) -> str:
    """Return the kind of incoming gradient that the seed of a case selects."""
    return KINDS[case.seed % len(KINDS)]


def operands_with_gradient(subject: Subject, case: Case) -> tuple[str, ...]:
    """Return the operands to differentiate by: also a float mask, if its gradient is claimed."""
    if case.mask is None or case.mask.kind is not MaskKind.FLOAT:
        return WRT
    claimed = subject.refuses(case.but(mask_gradient=True)) is None
    return (*WRT, "attn_mask") if claimed else WRT


def expected_gradient(expected: ExpectedGradients, name: str) -> Gradient:
    """Return the expected gradient of one operand.

    Raises:
        ValueError: if the operand has none, as a mask may.
    """
    gradient = getattr(expected, name)
    if not isinstance(gradient, Gradient):
        raise ValueError(f"no gradient of {name} is expected")
    return gradient


def check_gradients(
    call: Call, gradients: Gradients, expected: ExpectedGradients, message: str
) -> None:
    """Compare each gradient with the oracle, each element within its own bound.

    Args:
        call: gives the dtype of each operand.
        gradients: the gradients returned, by operand.
        expected: the expected gradients.
        message: the message of a failure.

    Raises:
        Violation: naming the worst element of the first tensor that is wrong.
    """
    for name, tensor in gradients.items():
        gradient = expected_gradient(expected, name)
        check_close(
            require_gradient(tensor, name),
            gradient.exact,
            gradient.bound,
            what=f"gradient of {name}",
            message=message,
            dtype=getattr(call, name).dtype,
            may_be_nan=gradient.may_be_nan,
            axes=AXES[name],
        )


def require_gradient(gradient: torch.Tensor | None, name: str) -> torch.Tensor:
    """Return a gradient that must not be None.

    Raises:
        Violation: if it is None.
    """
    if gradient is None:
        raise Violation(f"the gradient of {name} must not be None")
    return gradient


def differentiate_and_judge(
    subject: Subject,
    call: Call,
    grad: torch.Tensor,
    wrt: tuple[str, ...],
    message: str,
) -> tuple[dict[str, torch.Tensor], ExpectedGradients]:
    """Differentiate a call and compare each gradient with the oracle.

    Returns:
        The gradients and the expected ones.
    """
    _, gradients = subject.differentiate(call, grad, wrt=wrt)
    expected = subject.expect_gradients(call, grad)
    check_gradients(call, gradients, expected, message)
    return {
        name: require_gradient(gradient, name) for name, gradient in gradients.items()
    }, expected


def check_gradient(
    gradient: torch.Tensor,
    name: str,
    exact: torch.Tensor,
    bound: torch.Tensor,
    message: str,
    may_be_nan: torch.Tensor | None = None,
) -> None:
    """Compare one gradient, or a sum of several, with a target, within a bound."""
    check_close(
        gradient,
        exact,
        bound,
        what=f"gradient of {name}",
        message=message,
        may_be_nan=may_be_nan,
        axes=AXES[name],
    )


def check_zero(gradient: torch.Tensor, name: str, where: torch.Tensor | None, message: str) -> None:
    """Require exact zeros, of either sign, where `where` is true; everywhere if it is None."""
    if not bool(gradient.any()):  # NaN is not zero
        return
    bound = torch.zeros(gradient.shape, dtype=torch.float64, device=gradient.device)
    if where is not None:
        bound = bound.masked_fill(~where, torch.inf)
    check_gradient(gradient, name, torch.zeros_like(bound), bound, message)


def require_evidence_of_gradients(expected: ExpectedGradients, wrt: tuple[str, ...] = WRT) -> None:
    """Require a bound that is narrow enough for a pass to be evidence.

    Raises:
        NotClaimed: if no gradient that is not zero has a bound below half of its size.
    """
    gradients = [expected_gradient(expected, name) for name in wrt]
    nonzero = [gradient for gradient in gradients if not gradient.is_zero]
    if nonzero and not any(gradient.is_evidence for gradient in nonzero):
        raise NotClaimed("rounding as declared may be as large as the gradients")


def empty_rows_are_zero(subject: Subject) -> bool:
    """Return whether a row that reads nothing gives zero, and so has a defined gradient."""
    return {*subject.implementation.profile.empty_row_answers.values()} == {EmptyRow.ZERO}
