"""Laws of NUM: a readable NaN or infinity never becomes a finite number."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import kv_head_of, plain, readable, used_values
from attnspec.conformance.laws.helpers.cases import BF16, CLEAN, DTYPES, F16, F32, F64, SMALL
from attnspec.conformance.laws.helpers.rows import check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, MaskedNonfinite, MaskKind, MaskPattern, MaskShape

TINIEST = Case(queries=2, keys=2, d_head=2, d_value=2, dtype=F32)
LONG = SMALL.but(keys=33, d_head=16, d_value=16)
PINNED = (
    TINIEST,
    *vary(SMALL, dtype=DTYPES),
    SMALL.but(queries=7, keys=5, is_causal=True),
    SMALL.but(mask=Mask(shape=MaskShape.FULL)),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
    *vary(SMALL, keys=(1, 8, 15, 16, 17)),
    SMALL.but(keys=8, dtype=F64),
    LONG.but(dtype=F16),
    LONG.but(queries=33, is_causal=True),
    LONG.but(heads=6, kv_heads=2),
    LONG.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)),
    # kernels process keys by vectors, and the remainder by another loop, in each dtype
    LONG.but(dtype=F64),
)
WIDE = (
    *vary(SMALL.but(dtype=F64), keys=(1, 8, 16)),
    *vary(LONG, dtype=(F32, BF16)),
    TINIEST.but(queries=65, keys=129, d_head=64, d_value=64),
)
CLEAN_CASES = cases(scales=POSITIVE, families=CLEAN, only=plain)


def _poisoned_row(case: Case) -> int:
    """Return the query that a law poisons."""
    return case.seed % case.queries


def _check_unaffected(
    subject: Subject,
    poisoned: Call,
    expected: Expected,
    affected: torch.Tensor,
    masked: MaskedNonfinite,
) -> torch.Tensor:
    """Make a poisoned call and check that rows that must not depend on the poison are unchanged.

    `masked` is what the subject declares of the operand, by which MSK-14 judges unreadable NaN.
    """
    out = subject.call(poisoned)
    propagates = masked is MaskedNonfinite.PROPAGATES
    message = "a NaN reaches a row that may not read it"
    check_rows(poisoned, out, expected.out, expected, ~affected, message, or_nan=propagates)
    return out


def check_nan(out: torch.Tensor, affected: torch.Tensor, message: str) -> None:
    """Require NaN where `affected` is true.

    Raises:
        Violation: naming the first element that is not NaN.
    """
    wrong = affected & ~out.isnan()
    if bool(wrong.any()):
        b, h, i, c = wrong.nonzero()[0].tolist()
        where = f"batch {b}, head {h}, query {i}, channel {c}"
        raise Violation(f"{message}: {out[b, h, i, c].item()} at {where}")


@law("NUM-1", pinned=PINNED, wide=WIDE, explore=CLEAN_CASES, cost=2)
def law_a_visible_nan_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: a row whose scores are all NaN, by its query or by its keys, is NaN."""
    call = subject.draw(case)
    expected = subject.expect(call)
    visible = readable(subject, call).any(-1)
    row, in_last = _poisoned_row(case), kv_head_of(subject, call) == case.kv_heads - 1
    query, key = call.query.clone(), call.key.clone()
    query[-1, -1, row, case.seed % case.d_head] = torch.nan
    key[-1, -1, :, case.seed % case.d_head] = torch.nan
    by_query, by_key = torch.zeros_like(visible), torch.zeros_like(visible)
    by_query[-1, -1, row] = True
    by_key[-1, in_last] = True
    for message, affected, poisoned in (
        ("a query of NaN gives a number", by_query, call.but(query=query)),
        ("a row that reads keys of NaN alone is a number", by_key, call.but(key=key)),
    ):
        masked = subject.implementation.profile.masked_keys
        out = _check_unaffected(subject, poisoned, expected, affected, masked)
        check_nan(out, (affected & visible)[..., None].expand_as(out), message)


@law(
    "NUM-1",
    pinned=[case for case in PINNED if case.keys > 1],
    wide=[case for case in WIDE if case.keys > 1],
    explore=cases(scales=POSITIVE, families=CLEAN, only=lambda case: plain(case) and case.keys > 1),
)
def law_a_readable_nan_key_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: one key of NaN among others makes every row NaN that may read it."""
    call = subject.draw(case)
    key, visible = call.key.clone(), readable(subject, call)
    place, in_last = _poisoned_row(case) % case.keys, kv_head_of(subject, call) == case.kv_heads - 1
    key[-1, -1, place, case.seed % case.d_head] = torch.nan
    reads = torch.zeros(visible.shape[:-1], dtype=torch.bool, device=visible.device)
    reads[-1, in_last] = visible[-1, in_last, :, place]
    masked = subject.implementation.profile.masked_keys
    out = _check_unaffected(subject, call.but(key=key), subject.expect(call), reads, masked)
    # the other law judges rows that read no other key
    mixed_rows = reads & (visible.sum(-1) > 1)
    check_nan(
        out, mixed_rows[..., None].expand_as(out), "a row that reads a key of NaN is a number"
    )


@law("NUM-1", pinned=PINNED, wide=WIDE, explore=CLEAN_CASES, cost=2)
def law_a_readable_nan_value_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: a NaN in a value makes its channel NaN in every row that may read it."""
    call = subject.draw(case)
    out, affected = _poison_value(subject, case, call, subject.expect(call), torch.nan)
    check_nan(out, affected, "a row that reads a value of NaN is a number in that channel")


@law("NUM-1", pinned=PINNED, wide=WIDE, explore=CLEAN_CASES, cost=3)
def law_a_readable_infinite_value_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: infinity in a value makes its channel that infinity, or NaN, in rows that read it."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for infinity in (torch.inf, -torch.inf):
        out, affected = _poison_value(subject, case, call, expected, infinity)
        # a weight that is rounded to zero gives NaN, 0 * inf, which no bound excludes
        message = f"a row that reads a value of {infinity} is another number in that channel"
        check_nan(torch.where(out == infinity, torch.nan, out), affected, message)


def _poison_value(
    subject: Subject, case: Case, call: Call, expected: Expected, poison: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put poison into one value; return the output, and the elements that must show it."""
    value, visible = call.value.clone(), used_values(subject, call)
    place, channel = _poisoned_row(case) % case.keys, case.seed % case.d_value
    value[-1, -1, place, channel] = poison
    affected = torch.zeros(
        (*visible.shape[:-1], case.d_value), dtype=torch.bool, device=value.device
    )
    in_last = kv_head_of(subject, call) == case.kv_heads - 1
    affected[-1, in_last, :, channel] = visible[-1, in_last, :, place]
    affected_rows = affected.any(-1)
    masked = subject.implementation.profile.masked_values
    out = _check_unaffected(subject, call.but(value=value), expected, affected_rows, masked)
    rest = affected_rows[..., None] & ~affected
    message = "poison in one channel of a value reaches another"
    check_rows(call, out, expected.out, expected, rest, message)
    return out, affected
