"""Laws of MSK, fourth part: which keys a window leaves."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, evident, plain, readable
from attnspec.conformance.laws.masking import law_unreadable_nan_and_infinity_follow_the_profile
from attnspec.conformance.laws.masking_sides import check_oracle, check_rows, part, unmoved
from attnspec.conformance.laws.masking_visibility import law_a_query_reads_exactly_its_keys
from attnspec.conformance.laws.options_sides import (
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
    check_refused,
    masked_out,
    places,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Mask, MaskPattern, MaskShape

WINDOWS = ((1, 0), (0, 1), (0, 0), (2, 1), (None, 0), (None, 1), (0, None), (2, None), (3, 30))
OTHERS = (Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
NARROW = SMALL.but(window=(2, 1))
FAR = 2**30
"""A side longer than any sequence, whose sum with a place fits into 32 bits."""


def _windowed(case: Case) -> bool:
    """True for plain cases whose window hides something in principle."""
    return plain(case) and case.window not in (None, (None, None))


@law(
    "MSK-15",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        TINIEST.but(queries=3, window=(0, 1)),
        *every(SMALL, window=WINDOWS),
        *every(NARROW, dtype=DTYPES),
        NARROW.but(queries=9, keys=4),
        NARROW.but(queries=1, window=(0, 2)),
        GROUPED.but(window=(4, 3), queries=9),
        *every(TILES, window=((16, 0), (15, 1), (0, 33))),
        TILES.but(queries=129, keys=129, window=(63, 64), dtype=BF16),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=_windowed,
    ),
    needs={Feature.WINDOW},
    cost=3,
)
def law_a_windowed_row_attends_its_keys_alone(subject: Subject, case: Case) -> None:
    """MSK-15: each row is attention over the keys from its place - left to its place + right."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(call, out, expected, "the output is not that of the definition")
    left, right = case.window or (None, None)
    place = places(subject, call)[:, 0].tolist()
    target = expected.out.clone()
    for row in sorted({0, 1, case.queries // 3, case.queries // 2, case.queries - 1}):
        if row >= case.queries:
            continue
        start = 0 if left is None else max(place[row] - left, 0)
        stop = case.keys if right is None else min(place[row] + right + 1, case.keys)
        if start < stop:
            alone = part(call, queries=slice(row, row + 1), keys=slice(start, stop))
            exact = subject.expect(alone.but(window=None), with_bound=False)
            target[:, :, row] = exact.out[:, :, 0]
    rows = torch.ones(case.queries, dtype=torch.bool, device=out.device)
    check_rows(call, out, target, expected, rows, "a row does not attend exactly its window")
    evident(call, expected)


@law(
    "MSK-15",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=3, window=(1, 0), d_head=4, d_value=4),
        TINIEST.but(queries=3, window=(0, 1), d_head=4, d_value=4),
        *every(SMALL, window=WINDOWS),
        *every(NARROW, dtype=DTYPES),
        NARROW.but(is_causal=True, window=(1, 3)),
        NARROW.but(mask=HIDDEN),
        NARROW.but(queries=12, keys=6),
        *(NARROW.but(**{name: value}) for name, value in (("sinks", True), ("alibi", True))),
        TILES.but(keys=33, queries=35, window=(16, 0)),
        TILES.but(keys=64, window=(1, 15), dtype=F16),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHERS,
        families=FLAT,
        scales=POSITIVE,
        only=lambda case: _windowed(case) and case.keys <= case.d_value,
    ),
    needs={Feature.WINDOW},
    cost=2,
)
def law_a_window_shows_exactly_its_keys(subject: Subject, case: Case) -> None:
    """MSK-15: each key within the window has weight, and no other key has any."""
    law_a_query_reads_exactly_its_keys(subject, case)


