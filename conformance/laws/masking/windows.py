"""Laws of MSK: the keys that a window leaves readable."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.invalid import INVALID_WINDOWS
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import plain, readable, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F16,
    F64,
    FLAT,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
)
from attnspec.conformance.laws.helpers.options import (
    check_refused,
    query_positions,
    with_only_a_mask,
)
from attnspec.conformance.laws.helpers.rows import (
    check_changed_key,
    check_empty_rows,
    check_equal_call,
    check_rows,
    slice_call,
)
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.masking.causal import (
    law_unreadable_nan_and_infinity_follow_the_profile,
)
from attnspec.conformance.laws.masking.masks import law_a_query_reads_exactly_its_keys
from attnspec.spec import Case, Feature, Mask, MaskPattern, MaskShape

WINDOWS = ((1, 0), (0, 1), (0, 0), (2, 1), (None, 0), (None, 1), (0, None), (2, None), (3, 30))
OTHER_OPTIONS = (Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
WINDOWED = SMALL.but(window=(2, 1))
FAR = 2**30
"""A side longer than any sequence, whose sum with a position fits into 32 bits."""


def _has_window(case: Case) -> bool:
    """Return whether a plain case has a window that can hide a key."""
    return plain(case) and case.window not in (None, (None, None))


@law(
    "MSK-15",
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        TINIEST.but(queries=3, window=(0, 1)),
        *vary(SMALL, window=WINDOWS),
        *vary(WINDOWED, dtype=DTYPES),
        WINDOWED.but(queries=9, keys=4),
        WINDOWED.but(queries=1, window=(0, 2)),
        GROUPED.but(window=(4, 3), queries=9),
        *vary(TILES, window=((16, 0), (15, 1), (0, 33))),
        TILES.but(queries=129, keys=129, window=(63, 64), dtype=BF16),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=_has_window,
    ),
    cost=3,
)
def law_a_windowed_row_attends_its_keys_alone(subject: Subject, case: Case) -> None:
    """MSK-15: each row is attention over the keys from left before to right after its position."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(call, out, expected, "the output differs from the definition")
    left, right = case.window or (None, None)
    positions = query_positions(subject, call)[:, 0].tolist()
    target = expected.out.clone()
    for row in sorted({0, 1, case.queries // 3, case.queries // 2, case.queries - 1}):
        if row >= case.queries:
            continue
        start = 0 if left is None else max(positions[row] - left, 0)
        stop = case.keys if right is None else min(positions[row] + right + 1, case.keys)
        if start < stop:
            alone = slice_call(call, queries=slice(row, row + 1), keys=slice(start, stop))
            exact = subject.expect(alone.but(window=None), with_bound=False)
            target[:, :, row] = exact.out[:, :, 0]
    rows = torch.ones(case.queries, dtype=torch.bool, device=out.device)
    check_rows(call, out, target, expected, rows, "a row does not attend exactly its window")
    require_evidence(call, expected)


@law(
    "MSK-15",
    pinned=(
        TINIEST.but(queries=3, window=(1, 0), d_head=4, d_value=4),
        TINIEST.but(queries=3, window=(0, 1), d_head=4, d_value=4),
        *vary(SMALL, window=WINDOWS),
        *vary(WINDOWED, dtype=DTYPES),
        WINDOWED.but(is_causal=True, window=(1, 3)),
        WINDOWED.but(mask=HIDDEN),
        WINDOWED.but(queries=12, keys=6),
        *(WINDOWED.but(**{name: value}) for name, value in (("sinks", True), ("alibi", True))),
        TILES.but(keys=33, queries=35, window=(16, 0)),
        TILES.but(keys=64, window=(1, 15), dtype=F16),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        families=FLAT,
        scales=POSITIVE,
        only=lambda case: _has_window(case) and case.keys <= case.d_value,
    ),
    cost=2,
)
def law_a_window_shows_exactly_its_keys(subject: Subject, case: Case) -> None:
    """MSK-15: each key within the window has weight, and no other key has any."""
    law_a_query_reads_exactly_its_keys(subject, case)


@law(
    "MSK-15",
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 0)),
        TINIEST.but(queries=4, keys=4, window=(0, 1)),
        *vary(WINDOWED, dtype=DTYPES),
        SMALL.but(queries=9, keys=7, window=(0, 0)),
        WINDOWED.but(is_causal=True, mask=HIDDEN),
        GROUPED.but(queries=12, window=(3, 2)),
        TILES.but(queries=65, window=(17, 0)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        families=FLAT,
        scales=POSITIVE,
        only=_has_window,
    ),
    cost=5,
)
def law_a_key_affects_only_queries_whose_window_holds_it(subject: Subject, case: Case) -> None:
    """MSK-15: a changed key at the edge of a window changes only the rows that reach it."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    for key in _keys_at_edges(subject, case, call):
        unread = f"key {key} changes a query whose window does not reach it"
        read = f"key {key} does not change a query whose window reaches it"
        check_changed_key(subject, call, out, expected, key, unread, read)


def _keys_at_edges(subject: Subject, case: Case, call: Call) -> list[int]:
    """Return the last key in the window of the middle query and the next one, on each side."""
    left, right = case.window or (None, None)
    position = int(query_positions(subject, call)[case.queries // 2])
    edges = {0}
    if left is not None:
        edges |= {position - left, position - left - 1}
    if right is not None:
        edges |= {position + right, position + right + 1}
    return sorted(edge for edge in edges if 0 <= edge < case.keys)


@law(
    "MSK-15",
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 0)),
        *vary(WINDOWED, dtype=(F64, F16)),
        WINDOWED.but(mask=HIDDEN),
        SMALL.but(queries=17, keys=19, window=(3, 0), d_head=16, d_value=16),
        GROUPED.but(queries=19, window=(2, 2)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        families=FLAT,
        scales=POSITIVE,
        only=_has_window,
    ),
    cost=8,
)
def law_nan_and_infinity_beyond_the_window_follow_the_profile(subject: Subject, case: Case) -> None:
    """MSK-15: NaN or infinity beyond the window has no effect, or gives NaN by profile."""
    law_unreadable_nan_and_infinity_follow_the_profile(subject, case)


@law(
    "MSK-16",
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        TINIEST.but(queries=3, window=(0, 1)),
        *vary(WINDOWED, dtype=DTYPES),
        WINDOWED.but(is_causal=True),
        WINDOWED.but(mask=HIDDEN, queries=9),
        GROUPED.but(window=(4, 3)),
        TILES.but(window=(16, 2)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        lengths=(1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 64, 65),
        only=plain,
    ),
    cost=6,
)
def law_a_window_side_beyond_the_keys_hides_no_key(subject: Subject, case: Case) -> None:
    """MSK-16: a side of `None`, or longer than the sequence, leaves all keys on that side."""
    call = subject.draw(case)
    left, right = case.window or (None, None)
    ends = (None, case.queries + case.keys, FAR)
    for window, equal_windows in (
        ((None, None), tuple((a, b) for a, b in zip(ends, ends[1:] + ends[:1], strict=True))),
        ((left, None), tuple((left, end) for end in ends)),
        ((None, right), tuple((end, right) for end in ends)),
    ):
        expected = subject.expect(with_only_a_mask(subject, call.but(window=window)))
        for equal_window in equal_windows:
            changed = call.but(window=equal_window)
            message = f"a window of {equal_window} and one of {window} differ"
            check_equal_call(subject, changed, subject.call(changed), expected, message)
    require_evidence(call, subject.expect(call))


@law(
    "MSK-17",
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 1), is_causal=True),
        TINIEST.but(queries=4, keys=4, window=(1, 1), mask=Mask()),
        *vary(WINDOWED.but(is_causal=True), dtype=DTYPES),
        *vary(WINDOWED, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        *vary(WINDOWED.but(is_causal=True, queries=7), mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        *vary(SMALL.but(is_causal=True), window=WINDOWS),
        *vary(SMALL.but(mask=HIDDEN), window=WINDOWS),
        GROUPED.but(window=(4, 3), mask=Mask(shape=MaskShape.BATCH)),
        TILES.but(window=(16, 2), is_causal=True),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        only=lambda case: _has_window(case) and (case.is_causal or case.mask is not None),
    ),
    cost=2,
)
def law_window_mask_and_causal_flag_all_apply(subject: Subject, case: Case) -> None:
    """MSK-17: under a window, a key is read only if mask and causal flag allow it too."""
    call = subject.draw(case)
    expected = subject.expect(with_only_a_mask(subject, call))
    message = "the window and the other ways to hide a key do not all apply"
    check_equal_call(subject, call, subject.call(call), expected, message)
    require_evidence(call, expected)


@law(
    "MSK-17",
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        *vary(SMALL.but(window=(2, 0)), dtype=DTYPES),
        *vary(SMALL, window=((0, 0), (None, 0))),
        SMALL.but(queries=9, keys=4, window=(3, 0)),
        TILES.but(window=(16, 0)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHER_OPTIONS,
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=plain,
    ),
    needs={Feature.CAUSAL},
    cost=3,
)
def law_a_window_with_right_side_zero_is_causal(subject: Subject, case: Case) -> None:
    """MSK-17: a window that ends at the query's own position hides what the causal flag hides."""
    left = (case.window or (None, None))[0]
    call = subject.draw(case, window=(left, 0))
    expected = subject.expect(call)
    for window, flag in (((left, 0), False), ((left, None), True), ((left, 3), True)):
        changed = call.but(window=window, is_causal=flag)
        message = f"window {window} with is_causal={flag} does not end at the query's own position"
        check_oracle(changed, subject.call(changed), expected, message)
    require_evidence(call, expected)


