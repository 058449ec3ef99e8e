"""What the laws of GRD share: incoming gradients of many kinds, and gradients held to the oracle.

An incoming gradient is drawn by itself, never from an output or in its layout: two backends whose
outputs lie differently in memory would then be asked two different things.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.laws.attention_sides import plain
from attnspec.conformance.oracle_gradients import ExpectedGradients, Gradient
from attnspec.conformance.subject import WRT, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.values import normal
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, EmptyRow, Feature, MaskKind

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F64, F16, BF16)
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32, backward=True)
SMALL = Case(
    batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32, backward=True
)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=9)
BACKWARD = (Feature.BACKWARD,)
FEATURES = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
"""What a law of gradients draws `sometimes`."""
LENGTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 129)

Found = Mapping[str, torch.Tensor | None]

AXES = {
    "query": ("batch", "head", "query", "channel"),
    "key": ("batch", "head", "key", "channel"),
    "value": ("batch", "head", "key", "channel"),
    "attn_mask": ("batch", "head", "query", "key"),
}

KINDS = ("normal", "one hot", "constant", "large", "small", "spiked")
"""The kinds of incoming gradients."""


def biased(case: Case) -> bool:
    """True for plain cases that kept their float mask."""
    return case.mask is not None and case.mask.kind is MaskKind.FLOAT and plain(case)


def incoming(
    case: Case, kind: str = "normal", purpose: str = "grad"
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """An incoming gradient of a case, contiguous: the same bits on every machine.

    Args:
        case: gives shape, dtype, device and seed.
        kind: one of `KINDS`.
        purpose: another name, other numbers.
    """
    grad = normal(case, purpose, case.batch, case.heads, case.queries, case.d_value)
    place = torch.arange(grad.numel()).reshape(grad.shape)
    match kind:
        case "one hot":
            grad = (place == (7 * case.seed + grad.numel() // 2) % max(grad.numel(), 1)).double()
        case "constant":
            grad = torch.ones_like(grad)
        case "large":
            grad = grad * (2.0**6 if case.dtype == F16 else 2.0**40)
        case "small":
            grad = grad * (2.0**-6 if case.dtype == F16 else 2.0**-40)
        case "spiked":
            grad = torch.where(place % 5 == case.seed % 5, 64 * grad, grad / 64)
    return grad.to(case.dtype).to(case.device)


def kind_of(case: Case) -> str:
    """The kind of incoming gradient that the seed of a case stands for."""
    return KINDS[case.seed % len(KINDS)]


def gradients_of(subject: Subject, case: Case) -> tuple[str, ...]:
    """The operands whose gradients a case asks for; that of a float mask where it is claimed."""
    if case.mask is None or case.mask.kind is not MaskKind.FLOAT:
        return WRT
    claimed = subject.refuses(case.but(mask_gradient=True)) is None
    return (*WRT, "attn_mask") if claimed else WRT


def expected_of(expected: ExpectedGradients, name: str) -> Gradient:
    """What is expected of one gradient.

    Raises:
        ValueError: for a mask that has none.
    """
    gradient = getattr(expected, name)
    if not isinstance(gradient, Gradient):
        raise ValueError(f"nothing is expected of the gradient of {name}")
    return gradient


def check_gradients(call: Call, found: Found, expected: ExpectedGradients, message: str) -> None:
    """Hold each gradient to the oracle, element by element within its own bound.

    Args:
        call: gives the dtype of each operand.
        found: the gradients that came back, by operand.
        expected: what is expected of them.
        message: the sentence of a failure.

    Raises:
        Violation: naming the worst element of the first tensor that is wrong.
    """
    for name, got in found.items():
        gradient = expected_of(expected, name)
        check_close(
            there(got, name),
            gradient.exact,
            gradient.bound,
            what=f"gradient of {name}",
            message=message,
            dtype=getattr(call, name).dtype,
            may_be_nan=gradient.may_be_nan,
            axes=AXES[name],
        )


def there(got: torch.Tensor | None, name: str) -> torch.Tensor:
    """A gradient that came.

    Raises:
        Violation: where none came.
    """
    if got is None:
        raise Violation(f"the gradient of {name} must come back, got None")
    return got


def judged_gradients(
    subject: Subject,
    call: Call,
    grad: torch.Tensor,
    wrt: tuple[str, ...],
    message: str,
) -> tuple[dict[str, torch.Tensor], ExpectedGradients]:
    """Differentiate a call and hold each gradient to the oracle.

    Returns:
        The gradients and what was expected of them.
    """
    _, found = subject.differentiate(call, grad, wrt=wrt)
    expected = subject.expect_gradients(call, grad)
    check_gradients(call, found, expected, message)
    return {name: there(got, name) for name, got in found.items()}, expected


def check_part(
    got: torch.Tensor,
    name: str,
    exact: torch.Tensor,
    bound: torch.Tensor,
    message: str,
    may_be_nan: torch.Tensor | None = None,
) -> None:
    """Hold one gradient, or a sum of several, to a target with the bound that goes with it."""
    check_close(
        got,
        exact,
        bound,
        what=f"gradient of {name}",
        message=message,
        may_be_nan=may_be_nan,
        axes=AXES[name],
    )


def check_zero(got: torch.Tensor, name: str, where: torch.Tensor | None, message: str) -> None:
    """Demand exact zeros, of either sign, where `where` is true; everywhere where it is `None`."""
    bound = torch.zeros(got.shape, dtype=torch.float64, device=got.device)
    if where is not None:
        bound = bound.masked_fill(~where, torch.inf)
    check_part(got, name, torch.zeros_like(bound), bound, message)


def evident_gradients(expected: ExpectedGradients, wrt: tuple[str, ...] = WRT) -> None:
    """Stop where a pass shows nothing, because every bound is as wide as the gradient itself.

    Raises:
        NotClaimed: where no gradient that is not zero has a bound below half of its size.
    """
    each = [expected_of(expected, name) for name in wrt]
    live = [item for item in each if not item.is_zero]
    if live and not any(item.is_evidence for item in live):
        raise NotClaimed("rounding as declared may be as large as the gradients")


def zero_empty_rows(subject: Subject) -> bool:
    """True where a row that reads nothing gives zero, and so has a gradient."""
    return subject.implementation.profile.empty_row is EmptyRow.ZERO