@law(
    "MSK-15",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 0)),
        TINIEST.but(queries=4, keys=4, window=(0, 1)),
        *every(NARROW, dtype=DTYPES),
        SMALL.but(queries=9, keys=7, window=(0, 0)),
        NARROW.but(is_causal=True, mask=HIDDEN),
        GROUPED.but(queries=12, window=(3, 2)),
        TILES.but(queries=65, window=(17, 0)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHERS,
        families=FLAT,
        scales=POSITIVE,
        only=_windowed,
    ),
    needs={Feature.WINDOW},
    cost=5,
)
def law_a_key_is_felt_within_the_window_alone(subject: Subject, case: Case) -> None:
    """MSK-15: another key at the edge of a window moves the rows that reach it, and no other."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    visible = readable(subject, call)
    for edge in _edges(subject, case, call):
        key, value = call.key.clone(), call.value.clone()
        key[:, :, edge] = key[:, :, edge].flip(-1)
        value[:, :, edge] += 64
        changed = call.but(key=key, value=value)
        again, also = subject.call(changed), subject.expect(changed)
        readers = visible[..., edge]
        message = f"a query feels key {edge}, which its window does not reach"
        check_rows(
            changed, again, expected.out, expected, unmoved(subject, visible, readers), message
        )
        certain = ((also.out - expected.out).abs() > 2 * (also.bound + expected.bound)).any(-1)
        still = ((again.double() - out.double()).abs() <= also.bound + expected.bound).all(-1)
        deaf = readers & certain & still
        if bool(deaf.any()):
            b, h, i = deaf.nonzero()[0].tolist()
            where = f"batch {b}, head {h}, query {i}"
            raise Violation(f"a query does not feel key {edge}, which its window reaches: {where}")
        check_oracle(changed, again, also, f"wrong after a change of key {edge}")


def _edges(subject: Subject, case: Case, call: Call) -> list[int]:
    """The last key within the window of the middle query and the first beyond it, on each side."""
    left, right = case.window or (None, None)
    place = int(places(subject, call)[case.queries // 2])
    edges = {0}
    if left is not None:
        edges |= {place - left, place - left - 1}
    if right is not None:
        edges |= {place + right, place + right + 1}
    return sorted(edge for edge in edges if 0 <= edge < case.keys)


@law(
    "MSK-15",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 0)),
        *every(NARROW, dtype=(F64, F16)),
        NARROW.but(mask=HIDDEN),
        SMALL.but(queries=17, keys=19, window=(3, 0), d_head=16, d_value=16),
        GROUPED.but(queries=19, window=(2, 2)),
    ),
    explore=cases(
        always=(Feature.WINDOW,), sometimes=OTHERS, families=FLAT, scales=POSITIVE, only=_windowed
    ),
    needs={Feature.WINDOW},
    cost=8,
)
def law_poison_beyond_the_window_follows_the_profile(subject: Subject, case: Case) -> None:
    """MSK-15: NaN or infinity beyond the window moves nothing, or gives NaN by profile."""
    law_unreadable_nan_and_infinity_follow_the_profile(subject, case)


@law(
    "MSK-16",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        TINIEST.but(queries=3, window=(0, 1)),
        *every(NARROW, dtype=DTYPES),
        NARROW.but(is_causal=True),
        NARROW.but(mask=HIDDEN, queries=9),
        GROUPED.but(window=(4, 3)),
        TILES.but(window=(16, 2)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHERS,
        scales=POSITIVE,
        lengths=(1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 64, 65),
        only=plain,
    ),
    needs={Feature.WINDOW},
    cost=6,
)
def law_a_side_beyond_the_ends_hides_nothing(subject: Subject, case: Case) -> None:
    """MSK-16: a side of `None`, or longer than the sequence, leaves all keys on that side."""
    call = subject.draw(case)
    left, right = case.window or (None, None)
    ends = (None, case.queries + case.keys, FAR)
    for window, all_alike in (
        ((None, None), tuple((a, b) for a, b in zip(ends, ends[1:] + ends[:1], strict=True))),
        ((left, None), tuple((left, end) for end in ends)),
        ((None, right), tuple((end, right) for end in ends)),
    ):
        expected = subject.expect(masked_out(subject, call.but(window=window)))
        for each in all_alike:
            given = call.but(window=each)
            message = f"a window of {each} is not what a window of {window} is"
            check_oracle(given, subject.call(given), expected, message)
    evident(call, subject.expect(call))


@law(
    "MSK-17",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=4, keys=4, window=(1, 1), is_causal=True),
        TINIEST.but(queries=4, keys=4, window=(1, 1), mask=Mask()),
        *every(NARROW.but(is_causal=True), dtype=DTYPES),
        *every(NARROW, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        *every(NARROW.but(is_causal=True, queries=7), mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        *every(SMALL.but(is_causal=True), window=WINDOWS),
        *every(SMALL.but(mask=HIDDEN), window=WINDOWS),
        GROUPED.but(window=(4, 3), mask=Mask(shape=MaskShape.BATCH)),
        TILES.but(window=(16, 2), is_causal=True),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: _windowed(case) and (case.is_causal or case.mask is not None),
    ),
    needs={Feature.WINDOW},
    cost=2,
)
def law_window_mask_and_causal_flag_all_apply(subject: Subject, case: Case) -> None:
    """MSK-17: under a window, a key is read only where mask and causal flag allow it too."""
    call = subject.draw(case)
    expected = subject.expect(masked_out(subject, call))
    message = "the window and the other ways to hide a key do not all apply"
    check_oracle(call, subject.call(call), expected, message)
    evident(call, expected)


@law(
    "MSK-17",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=3, window=(1, 0)),
        *every(SMALL.but(window=(2, 0)), dtype=DTYPES),
        *every(SMALL, window=((0, 0), (None, 0))),
        SMALL.but(queries=9, keys=4, window=(3, 0)),
        TILES.but(window=(16, 0)),
    ),
    explore=cases(
        always=(Feature.WINDOW,),
        sometimes=OTHERS,
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=plain,
    ),
    needs={Feature.WINDOW, Feature.CAUSAL},
    cost=3,
)
def law_a_right_side_of_zero_is_the_causal_flag(subject: Subject, case: Case) -> None:
    """MSK-17: a window that ends at the query's own place hides what the causal flag hides."""
    left = (case.window or (None, None))[0]
    call = subject.draw(case, window=(left, 0))
    expected = subject.expect(call)
    for window, flag in (((left, 0), False), ((left, None), True), ((left, 3), True)):
        each = call.but(window=window, is_causal=flag)
        message = f"window {window} with is_causal={flag} does not end at the query's own place"
        check_oracle(each, subject.call(each), expected, message)
    evident(call, expected)


