"""Helpers of the laws of MSK, HED, TEN and NUM: comparing some rows, and slicing calls."""

import torch
from jaxtyping import Bool, Float

from attnspec.conformance.attention.bounds.roundoff import working_dtype
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import (
    empty_rows_of,
    plain,
    readable,
    repeat_kv,
    require_evidence,
)
from attnspec.spec import Case, EmptyRow, RoundingLevel


def has_mask(case: Case) -> bool:
    """Return whether a plain case has a mask: exploration drops one that a subject refuses."""
    return case.mask is not None and plain(case)


def has_causal_flag(case: Case) -> bool:
    """Return whether a case has the causal flag."""
    return case.is_causal


def check_rows(
    call: Call,
    out: torch.Tensor,
    target: Float[torch.Tensor, "batch heads queries d_value"],
    expected: Expected,
    rows: Bool[torch.Tensor, "batch heads queries"] | Bool[torch.Tensor, "..."],
    message: str,
    *,
    or_nan: bool = False,
) -> None:
    """Compare a part of an output with a target, each element within the bound of `expected`.

    Args:
        call: the call that was made.
        out: its output.
        target: the expected output, in float64.
        expected: gives the bound.
        rows: true for rows, or elements, to judge; the others may hold anything.
        message: the message of a failure.
        or_nan: whether NaN is allowed as well.

    Raises:
        Violation: naming the worst element.
    """
    if rows.dim() < target.dim():
        rows = rows[..., None].expand(target.shape)
    check_close(
        out,
        torch.where(rows, target, 0.0),
        torch.where(rows, expected.bound, torch.inf),
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=rows if or_nan else expected.may_be_nan,
    )


def unaffected_rows(
    subject: Subject,
    visible: Bool[torch.Tensor, "batch heads queries keys"],
    readers: Bool[torch.Tensor, "batch heads queries"],
) -> Bool[torch.Tensor, "batch heads queries"]:
    """Return the rows that a change must not affect: all but those that may read what changed.

    If the profile gives an empty row the mean of all values, that row depends on every key; so may
    one whose output is undefined, because two ways to hide keys disagree on it.
    """
    answers = {*subject.implementation.profile.empty_row_answers.values()}
    if EmptyRow.MEAN in answers or len(answers) > 1:
        readers = readers | ~visible.any(-1)
    return ~readers


def check_empty_rows(
    subject: Subject, call: Call, out: torch.Tensor, expected: Expected, message: str
) -> None:
    """Compare the rows of an output that may read no key with what the subject declares for them.

    Args:
        subject: declares the output of an empty row.
        call: the call that was made, without sinks.
        out: its output.
        expected: gives the bound of a mean.
        message: the message of a failure, to which the declared output is added.

    Raises:
        Violation: naming the worst element.
    """
    mean = repeat_kv(subject, call.value.double(), call.query.shape[1]).mean(2, keepdim=True)
    targets = {
        EmptyRow.ZERO: torch.zeros_like(expected.out),
        EmptyRow.MEAN: mean.expand_as(expected.out),
        EmptyRow.NAN: torch.full_like(expected.out, torch.nan),
    }
    for answer, rows in empty_rows_of(subject, call).items():
        if answer is not None:
            check_rows(call, out, targets[answer], expected, rows, f"{message} {answer}")


