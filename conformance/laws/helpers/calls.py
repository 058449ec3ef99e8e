"""Helpers of attention laws: exact contents, readable keys, and comparisons of two calls.

A law that relates two calls has no tolerance of its own: each result must lie within its bound,
and the two must agree within the sum of their bounds.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float

from attnspec.conformance.attention.bounds import rows as bounds
from attnspec.conformance.attention.bounds.rows import empty_rows, group_of_heads, per_head, rows_of
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import normal
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    SoftcapOrder,
    Values,
)

TensorMap = Callable[[torch.Tensor], torch.Tensor]


ONE_SIGN = (Values.NEGATIVE, Values.OFFSET, Values.GROWING)
"""Families whose queries all have one sign, so that their sum can overflow float16."""


def plain(case: Case) -> bool:
    """Return whether a case leaves out two combinations that known bugs spoil and other laws try.

    They are the causal flag with a scale of zero or less, and no keys with queries of one sign.
    """
    negative = case.is_causal and case.scale is not None and case.scale <= 0
    return not negative and not (case.keys == 0 and case.values in ONE_SIGN)


def round_to_grid(tensor: torch.Tensor) -> torch.Tensor:
    """Round to multiples of 1/8 in [-2, 2].

    Sums and differences of a few such numbers are exact in every dtype, bfloat16 included.
    """
    return (tensor * 8).round().clamp(-16, 16) / 8


def normal_like(case: Case, purpose: str, like: torch.Tensor) -> torch.Tensor:
    """Draw normal numbers in the shape, dtype and device of a tensor; `purpose` selects them."""
    return normal(case, purpose, *like.shape).to(like.dtype).to(like.device)


def new_contents(case: Case, operand: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return other contents for a tensor of a call: a mask with its keys in reverse order."""
    if operand == "attn_mask":
        return tensor.flip(-1)
    fresh = normal_like(case, f"new {operand}", tensor)
    return fresh.abs() if operand == "alibi_slopes" else fresh


def readable(subject: Subject, call: Call) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Return true for the keys that each query may read by mask, causal flag and window."""
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    visible = torch.ones(batch, heads, queries, keys, dtype=torch.bool, device=call.query.device)
    if call.attn_mask is not None:
        is_bool = call.attn_mask.dtype == torch.bool
        visible = visible & (call.attn_mask if is_bool else call.attn_mask != -torch.inf)
    profile = subject.implementation.profile
    alignment = profile.causal_alignment
    offset = keys - queries if alignment is CausalAlignment.LOWER_RIGHT else 0
    position = torch.arange(queries, device=visible.device)[:, None] + offset
    key = torch.arange(keys, device=visible.device)
    if call.is_causal and not profile.ignores_causal_flag(queries):
        visible = visible & (key <= position)
    left, right = call.window or (None, None)
    visible = visible if left is None else visible & (position - left <= key)
    return visible if right is None else visible & (key <= position + right)


def used_values(subject: Subject, call: Call) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Return true for the keys whose values determine the output of each query.

    They are those that it may read; an empty row that gives the mean uses every value.
    """
    visible = readable(subject, call)
    answers = subject.implementation.profile.empty_row_answers.values()
    if EmptyRow.MEAN not in answers or call.sinks is not None:
        return visible
    means = empty_rows_of(subject, call).get(EmptyRow.MEAN)
    return visible if means is None else visible | means[..., None]


def empty_rows_of(
    subject: Subject, call: Call
) -> dict[EmptyRow | None, Bool[torch.Tensor, "batch heads queries"]]:
    """Divide the rows that may read no key by what the subject declares for them.

    The key None is of rows whose output is undefined, because two ways to hide keys disagree.
    """
    profile = subject.implementation.profile
    divided = empty_rows(rows_of(call, profile, torch.arange(call.query.shape[2])), profile)
    return {answer: rows.expand(call.query.shape[:3]) for answer, rows in divided.items()}


