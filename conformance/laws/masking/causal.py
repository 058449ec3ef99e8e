"""Laws of MSK: a causal query reads its past and itself, and nothing else."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected, check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import (
    in_groups,
    normal_like,
    readable,
    repeat_kv,
    require_claimed,
    require_evidence,
    used_values,
)
from attnspec.conformance.laws.helpers.cases import BF16, CLEAN, F16, F32, F64
from attnspec.conformance.laws.helpers.rows import (
    accumulator_range,
    check_equal_call,
    check_rows,
    has_causal_flag,
    slice_call,
    unaffected_rows,
    with_explicit_mask,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    CausalAlignment,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

TINIEST = Case(queries=2, keys=2, d_head=2, d_value=2, dtype=F32, is_causal=True)
SMALL = TINIEST.but(batch=2, heads=3, kv_heads=3, queries=5, keys=5, d_head=8, d_value=8)
GROUPED = SMALL.but(heads=6, kv_heads=2, queries=7, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=65, keys=65, d_head=64, d_value=64)
UNEQUAL_LENGTHS = (
    TINIEST.but(queries=3, keys=5, d_head=4, d_value=4),
    TINIEST.but(queries=5, keys=3, d_head=4, d_value=4),
    SMALL.but(queries=1, keys=16),
    SMALL.but(queries=17, keys=64, dtype=BF16),
    SMALL.but(queries=64, keys=17, dtype=F16),
)
PINNED = (
    TINIEST,
    *vary(SMALL, dtype=(F64, F16, BF16)),
    *UNEQUAL_LENGTHS,
    SMALL.but(d_value=3),
    GROUPED,
    TILES,
    TILES.but(queries=129, keys=129, dtype=BF16),
    TILES.but(queries=16, keys=127, values=Values.GROWING),
)
CAUSAL_CASES = cases(causal=True, masked=False, scales=POSITIVE, only=has_causal_flag)


@law(
    "MSK-1",
    pinned=PINNED,
    explore=CAUSAL_CASES,
    cost=4,
)
def law_a_causal_row_attends_its_prefix(subject: Subject, case: Case) -> None:
    """MSK-1: a causal row is plain attention over the keys up to its own position."""
    _require_effect(subject, case)
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(call)
    shift = _first_position(subject, call)
    target = expected.out.clone()
    rows = torch.zeros(out.shape[:-1], dtype=torch.bool, device=out.device)
    for query in _some_positions(case.queries):
        stop = min(max(query + shift + 1, 0), case.keys)
        if stop == 0:
            continue  # an empty row: MSK-12
        alone = slice_call(call, queries=slice(query, query + 1), keys=slice(stop))
        target[:, :, query] = subject.expect(alone.but(is_causal=False), with_bound=False).out[
            :, :, 0
        ]
        rows[:, :, query] = True
    message = "a causal row is not attention over the keys up to its position"
    check_rows(call, out, target, expected, rows, message)
    require_evidence(call, expected)


@law(
    "MSK-1",
    pinned=PINNED,
    explore=CAUSAL_CASES,
    cost=3,
)
def law_finite_later_keys_change_nothing(subject: Subject, case: Case) -> None:
    """MSK-1: other finite keys and values after a query's position leave its row alone."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.judge(call, out, "the output is wrong before anything is changed")
    for cut in {1, case.keys // 2, case.keys - 1} - {-1, 0}:
        key, value = call.key.clone(), call.value.clone()
        key[:, :, cut:] = 2 * normal_like(case, f"future key {cut}", key[:, :, cut:])
        value[:, :, cut:] = 8 * normal_like(case, f"future value {cut}", value[:, :, cut:])
        _check_rows_before(
            subject, call, call.but(key=key, value=value), cut, expected, "changes with its future"
        )
    require_evidence(call, expected)


@law(
    "MSK-1",
    pinned=PINNED,
    explore=CAUSAL_CASES,
    cost=2,
)
def law_large_later_keys_change_nothing(subject: Subject, case: Case) -> None:
    """MSK-1: keys and values after a query's position, as large as may be, leave its row alone."""
    call = subject.draw(case)
    expected = subject.expect(call)
    cut = max(case.keys // 2, 1)
    key, value = call.key.clone(), call.value.clone()
    key_size, value_size = largest_sizes(subject, call)
    key[:, :, cut:] = key_size * normal_like(case, "future key", key[:, :, cut:]).sign()
    value[:, :, cut:] = value_size * normal_like(case, "future value", value[:, :, cut:]).sign()
    large = (call.but(value=value), call.but(key=key), call.but(key=key, value=value))
    for changed in large:
        _check_rows_before(subject, call, changed, cut, expected, "changes with its large future")


def _check_rows_before(
    subject: Subject, call: Call, changed: Call, cut: int, expected: Expected, message: str
) -> None:
    """Check that the rows that use no key or value from `cut` on are unchanged."""
    before = ~used_values(subject, call)[..., cut:].any(-1)
    out = subject.call(changed)
    check_rows(changed, out, expected.out, expected, before, f"a causal row {message}")


def largest_sizes(subject: Subject, call: Call) -> tuple[float, float]:
    """Return sizes of keys and values that keep sums below a quarter of the accumulator range."""
    finite = torch.finfo(call.key.dtype).max / 8
    quarter = accumulator_range(subject, call.key.dtype) / 4
    scale = 1.0 if call.scale is None else max(abs(call.scale), 1.0)
    # 1.5: a kernel that computes powers of two multiplies its scores by log2(e)
    longest = float(call.query.double().abs().sum(-1).max()) * scale * 1.5
    return min(finite, quarter / max(longest, 1.0)), min(
        finite, quarter / max(call.key.shape[2], 1)
    )


def _first_position(subject: Subject, call: Call) -> int:
    """Return the position of query 0 among the keys."""
    alignment = subject.implementation.profile.causal_alignment
    shifted = alignment is CausalAlignment.LOWER_RIGHT
    return call.key.shape[2] - call.query.shape[2] if shifted else 0


def _require_effect(subject: Subject, case: Case) -> None:
    """Require that the causal flag of a case hides what the clauses of earlier rows say.

    Raises:
        NotClaimed: if the case has a single query, for which the profile ignores the flag.
    """
    if subject.implementation.profile.ignores_causal_flag(case.queries):
        raise NotClaimed("the profile ignores the causal flag of a single query")


def _some_positions(count: int) -> list[int]:
    """Return a few positions: two at the start, one in the middle and the last."""
    return sorted({0, 1, count // 2, count - 1} & set(range(count)))


@law(
    "MSK-2",
    pinned=(
        *UNEQUAL_LENGTHS,
        TINIEST.but(queries=1, keys=2),
        TINIEST.but(queries=2, keys=1),
        SMALL.but(dtype=F64, queries=4, keys=7),
        GROUPED,
        TILES.but(keys=129),
        TILES.but(queries=128, keys=63, dtype=BF16),
    ),
    explore=cases(
        causal=True,
        masked=False,
        scales=POSITIVE,
        only=lambda case: case.is_causal and case.queries != case.keys,
    ),
    cost=2,
)
def law_the_diagonal_lies_where_the_profile_says(subject: Subject, case: Case) -> None:
    """MSK-2: with fewer or more queries than keys, the diagonal starts where the profile says."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(with_explicit_mask(subject, call))
    profile = subject.implementation.profile.causal_alignment
    message = f"the causal mask is not aligned {profile}"
    check_equal_call(subject, call, out, expected, message)
    require_evidence(call, expected)


@law(
    "MSK-5",
    pinned=PINNED,
    explore=CAUSAL_CASES,
    cost=3,
)
def law_an_extension_changes_no_earlier_row(subject: Subject, case: Case) -> None:
    """MSK-5: appending queries and keys leaves every earlier causal row as it was."""
    _require_effect(subject, case)
    call = subject.draw(case)
    queries = max(case.queries // 2, 1)
    upper_left = subject.implementation.profile.causal_alignment is CausalAlignment.UPPER_LEFT
    keys = min(queries, case.keys) if upper_left else queries + case.keys - case.queries
    if keys < 1:
        raise NotClaimed("the shorter call would have no key")
    require_claimed(subject, case.but(queries=queries, keys=keys))
    expected = subject.expect(call)
    shorter = slice_call(call, queries=slice(queries), keys=slice(keys))
    short = subject.expect(shorter)
    message = "a causal row changes when queries and keys are appended"
    check_oracle(shorter, subject.call(shorter), short, message)
    target = expected.out.clone()
    target[:, :, :queries] = short.out
    # an empty row that is the mean of all values uses the appended ones too
    rows = ~used_values(subject, call)[..., keys:].any(-1)
    rows[:, :, queries:] = False
    check_rows(call, subject.call(call), target, expected, rows, message)
    require_evidence(call, expected)


MASKED_CASES = (
    TINIEST.but(queries=3, keys=4, is_causal=True, mask=Mask()),
    TINIEST.but(queries=1, keys=2, is_causal=False, mask=Mask(), seed=3),
    SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS), is_causal=False),
    *vary(
        SMALL.but(mask=Mask(shape=MaskShape.FULL), keys=9, is_causal=False), dtype=(F64, F16, BF16)
    ),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.HEADS), keys=9, is_causal=False),
)


@law(
    "MSK-14",
    pinned=(
        *MASKED_CASES,
        TINIEST,
        SMALL.but(queries=17, keys=19, d_head=16, d_value=16),
        GROUPED,
        TILES.but(queries=65, keys=66),
        TILES.but(queries=129, keys=129, dtype=BF16),
    ),
    wide=vary(SMALL, dtype=(F64, F16, BF16)),
    explore=cases(
        scales=POSITIVE, families=CLEAN, only=lambda case: case.is_causal or case.mask is not None
    ),
    cost=4,
)
def law_unreadable_nan_and_infinity_follow_the_profile(subject: Subject, case: Case) -> None:
    """MSK-14: NaN or infinity that a query may not read has no effect, or gives NaN by profile."""
    call = subject.draw(case)
    expected = subject.expect(call)
    visible = readable(subject, call)
    profile = subject.implementation.profile
    answers = {"key": profile.masked_keys, "value": profile.masked_values}
    finite = torch.finfo(case.dtype).max
    poisons = (
        ("value", torch.nan, 0),
        ("key", torch.nan, 0),
        ("value", -torch.inf, case.queries // 2),
        ("key", torch.inf, case.queries // 2),
        ("key", -torch.inf, 0),
        ("key", finite, case.queries // 2),
        ("value", torch.nan, max(case.queries - 2, 0)),
    )
    for name, poison, row in poisons:
        # the keys that no head of the group may read from this row
        by_group = in_groups(subject, visible, case.kv_heads)
        hidden = ~by_group[:, :, :, row].any(2)
        changed = getattr(call, name).masked_fill(hidden[..., None], poison)
        again = call.but(**{name: changed})
        readers = (visible & repeat_kv(subject, hidden, case.heads)[:, :, None]).any(-1)
        message = f"{poison:.3g} in a {name} that a query may not read changes its row"
        out = subject.call(again)
        unaffected = unaffected_rows(subject, visible, readers)
        check_rows(
            again,
            out,
            expected.out,
            expected,
            unaffected,
            message,
            or_nan=answers[name] == "propagates",
        )
    require_evidence(call, expected)