def check_changed_key(
    subject: Subject,
    call: Call,
    out: torch.Tensor,
    expected: Expected,
    key: int,
    unread: str,
    read: str,
) -> None:
    """Change one key and its value, and check that exactly the rows that may read it change.

    Args:
        subject: the subject to judge.
        call: the call before the change.
        out: its output.
        expected: its expected output.
        key: the index of the key.
        unread: the message if a row changes that may not read the key.
        read: the message if a row does not change that may read it.

    Raises:
        Violation: naming the first wrong row.
    """
    visible = readable(subject, call)
    keys, values = call.key.clone(), call.value.clone()
    keys[:, :, key] = keys[:, :, key].flip(-1)
    values[:, :, key] += 64
    changed = call.but(key=keys, value=values)
    again, expected_again = subject.call(changed), subject.expect(changed)
    readers = visible[..., key]
    unaffected = unaffected_rows(subject, visible, readers)
    check_rows(changed, again, expected.out, expected, unaffected, unread)
    slack = expected_again.bound + expected.bound
    must_change = ((expected_again.out - expected.out).abs() > 2 * slack).any(-1)
    still = ((again.double() - out.double()).abs() <= slack).all(-1)
    unmoved = readers & must_change & still
    if bool(unmoved.any()):
        b, h, i = unmoved.nonzero()[0].tolist()
        raise Violation(f"{read}: batch {b}, head {h}, query {i}")
    check_oracle(changed, again, expected_again, f"the output is wrong after a change of key {key}")


def check_equal_call(
    subject: Subject, call: Call, out: torch.Tensor, expected: Expected, message: str
) -> None:
    """Check an output against the oracle's result of a call that hides the same keys otherwise.

    Empty rows are left out if the subject declares another output for another way to hide keys.

    Raises:
        Violation: naming the worst element.
    """
    rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
    if len({*subject.implementation.profile.empty_row_answers.values()}) > 1:
        rows = readable(subject, call).any(-1)
    check_rows(call, out, expected.out, expected, rows, message)


def with_explicit_mask(subject: Subject, call: Call) -> Call:
    """Return the same call with one full mask in place of mask and causal flag."""
    visible = readable(subject, call)
    mask = visible
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        mask = call.attn_mask.expand(visible.shape).masked_fill(~visible, -torch.inf)
    return call.but(attn_mask=mask.contiguous(), is_causal=False)


def additive_mask(
    visible: torch.Tensor, dtype: torch.dtype, hidden: float = -torch.inf
) -> torch.Tensor:
    """Return a bool mask as a float mask: 0 at readable keys, `hidden` at others."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
        ~visible, hidden
    )


def slice_call(
    call: Call,
    *,
    batch: slice = slice(None),
    queries: slice = slice(None),
    keys: slice = slice(None),
) -> Call:
    """Return the call of some batch elements, queries and keys, without its mask."""
    return call.but(
        query=call.query[batch, :, queries],
        key=call.key[batch, :, keys],
        value=call.value[batch, :, keys],
        attn_mask=None,
    )


def accumulator_range(subject: Subject, dtype: torch.dtype) -> float:
    """Return the largest number that every intermediate result of a subject can hold."""
    profile = subject.implementation.profile
    dtype = working_dtype(dtype, profile)
    if profile.rounding.level is RoundingLevel.EAGER:
        return torch.finfo(dtype).max
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max


def check_readable_keys_have_weight(subject: Subject, case: Case) -> None:
    """Check that exactly the readable keys have weight, read through values of unit vectors.

    Args:
        subject: the subject to judge.
        case: a case with no more keys than value channels.

    Raises:
        Violation: if a readable key has no weight, or another key has some.
    """
    call = subject.draw(case)
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    call = call.but(value=eye.expand_as(call.value).contiguous())
    weights = subject.call(call)
    expected = subject.expect(call)
    visible = readable(subject, call)
    rows = visible.any(-1)
    seen = torch.zeros(weights.shape, dtype=torch.bool, device=weights.device)
    seen[..., : case.keys] = visible
    target = torch.where(seen, expected.out, 0.0)
    check_rows(call, weights, target, expected, rows, "a key has weight that it must not have")
    blind = seen & ~(weights > 0) & (expected.out > 2 * expected.bound)
    if bool(blind.any()):
        b, h, i, j = blind.nonzero()[0].tolist()
        where = f"batch {b}, head {h}: query {i} does not read key {j}"
        raise Violation(f"a key that may be read has no weight: {where}")
    require_evidence(call, expected)