@law(
    "MSK-18",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=5, keys=2, window=(1, 0)),
        *every(SMALL.but(queries=13, keys=4, window=(2, 1)), dtype=DTYPES),
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
        only=lambda case: _windowed(case) and (case.queries > case.keys or case.mask is not None),
    ),
    needs={Feature.WINDOW},
)
def law_a_window_that_reaches_nothing_gives_an_empty_row(subject: Subject, case: Case) -> None:
    """MSK-18: a query whose window holds no key gives what the profile says of empty rows."""
    call = subject.draw(case)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads a key")
    expected = subject.expect(call)
    out = subject.call(call)
    match subject.implementation.profile.empty_row:
        case "zero":
            target = torch.zeros_like(expected.out)
        case "nan":
            target = torch.full_like(expected.out, torch.nan)
        case _:
            mean = call.value.double().mean(2, keepdim=True)
            mean = mean.repeat_interleave(case.heads // case.kv_heads, dim=1)
            target = mean.expand_as(expected.out)
    message = "a query whose window holds no key does not give what the profile declares"
    check_rows(call, out, target, expected, empty, message)
    check_oracle(call, out, expected, "a row beside an empty one is wrong")


@law(
    "MSK-19",
    judges=Judged.ATTENTION,
    pinned=(TINIEST, *every(SMALL, dtype=DTYPES), GROUPED, TILES),
    explore=cases(masked=False, causal=False, scales=POSITIVE, lengths=(1, 2, 3, 5, 16, 17)),
    needs={Feature.WINDOW},
    cost=6,
)
def law_a_negative_side_is_refused(subject: Subject, case: Case) -> None:
    """MSK-19: a window with a negative side raises; nothing comes back."""
    call = subject.draw(case)
    for window in ((-1, 1), (1, -1), (-1, -1), (None, -2), (-2, None), (-case.keys, 0)):
        check_refused(subject, call.but(window=window), f"a window of {window}")
