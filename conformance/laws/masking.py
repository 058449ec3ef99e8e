"""Laws of MSK, first part: a causal query reads its past and itself, and feels nothing else."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    claimed,
    drawn,
    evident,
    readable,
)
from attnspec.conformance.laws.masking_sides import (
    accumulator_range,
    causal,
    check_oracle,
    check_rows,
    part,
    spelled_out,
    unmoved,
)
from attnspec.conformance.oracle import Expected
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import (
    Case,
    CausalAlignment,
    Feature,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=2, d_head=2, d_value=2, dtype=F32, is_causal=True)
SMALL = TINIEST.but(batch=2, heads=3, kv_heads=3, queries=5, keys=5, d_head=8, d_value=8)
GROUPED = SMALL.but(heads=6, kv_heads=2, queries=7, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=65, keys=65, d_head=64, d_value=64)
UNEQUAL = (
    TINIEST.but(queries=3, keys=5, d_head=4, d_value=4),
    TINIEST.but(queries=5, keys=3, d_head=4, d_value=4),
    SMALL.but(queries=1, keys=16),
    SMALL.but(queries=17, keys=64, dtype=BF16),
    SMALL.but(queries=64, keys=17, dtype=F16),
)
CAUSAL = (
    TINIEST,
    *every(SMALL, dtype=(F64, F16, BF16)),
    *UNEQUAL,
    SMALL.but(d_value=3),
    GROUPED,
    TILES,
    TILES.but(queries=129, keys=129, dtype=BF16),
    TILES.but(queries=16, keys=127, values=Values.GROWING),
)
MORE = cases(causal=True, masked=False, scales=POSITIVE, only=causal)


@law(
    "MSK-1",
    judges=Judged.ATTENTION,
    pinned=CAUSAL,
    explore=MORE,
    needs={Feature.CAUSAL},
    cost=4,
)
def law_a_causal_row_attends_its_prefix(subject: Subject, case: Case) -> None:
    """MSK-1: a causal row is plain attention over the keys up to its own place."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(call)
    shift = _shift(subject, call)
    target = expected.out.clone()
    rows = torch.zeros(out.shape[:-1], dtype=torch.bool, device=out.device)
    for query in _spread(case.queries):
        until = min(max(query + shift + 1, 0), case.keys)
        if until == 0:
            continue  # an empty row: MSK-12
        alone = part(call, queries=slice(query, query + 1), keys=slice(until))
        target[:, :, query] = subject.expect(alone.but(is_causal=False), with_bound=False).out[
            :, :, 0
        ]
        rows[:, :, query] = True
    message = "a causal row is not attention over the keys up to its place"
    check_rows(call, out, target, expected, rows, message)
    evident(call, expected)


