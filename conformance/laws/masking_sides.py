"""What the laws of MSK, HED, TEN and NUM share: rows held apart, and calls cut to one part."""

import torch
from jaxtyping import Bool, Float

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.laws.attention_sides import plain, readable
from attnspec.conformance.oracle import Expected
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, EmptyRow, RoundingLevel


def masked(case: Case) -> bool:
    """True for plain cases that kept their mask: drawing drops one that a subject refuses."""
    return case.mask is not None and plain(case)


def causal(case: Case) -> bool:
    """True for cases that kept their causal flag."""
    return case.is_causal


def check_rows(
    call: Call,
    out: torch.Tensor,
    target: Float[torch.Tensor, "batch heads queries d_value"],
    expected: Expected,
    judged: Bool[torch.Tensor, "batch heads queries"] | Bool[torch.Tensor, "..."],
    message: str,
    *,
    or_nan: bool = False,
) -> None:
    """Hold a part of an output to a target, each element within the bound of `expected`.

    Args:
        call: what was asked.
        out: what came back.
        target: what must have come back, in float64.
        expected: gives the bound.
        judged: the rows, or the elements, that are judged; the others may be anything.
        message: the sentence of a failure.
        or_nan: true where NaN is an allowed answer as well.

    Raises:
        Violation: naming the worst element.
    """
    if judged.dim() < target.dim():
        judged = judged[..., None].expand(target.shape)
    check_close(
        out,
        torch.where(judged, target, 0.0),
        torch.where(judged, expected.bound, torch.inf),
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=judged if or_nan else expected.may_be_nan,
    )


def check_oracle(call: Call, out: torch.Tensor, expected: Expected, message: str) -> None:
    """Hold an output to what the oracle expects of this call, or of one that means the same."""
    check_close(
        out,
        expected.out,
        expected.bound,
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
    )


def unmoved(
    subject: Subject,
    visible: Bool[torch.Tensor, "batch heads queries keys"],
    readers: Bool[torch.Tensor, "batch heads queries"],
) -> Bool[torch.Tensor, "batch heads queries"]:
    """The rows that a change may not move: all but those that may read what changed.

    Where the profile gives an empty row the mean of all values, that row feels every key.
    """
    if subject.implementation.profile.empty_row is EmptyRow.MEAN:
        readers = readers | ~visible.any(-1)
    return ~readers


def spelled_out(subject: Subject, call: Call) -> Call:
    """The same call with one full mask that says everything, and no causal flag."""
    visible = readable(subject, call)
    mask = visible
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        mask = call.attn_mask.expand(visible.shape).masked_fill(~visible, -torch.inf)
    return call.but(attn_mask=mask.contiguous(), is_causal=False)


def additive(visible: torch.Tensor, dtype: torch.dtype, hidden: float = -torch.inf) -> torch.Tensor:
    """A bool mask as a float mask: 0 where readable, `hidden` where not."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
        ~visible, hidden
    )


def part(
    call: Call,
    *,
    batch: slice = slice(None),
    queries: slice = slice(None),
    keys: slice = slice(None),
) -> Call:
    """The call of some batch elements, queries and keys, without its mask."""
    return call.but(
        query=call.query[batch, :, queries],
        key=call.key[batch, :, keys],
        value=call.value[batch, :, keys],
        attn_mask=None,
    )


def accumulator_range(subject: Subject, dtype: torch.dtype) -> float:
    """The largest number that every intermediate result of a subject can hold."""
    if subject.implementation.profile.rounding.level is RoundingLevel.EAGER:
        return torch.finfo(dtype).max
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
