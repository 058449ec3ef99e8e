"""Laws of NUM: a NaN or an infinity that may be read is never turned into a finite number."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, plain, readable
from attnspec.conformance.laws.masking_sides import check_rows
from attnspec.conformance.oracle import Expected
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=2, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
LONG = SMALL.but(keys=33, d_head=16, d_value=16)
PINNED = (
    TINIEST,
    *every(SMALL, dtype=(F32, F64, F16, BF16)),
    SMALL.but(queries=7, keys=5, is_causal=True),
    SMALL.but(mask=Mask(shape=MaskShape.FULL)),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
    *every(SMALL, keys=(1, 8, 15, 16, 17)),
    SMALL.but(keys=8, dtype=F64),
    LONG.but(dtype=F16),
    LONG.but(queries=33, is_causal=True),
    LONG.but(heads=6, kv_heads=2),
    LONG.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)),
    # kernels take keys a vector at a time, and what is left over by itself, in each type
    LONG.but(dtype=F64),
)
WIDE = (
    *every(SMALL.but(dtype=F64), keys=(1, 8, 16)),
    *every(LONG, dtype=(F32, BF16)),
    TINIEST.but(queries=65, keys=129, d_head=64, d_value=64),
)
CLEAN = (Values.NORMAL, Values.PEAKED, Values.TINY, Values.TIES)
MORE = cases(scales=POSITIVE, families=CLEAN, only=plain)


def _row(case: Case) -> int:
    """The query that a law looks at."""
    return case.seed % case.queries


def _check_rest(
    subject: Subject, poisoned: Call, expected: Expected, felt: torch.Tensor
) -> torch.Tensor:
    """Call, and hold what feels nothing of the poison to what is expected without it."""
    out = subject.call(poisoned)
    # an unreadable NaN is a question of the profile, which MSK-14 answers
    propagates = subject.implementation.profile.masked_nonfinite == "propagates"
    message = "a NaN reaches a row that may not read it"
    check_rows(poisoned, out, expected.out, expected, ~felt, message, or_nan=propagates)
    return out


def _check_nan(out: torch.Tensor, felt: torch.Tensor, message: str) -> None:
    """Demand NaN where `felt` is true.

    Raises:
        Violation: naming the first number that is none.
    """
    wrong = felt & ~out.isnan()
    if bool(wrong.any()):
        b, h, i, c = wrong.nonzero()[0].tolist()
        where = f"batch {b}, head {h}, query {i}, channel {c}"
        raise Violation(f"{message}: {out[b, h, i, c].item()} at {where}")


@law("NUM-1", judges=Judged.ATTENTION, pinned=PINNED, wide=WIDE, explore=MORE, cost=2)
def law_a_visible_nan_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: a row whose scores are all NaN, by its query or by its keys, is NaN."""
    call = subject.draw(case)
    expected = subject.expect(call)
    visible = readable(subject, call).any(-1)
    row, group = _row(case), case.heads // case.kv_heads
    query, key = call.query.clone(), call.key.clone()
    query[-1, -1, row, case.seed % case.d_head] = torch.nan
    key[-1, -1, :, case.seed % case.d_head] = torch.nan
    by_query, by_key = torch.zeros_like(visible), torch.zeros_like(visible)
    by_query[-1, -1, row] = True
    by_key[-1, -group:] = True
    for what, felt, poisoned in (
        ("a query of NaN gives a number", by_query, call.but(query=query)),
        ("a row that reads keys of NaN alone is a number", by_key, call.but(key=key)),
    ):
        out = _check_rest(subject, poisoned, expected, felt)
        _check_nan(out, (felt & visible)[..., None].expand_as(out), what)


@law(
    "NUM-1",
    judges=Judged.ATTENTION,
    pinned=[case for case in PINNED if case.keys > 1],
    wide=[case for case in WIDE if case.keys > 1],
    explore=cases(scales=POSITIVE, families=CLEAN, only=lambda case: plain(case) and case.keys > 1),
)
def law_a_readable_nan_key_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: one key of NaN among others makes every row NaN that may read it."""
    call = subject.draw(case)
    key, visible = call.key.clone(), readable(subject, call)
    place, group = _row(case) % case.keys, case.heads // case.kv_heads
    key[-1, -1, place, case.seed % case.d_head] = torch.nan
    reads = torch.zeros(visible.shape[:-1], dtype=torch.bool, device=visible.device)
    reads[-1, -group:] = visible[-1, -group:, :, place]
    out = _check_rest(subject, call.but(key=key), subject.expect(call), reads)
    # a row that reads nothing else is the other law's
    others = reads & (visible.sum(-1) > 1)
    _check_nan(out, others[..., None].expand_as(out), "a row that reads a key of NaN is a number")


@law("NUM-1", judges=Judged.ATTENTION, pinned=PINNED, wide=WIDE, explore=MORE, cost=2)
def law_a_readable_nan_value_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: a NaN in a value makes its channel NaN in every row that may read it."""
    call = subject.draw(case)
    out, felt = _with_value(subject, case, call, subject.expect(call), torch.nan)
    _check_nan(out, felt, "a row that reads a value of NaN is a number in that channel")


@law("NUM-1", judges=Judged.ATTENTION, pinned=PINNED, wide=WIDE, explore=MORE, cost=3)
def law_a_readable_infinite_value_stays_visible(subject: Subject, case: Case) -> None:
    """NUM-1: infinity in a value makes its channel that infinity, or NaN, where it may be read."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for infinity in (torch.inf, -torch.inf):
        out, felt = _with_value(subject, case, call, expected, infinity)
        # NaN is 0 * inf: a weight that is rounded to zero, which no bound excludes
        message = f"a row that reads a value of {infinity} is another number in that channel"
        _check_nan(torch.where(out == infinity, torch.nan, out), felt, message)


def _with_value(
    subject: Subject, case: Case, call: Call, expected: Expected, poison: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put poison into one value; give the output, and the elements that must show it."""
    value, visible = call.value.clone(), readable(subject, call)
    place, channel = _row(case) % case.keys, case.seed % case.d_value
    value[-1, -1, place, channel] = poison
    felt = torch.zeros((*visible.shape[:-1], case.d_value), dtype=torch.bool, device=value.device)
    group = case.heads // case.kv_heads
    felt[-1, -group:, :, channel] = visible[-1, -group:, :, place]
    touched = felt.any(-1)
    out = _check_rest(subject, call.but(value=value), expected, touched)
    rest = touched[..., None] & ~felt
    message = "poison in one channel of a value reaches another"
    check_rows(call, out, expected.out, expected, rest, message)
    return out, felt
