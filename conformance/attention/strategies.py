"""Hypothesis strategies of cases that a subject claims."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnspec.conformance.attention.inputs import size
from attnspec.conformance.attention.subject import Subject
from attnspec.spec import (
    Case,
    Feature,
    KeyLengths,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)
from attnspec.spec.case import BIASES

SMALL = (1, 2, 3, 4, 5, 7, 8)
EDGES = (15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Lengths about the borders of the tiles that kernels use."""
WIDTHS = (1, 2, 3, 4, 5, 8, 13, 16, 32, 48, 64, 65, 96, 128)
GROUPS = ((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 2), (6, 3), (7, 1), (8, 2), (12, 4))
"""(heads, kv_heads): groups that are no power of two, and group counts unequal to group sizes."""
SCALES = (None, 1.0, 0.5, 0.1, -0.7, 0.0, 2.0)
LARGEST = 3_000_000
"""Products of two numbers in the largest case that exploration draws."""
FINITE = tuple(Values)
SIDES = (None, 0, 1, 2, 3, 7, 15, 16, 17, 64, 300)
"""Keys that a window holds on one side of a query."""
EXTRAS: dict[Feature, tuple[str, SearchStrategy[Any]]] = {
    Feature.WINDOW: ("window", st.tuples(st.sampled_from(SIDES), st.sampled_from(SIDES))),
    Feature.SOFTCAP: ("softcap", st.sampled_from((1.0, 0.5, 3.0, 20.0, 50.0))),
    Feature.SINKS: ("sinks", st.just(True)),
    Feature.ALIBI: ("alibi", st.just(True)),
    Feature.KEY_LENGTHS: ("key_lengths", st.sampled_from(KeyLengths)),
    Feature.QUERY_OFFSET: ("query_offset", st.just(True)),
    Feature.LSE: ("return_lse", st.just(True)),
    Feature.BACKWARD: ("backward", st.just(True)),
}
"""For each feature beyond mask, causal and gqa: a field of the case, and its strategy."""
PATIENCE = 60
"""Drawn cases of which none is claimed, after which no further one is drawn."""


class NothingClaimed(BaseException):
    """Raised while cases are drawn, if a subject seems to claim none of them.

    Hypothesis would reject hundreds before it gives up, which takes seconds; it lets what is no
    `Exception` pass.
    """


PLAIN = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.TIES, Values.INTEGERS)


def _one_of(choices: tuple[Any, ...]) -> SearchStrategy[Any]:
    """Return a strategy of the choices; the types are part of its key, since False equals 0."""
    return _sampled(choices, tuple(map(type, choices)))


@functools.cache
def _sampled(choices: tuple[Any, ...], _: tuple[type, ...]) -> SearchStrategy[Any]:
    """Return a cached strategy of the choices: making it takes longer than drawing from it."""
    return st.sampled_from(choices)


@st.composite
def _cases(
    draw: DrawFn,
    subject: Subject,
    *,
    lengths: tuple[int, ...] = SMALL + EDGES,
    empty: bool = False,
    families: tuple[Values, ...] = FINITE,
    scales: tuple[float | None, ...] = SCALES,
    patterns: tuple[MaskPattern, ...] = tuple(MaskPattern),
    masked: bool | None = None,
    causal: bool | None = None,
    grouped: bool | None = None,
    layouts: tuple[Layout, ...] = (Layout.CONTIGUOUS,),
    always: tuple[Feature, ...] = (),
    sometimes: tuple[Feature, ...] = (),
) -> Case:
    def pick(choices: Iterable[Any]) -> Any:
        choices = tuple(choices)
        return choices[0] if len(choices) == 1 else draw(_one_of(choices))

    claimed = subject.implementation.features
    lengths = (0, *lengths) if empty else lengths
    groups = tuple(
        pair
        for pair in GROUPS
        if (pair[0] == pair[1] or Feature.GQA in claimed) and grouped in (None, pair[0] != pair[1])
    )
    heads, kv_heads = pick(groups)
    has_mask = Feature.MASK in claimed and (pick((False, True)) if masked is None else masked)
    mask = None
    if has_mask:
        pattern = pick(patterns)
        kinds = [MaskKind.FLOAT] if pattern in BIASES else list(MaskKind)
        mask = Mask(
            kind=pick(kinds),
            pattern=pattern,
            shape=pick(MaskShape),
        )
    is_causal = Feature.CAUSAL in claimed and (pick((False, True)) if causal is None else causal)
    case = Case(
        batch=pick((1, 2, 3)),
        heads=heads,
        kv_heads=kv_heads,
        queries=pick(lengths),
        keys=pick(lengths),
        d_head=pick(WIDTHS),
        d_value=pick(WIDTHS),
        dtype=pick(subject.implementation.dtypes),
        device=subject.device,
        mask=mask,
        is_causal=is_causal,
        scale=pick(scales),
        **{
            field: draw(choices)
            for feature, (field, choices) in EXTRAS.items()
            if feature in claimed
            and (feature in always or (feature in sometimes and pick((False, True))))
        },
        values=pick(families),
        layouts=Layouts(
            query=pick(layouts),
            key=pick(layouts),
            value=pick(layouts),
            mask=pick(layouts),
        ),
        seed=pick(range(100)),
    )
    return _within(_claimed(subject, case), min(LARGEST, subject.largest))


def _claimed(subject: Subject, case: Case) -> Case:
    """Replace common refused combinations by claimed ones, so that few draws are discarded."""
    for change in ({}, {"keys": case.queries}, {"is_causal": False}, {"mask": None}):
        fitted = subject.fit(case.but(**change))
        if subject.refuses(fitted) is None:
            return fitted
    return case


def _within(case: Case, largest: float) -> Case:
    """Halve the longest axis until the case is small enough to judge quickly."""
    while size(case) > largest:
        axes = ("queries", "keys", "d_head", "d_value", "batch")
        longest = max(axes, key=lambda axis: getattr(case, axis))
        half = (getattr(case, longest) + 1) // 2
        both = {"d_head": half, "d_value": half} if case.d_head == case.d_value else {longest: half}
        case = case.but(**(both if longest.startswith("d_") else {longest: half}))
    return case


def cases(
    *,
    only: Callable[[Case], bool] = lambda case: True,
    **options: object,
) -> Callable[[Subject], SearchStrategy[Case]]:
    """Return a function from a subject to a strategy of cases that it claims.

    Args:
        only: a condition; cases that do not satisfy it are drawn again.
        options: `lengths`, `empty` (lengths of zero too), `families`, `scales`, `patterns`,
            `masked`, `causal`, `grouped` (None: drawn; else fixed), `layouts`, and the features
            of `EXTRAS` that are used `always` or `sometimes` if they are claimed.

    Examples shrink towards one head, one query, one key, one channel, no mask, float64.
    """

    def explore(subject: Subject) -> SearchStrategy[Case]:
        drawn = _cases(subject, **options)  # type: ignore[arg-type]
        count: Counter[bool] = Counter()

        def is_claimed(case: Case) -> bool:
            verdict = subject.refuses(case) is None and only(case)
            count[verdict] += 1
            if not count[True] and count[False] >= PATIENCE:
                raise NothingClaimed
            return verdict

        return drawn.filter(is_claimed)

    return explore


def vary(base: Case, **axes: Iterable[object]) -> tuple[Case, ...]:
    """Return one case per value of each axis, all else as in `base`; not their product."""
    return tuple(base.but(**{name: value}) for name, values in axes.items() for value in values)


POSITIVE = (None, 1.0, 0.5, 0.1, 2.0)
"""Scales above zero; negative scales and zero have their own law."""