def repeat_kv(subject: Subject, tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat key/value heads so that each query head has its own copy."""
    return per_head(tensor, heads, subject.implementation.profile.grouping)


def kv_head_of(subject: Subject, call: Call) -> torch.Tensor:
    """Return the key/value head that each query head of a call reads."""
    heads, kv_heads = call.query.shape[1], call.key.shape[1]
    grouping = subject.implementation.profile.grouping
    return group_of_heads(heads, kv_heads, grouping, call.query.device)


def in_groups(subject: Subject, tensor: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Split the axis of query heads into (kv_heads, heads of a group)."""
    return bounds.in_groups(tensor, kv_heads, subject.implementation.profile.grouping)


def caps_bias(subject: Subject, call: Call) -> bool:
    """Return whether the softcap of a call bounds the scores after the bias is added."""
    order = subject.implementation.profile.softcap_order
    return call.softcap is not None and order is SoftcapOrder.AFTER_BIAS


def changed_mask(call: Call, dim: int, change: TensorMap) -> torch.Tensor | None:
    """Return the mask of a call with one dimension changed, unless it broadcasts there."""
    mask = call.attn_mask
    return mask if mask is None or mask.shape[dim] == 1 else change(mask)


def require_claimed(subject: Subject, case: Case) -> None:
    """Require that a subject claims the second case of a law.

    Raises:
        NotClaimed: if it does not, with its reason.
    """
    reason = subject.refuses(case)
    if reason is not None:
        raise NotClaimed(reason)


def require_evidence(call: Call, *expected: Expected) -> None:
    """Require bounds that are narrow enough for a pass to be evidence.

    An output of zeros, as of queries that may read nothing, is not compared with its bound.

    Raises:
        NotClaimed: if a bound exceeds half of the largest output.
    """
    for result in expected:
        if not (result.is_zero or result.is_evidence):
            dtype = str(call.value.dtype).removeprefix("torch.")
            raise NotClaimed(f"rounding as declared in {dtype} may be as large as the output")


def check_target(
    subject: Subject,
    call: Call,
    target: Float[torch.Tensor, "batch heads queries d_value"],
    message: str,
    slack: Float[torch.Tensor, "..."] | float = 0.0,
) -> None:
    """Compare the output of a call with a closed form and with the oracle.

    Args:
        subject: the subject to judge.
        call: the call to make.
        target: the closed form in float64; NaN in rows to which it does not apply.
        message: the message of a failure.
        slack: the exact distance between closed form and definition, zero by default.
    """
    out = subject.call(call)
    expected = subject.expect(call)
    is_judged = ~target.isnan()
    check_close(
        out,
        torch.where(is_judged, target, expected.out),
        torch.where(is_judged, expected.bound + slack, expected.bound),
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
    )
    check_oracle(call, out, expected, message)
    require_evidence(call, expected)


def call_and_judge(subject: Subject, call: Call, message: str) -> tuple[torch.Tensor, Expected]:
    """Make a call and compare its output with the oracle.

    Args:
        subject: the subject to judge.
        call: the call to make.
        message: the message of a failure.

    Returns:
        The output and the expected result.
    """
    out = subject.call(call)
    return out, subject.judge(call, out, message)


def check_equal_calls(
    subject: Subject, first: Call, second: Call, message: str, undo: TensorMap = lambda out: out
) -> None:
    """Compare two calls with equal exact results with each other and with the oracle.

    Args:
        subject: the subject to judge.
        first: one call.
        second: another; `undo` of its exact result is the exact result of the first.
        message: the message of a failure.
        undo: moves elements of an output and computes nothing.
    """
    out, expected = call_and_judge(subject, first, "the output is wrong before anything is changed")
    again, expected_again = call_and_judge(subject, second, message)
    again = undo(again)
    # NaN and overflow, where allowed, were judged against the oracle
    comparable = out.isfinite() & again.isfinite()
    check_close(
        again,
        torch.where(comparable, out, again).double(),
        expected.bound + undo(expected_again.bound),
        what="out",
        message=message,
        dtype=first.value.dtype,
        may_be_nan=expected.may_be_nan,
    )
    require_evidence(first, expected, expected_again)
