"""What the laws of attention share: exact contents, readable keys, and two calls held together.

A law that relates two calls never compares two rounded results by a tolerance of its own: each
side is held to its own bound, and the two sides to each other within the sum of their bounds.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.oracle import Expected
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.values import normal
from attnspec.spec import Case, CausalAlignment, Values

POSITIVE = (None, 1.0, 0.5, 0.1, 2.0)
"""Scales above zero; scales that are not have a law of their own."""

Map = Callable[[torch.Tensor], torch.Tensor]


ONE_SIGN = (Values.NEGATIVE, Values.OFFSET, Values.GROWING)
"""Families whose queries are all of one sign, so that their sum can overflow float16."""


def plain(case: Case) -> bool:
    """True for cases without what has a law of its own, which a known mistake would spoil.

    That is the causal flag with a scale of zero or less, and no keys with queries that add up.
    """
    negative = case.is_causal and case.scale is not None and case.scale <= 0
    return not negative and not (case.keys == 0 and case.values in ONE_SIGN)


def grid(tensor: torch.Tensor) -> torch.Tensor:
    """Round to multiples of 1/8 in [-2, 2].

    Sums and differences of a few such numbers are exact in every dtype, bfloat16 included.
    """
    return (tensor * 8).round().clamp(-16, 16) / 8


def drawn(case: Case, purpose: str, like: torch.Tensor) -> torch.Tensor:
    """Fresh normal numbers of the shape, dtype and device of a tensor."""
    return normal(case, purpose, *like.shape).to(like.dtype).to(like.device)


def readable(subject: Subject, call: Call) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Which keys each query may read: mask, causal flag and window, straight from the contract."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    visible = torch.ones(batch, heads, queries, keys, dtype=torch.bool, device=call.query.device)
    if call.attn_mask is not None:
        is_bool = call.attn_mask.dtype == torch.bool
        visible = visible & (call.attn_mask if is_bool else call.attn_mask != -torch.inf)
    alignment = subject.implementation.profile.causal_alignment
    offset = keys - queries if alignment is CausalAlignment.LOWER_RIGHT else 0
    place = torch.arange(queries, device=visible.device)[:, None] + offset
    key = torch.arange(keys, device=visible.device)
    if call.is_causal:
        visible = visible & (key <= place)
    left, right = call.window or (None, None)
    visible = visible if left is None else visible & (place - left <= key)
    return visible if right is None else visible & (key <= place + right)


def per_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Give every query head the key/value head that it reads."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def mask_of(call: Call, dim: int, change: Map) -> torch.Tensor | None:
    """The mask of a call with one dimension changed, unless it broadcasts there."""
    mask = call.attn_mask
    return mask if mask is None or mask.shape[dim] == 1 else change(mask)


def claimed(subject: Subject, case: Case) -> None:
    """Stop where the second call of a law asks what the subject does not claim.

    Raises:
        NotClaimed: with the subject's reason.
    """
    reason = subject.refuses(case)
    if reason is not None:
        raise NotClaimed(reason)


def evident(call: Call, *expected: Expected) -> None:
    """Stop where a pass shows nothing, because a bound is as wide as the output itself.

    Rows of zeros, as of queries that may read nothing, are no output to compare a bound with.

    Raises:
        NotClaimed: where a bound exceeds half of the largest output.
    """
    for each in expected:
        if not (each.is_zero or each.is_evidence):
            dtype = str(call.value.dtype).removeprefix("torch.")
            raise NotClaimed(f"rounding as declared in {dtype} may be as large as the output")


def check_target(
    subject: Subject,
    call: Call,
    target: Float[torch.Tensor, "batch heads queries d_value"],
    message: str,
    slack: Float[torch.Tensor, "..."] | float = 0.0,
) -> None:
    """Hold the output of a call to a closed form, and to the oracle.

    Args:
        subject: what is judged.
        call: what it is asked.
        target: the closed form in float64, NaN in rows for which it says nothing.
        message: the sentence of a failure.
        slack: the exact distance between closed form and definition, where it is not zero.
    """
    out = subject.call(call)
    expected = subject.expect(call)
    said = ~target.isnan()
    check_close(
        out,
        torch.where(said, target, expected.out),
        torch.where(said, expected.bound + slack, expected.bound),
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
    )
    check_oracle(call, out, expected, message)
    evident(call, expected)


def check_oracle(call: Call, out: torch.Tensor, expected: Expected, message: str) -> None:
    """Hold an output to what the oracle expects of its call."""
    check_close(
        out,
        expected.out,
        expected.bound,
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
    )


def judged(subject: Subject, call: Call, message: str) -> tuple[torch.Tensor, Expected]:
    """Make a call and hold its output to the oracle.

    Args:
        subject: what is judged.
        call: what it is asked.
        message: the sentence of a failure.

    Returns:
        The output, and what the oracle expected.
    """
    out = subject.call(call)
    return out, subject.judge(call, out, message)


def check_sides(
    subject: Subject, first: Call, second: Call, message: str, back: Map = lambda out: out
) -> None:
    """Hold two calls with equal exact results to each other and to the oracle.

    Args:
        subject: what is judged.
        first: one call.
        second: another; `back` of its exact result is the exact result of the first.
        message: the sentence of a failure.
        back: moves elements of an output; never computes.
    """
    out, expected = judged(subject, first, "the output is wrong before anything is changed")
    again, also = judged(subject, second, message)
    again = back(again)
    # where NaN or an overflow is allowed the oracle has had its say
    comparable = out.isfinite() & again.isfinite()
    check_close(
        again,
        torch.where(comparable, out, again).double(),
        expected.bound + back(also.bound),
        what="out",
        message=message,
        dtype=first.value.dtype,
        may_be_nan=expected.may_be_nan,
    )
    evident(first, expected, also)