@law(
    "MSK-18",
    pinned=(
        TINIEST.but(queries=5, keys=2, window=(1, 0)),
        *vary(SMALL.but(queries=13, keys=4, window=(2, 1)), dtype=DTYPES),
        SMALL.but(queries=9, keys=4, window=(0, 0)),
        SMALL.but(window=(1, 0), mask=EMPTY_ROWS),
        SMALL.but(window=(0, 0), mask=EMPTY_ROWS, dtype=BF16),
        SMALL.but(window=(0, 0), mask=Mask(pattern=MaskPattern.LEFT_PADDING), seed=3),
        GROUPED.but(queries=24, window=(3, 2)),
        TILES.but(queries=129, window=(16, 0)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=(Feature.SOFTCAP, Feature.ALIBI),
        scales=POSITIVE,
        only=lambda case: _has_window(case) and (case.queries > case.keys or case.mask is not None),
    ),
)
def law_a_window_without_keys_gives_an_empty_row(subject: Subject, case: Case) -> None:
    """MSK-18: a query whose window holds no key gives what the profile says of empty rows."""
    call = subject.draw(case)
    if bool(readable(subject, call).any(-1).all()):
        raise NotClaimed("every query reads a key")
    expected = subject.expect(call)
    out = subject.call(call)
    message = "a query whose window holds no key does not give"
    check_empty_rows(subject, call, out, expected, message)
    check_oracle(call, out, expected, "a row beside an empty one is wrong")


@law(
    "MSK-19",
    "TEN-20",
    pinned=(TINIEST, *vary(SMALL, dtype=DTYPES), GROUPED, TILES),
    explore=cases(masked=False, causal=False, scales=POSITIVE, lengths=(1, 2, 3, 5, 16, 17)),
    needs={Feature.WINDOW, Feature.VALIDATES},
    cost=6,
)
def law_a_negative_window_side_is_refused(subject: Subject, case: Case) -> None:
    """MSK-19: a window with a negative side raises; nothing comes back."""
    call = subject.draw(case)
    for window in (*INVALID_WINDOWS, (-case.keys, 0)):
        check_refused(subject, call.but(window=window), f"a window of {window}")