@law(
    "MSK-1",
    judges=Judged.ATTENTION,
    pinned=CAUSAL,
    explore=MORE,
    needs={Feature.CAUSAL},
    cost=3,
)
def law_a_finite_future_moves_nothing(subject: Subject, case: Case) -> None:
    """MSK-1: other finite keys and values after a query's place leave its row alone."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.judge(call, out, "wrong before anything has changed")
    for cut in {1, case.keys // 2, case.keys - 1} - {-1, 0}:
        key, value = call.key.clone(), call.value.clone()
        key[:, :, cut:] = 2 * drawn(case, f"future key {cut}", key[:, :, cut:])
        value[:, :, cut:] = 8 * drawn(case, f"future value {cut}", value[:, :, cut:])
        _held(subject, call, call.but(key=key, value=value), cut, expected, "moves with its future")
    evident(call, expected)


@law(
    "MSK-1",
    judges=Judged.ATTENTION,
    pinned=CAUSAL,
    explore=MORE,
    needs={Feature.CAUSAL},
    cost=2,
)
def law_a_large_future_moves_nothing(subject: Subject, case: Case) -> None:
    """MSK-1: keys and values after a query's place, as large as may be, leave its row alone."""
    call = subject.draw(case)
    expected = subject.expect(call)
    cut = max(case.keys // 2, 1)
    key, value = call.key.clone(), call.value.clone()
    key_size, value_size = _largest(subject, call)
    key[:, :, cut:] = key_size * drawn(case, "future key", key[:, :, cut:]).sign()
    value[:, :, cut:] = value_size * drawn(case, "future value", value[:, :, cut:]).sign()
    large = (call.but(value=value), call.but(key=key), call.but(key=key, value=value))
    for changed in large:
        _held(subject, call, changed, cut, expected, "moves with its large future")


def _held(
    subject: Subject, call: Call, changed: Call, cut: int, expected: Expected, message: str
) -> None:
    """Hold the rows that read no key from `cut` on to what they were."""
    before = ~readable(subject, call)[..., cut:].any(-1)
    out = subject.call(changed)
    check_rows(changed, out, expected.out, expected, before, f"a causal row {message}")


def _largest(subject: Subject, call: Call) -> tuple[float, float]:
    """Sizes of keys and values that keep sums below a quarter of the accumulator's range."""
    finite = torch.finfo(call.key.dtype).max / 8
    quarter = accumulator_range(subject, call.key.dtype) / 4
    scale = 1.0 if call.scale is None else max(abs(call.scale), 1.0)
    # 1.5: a kernel that takes powers of two multiplies its scores by log2(e)
    longest = float(call.query.double().abs().sum(-1).max()) * scale * 1.5
    return min(finite, quarter / max(longest, 1.0)), min(
        finite, quarter / max(call.key.shape[2], 1)
    )


def _shift(subject: Subject, call: Call) -> int:
    """The place of query 0 among the keys."""
    alignment = subject.implementation.profile.causal_alignment
    shifted = alignment is CausalAlignment.LOWER_RIGHT
    return call.key.shape[2] - call.query.shape[2] if shifted else 0


def _spread(count: int) -> list[int]:
    """A few positions: both ends, and either side of the middle."""
    return sorted({0, 1, count // 2, count - 1} & set(range(count)))


@law(
    "MSK-2",
    judges=Judged.ATTENTION,
    pinned=(
        *UNEQUAL,
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
    needs={Feature.CAUSAL},
    cost=2,
)
def law_the_diagonal_lies_where_the_profile_says(subject: Subject, case: Case) -> None:
    """MSK-2: with fewer or more queries than keys, the diagonal starts where the profile says."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(spelled_out(subject, call))
    profile = subject.implementation.profile.causal_alignment
    check_oracle(call, out, expected, f"the causal mask is not aligned {profile}")
    evident(call, expected)


@law(
    "MSK-5",
    judges=Judged.ATTENTION,
    pinned=CAUSAL,
    explore=MORE,
    needs={Feature.CAUSAL},
    cost=3,
)
def law_an_extension_changes_no_earlier_row(subject: Subject, case: Case) -> None:
    """MSK-5: appending queries and keys leaves every earlier causal row as it was."""
    call = subject.draw(case)
    kept = max(case.queries // 2, 1)
    upper_left = subject.implementation.profile.causal_alignment is CausalAlignment.UPPER_LEFT
    keys = min(kept, case.keys) if upper_left else kept + case.keys - case.queries
    if keys < 1:
        raise NotClaimed("the shorter call would have no key")
    claimed(subject, case.but(queries=kept, keys=keys))
    expected = subject.expect(call)
    shorter = part(call, queries=slice(kept), keys=slice(keys))
    short = subject.expect(shorter)
    message = "a causal row changes when queries and keys are appended"
    check_oracle(shorter, subject.call(shorter), short, message)
    target = expected.out.clone()
    target[:, :, :kept] = short.out
    rows = torch.zeros(target.shape[:-1], dtype=torch.bool, device=target.device)
    rows[:, :, :kept] = True
    check_rows(call, subject.call(call), target, expected, rows, message)
    evident(call, expected)


HIDING = (
    TINIEST.but(queries=3, keys=4, is_causal=True, mask=Mask()),
    TINIEST.but(queries=1, keys=2, is_causal=False, mask=Mask(), seed=3),
    SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS), is_causal=False),
    *every(
        SMALL.but(mask=Mask(shape=MaskShape.FULL), keys=9, is_causal=False), dtype=(F64, F16, BF16)
    ),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.HEADS), keys=9, is_causal=False),
)
CLEAN = (Values.NORMAL, Values.PEAKED, Values.TINY, Values.TIES)


@law(
    "MSK-14",
    judges=Judged.ATTENTION,
    pinned=(
        *HIDING,
        TINIEST,
        SMALL.but(queries=17, keys=19, d_head=16, d_value=16),
        GROUPED,
        TILES.but(queries=65, keys=66),
        TILES.but(queries=129, keys=129, dtype=BF16),
    ),
    wide=every(SMALL, dtype=(F64, F16, BF16)),
    explore=cases(
        scales=POSITIVE, families=CLEAN, only=lambda case: case.is_causal or case.mask is not None
    ),
    cost=4,
)
def law_unreadable_nan_and_infinity_follow_the_profile(subject: Subject, case: Case) -> None:
    """MSK-14: NaN or infinity that a query may not read moves nothing, or gives NaN by profile."""
    call = subject.draw(case)
    expected = subject.expect(call)
    visible = readable(subject, call)
    propagates = subject.implementation.profile.masked_nonfinite == "propagates"
    finite = torch.finfo(case.dtype).max
    tried = (
        ("value", torch.nan, 0),
        ("key", torch.nan, 0),
        ("value", -torch.inf, case.queries // 2),
        ("key", torch.inf, case.queries // 2),
        ("key", -torch.inf, 0),
        ("key", finite, case.queries // 2),
        ("value", torch.nan, max(case.queries - 2, 0)),
    )
    for name, poison, row in tried:
        # the keys that no head of the group may read from this row
        by_group = visible.view(case.batch, case.kv_heads, -1, case.queries, case.keys)
        hidden = ~by_group[:, :, :, row].any(2)
        changed = getattr(call, name).masked_fill(hidden[..., None], poison)
        again = call.but(**{name: changed})
        readers = (by_group & hidden[:, :, None, None]).any(-1).flatten(1, 2)
        message = f"{poison:.3g} in a {name} that a query may not read changes its row"
        out = subject.call(again)
        still = unmoved(subject, visible, readers)
        check_rows(again, out, expected.out, expected, still, message, or_nan=propagates)
    evident(call, expected)
