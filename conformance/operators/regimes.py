"""Regimes of operators: classes of calls for which kernels have code of their own.

A kernel selects code by the number of channels and rows, by strides and by the storage type, so
that a mistake can spoil one class of calls alone. Each axis divides calls into classes; a class is
a condition on the operands, so that both a case and a call tell their classes. Sizes straddle the
widths of vectors and tiles.

The axes below are those of operators on a tensor of rows alone; other operators have axes of their
own in their packages.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.comparison import tally
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class CallRegime:
    """A class of calls.

    Attributes:
        axis: the axis that it is a class of.
        name: its name on that axis.
        holds: whether the operands of a call are of this class.
    """

    axis: str
    name: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return f"{self.axis}: {self.name}"


Axes = Mapping[str, tuple[CallRegime, ...]]
"""The classes of each axis of an operator."""


def axis_of(name: str, **classes: Callable[[Any], bool]) -> tuple[CallRegime, ...]:
    """Return the classes of an axis; an underscore of a name is read as a space."""
    return tuple(
        CallRegime(axis=name, name=each.replace("_", " ").strip(), holds=holds)
        for each, holds in classes.items()
    )


def axis_over(classes: Iterable[CallRegime], part: Callable[[Any], Any]) -> tuple[CallRegime, ...]:
    """Return the classes of calls of which a part, such as one operand, is of these classes."""

    def over(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda call: holds(part(call))

    return tuple(replace(each, holds=over(each.holds)) for each in classes)


def _channels(low: int, high: float) -> Callable[[torch.Tensor], bool]:
    return lambda x: low <= x.shape[-1] <= high


def _rows(low: int, high: float) -> Callable[[torch.Tensor], bool]:
    return lambda x: low <= x[..., 0].numel() <= high


def _is_expanded(x: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def _is_unaligned(x: torch.Tensor) -> bool:
    return x.storage_offset() * x.element_size() % 16 != 0


AXES: Axes = {
    "channels": axis_of(
        "channels",
        _1_to_16=_channels(1, 16),
        _63_to_65=_channels(63, 65),
        _127_to_129=_channels(127, 129),
        _255_to_257=_channels(255, 257),
        _1023_to_1025=_channels(1023, 1025),
        _4096_and_more=_channels(4096, float("inf")),
    ),
    "width": axis_of(
        "width",
        odd=lambda x: x.shape[-1] % 2 == 1,
        multiple_of_16=lambda x: x.shape[-1] % 16 == 0,
    ),
    "rows": axis_of(
        "rows",
        none=_rows(0, 0),
        one=_rows(1, 1),
        _2_to_64=_rows(2, 64),
        over_256=_rows(257, float("inf")),
    ),
    "layout": axis_of(
        "layout",
        contiguous=lambda x: x.is_contiguous() and not _is_unaligned(x),
        unaligned=lambda x: x.is_contiguous() and _is_unaligned(x),
        channels_apart=lambda x: x.shape[-1] > 1 and x.stride(-1) > 1,
        rows_apart=lambda x: x.stride(-1) == 1 and not x.is_contiguous() and not _is_expanded(x),
        expanded=_is_expanded,
    ),
    "dtype": axis_of(
        "dtype",
        float64=lambda x: x.dtype == torch.float64,
        float32=lambda x: x.dtype == torch.float32,
        float16=lambda x: x.dtype == torch.float16,
        bfloat16=lambda x: x.dtype == torch.bfloat16,
    ),
    "backward": axis_of(
        "backward", no=lambda x: not x.requires_grad, yes=lambda x: x.requires_grad
    ),
}
"""The classes of each axis."""

CHANNELS = (1, 3, 8, 16, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4096, 4099)
SHAPES = ((0,), (1,), (3, 1), (33,), (2, 7), (300,))
LAYOUTS = (
    Layout.CONTIGUOUS,
    Layout.UNALIGNED,
    Layout.SLICED,
    Layout.TRANSPOSED,
    Layout.PADDED,
    Layout.EXPANDED,
)
"""The values from which cases are made: members of every class of an axis."""

Pair = frozenset[CallRegime]


def regimes_of(call: Any, axes: Axes = AXES) -> list[CallRegime]:
    """Return the classes of a call, in the order of the axes.

    Args:
        call: what the conditions of the axes read; the rows, for the axes above.
        axes: of the operator.
    """
    return [each for classes in axes.values() for each in classes if each.holds(call)]


def pairs_of(call: Any, axes: Axes = AXES) -> frozenset[Pair]:
    """Return the pairs of classes of a call.

    A call without rows shows no other mistake than those of calls without rows.
    """
    found = regimes_of(call, axes)
    none = [each for each in found if str(each) == "rows: none"]
    pairs = (frozenset(pair) for pair in combinations(found, 2))
    return frozenset(each for each in pairs if not none or none[0] in each)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Cases in which any two classes meet, those excepted that no case joins.

    Attributes:
        cases: the cases, or their keyword arguments.
        claimed: the pairs that they cover.
    """

    cases: tuple[Any, ...]
    claimed: frozenset[Pair]


@functools.cache
def design(dtypes: Sequence[torch.dtype], *, has_gradients: bool) -> Design:
    """Choose few cases that cover the pairs which a subject claims, small ones first.

    Args:
        dtypes: the storage types that it claims.
        has_gradients: whether its calls may have a backward pass.
    """
    candidates = []
    passes = (False, True) if has_gradients else (False,)
    for place, (channels, shape) in enumerate(product(CHANNELS, SHAPES)):
        for turn, layout in enumerate(LAYOUTS):
            # types and passes take turns, so that no size keeps to one of them
            for step in range(len(dtypes)):
                case = {
                    "shape": shape,
                    "channels": channels,
                    "layout": layout,
                    "dtype": dtypes[(place + step) % len(dtypes)],
                    "backward": passes[(place + turn + step) % len(passes)],
                    "seed": place,
                }
                candidates.append((case, _size(case), pairs_of(_without_memory(case))))
    return choose(candidates)


def choose(candidates: Sequence[tuple[Any, int, frozenset[Pair]]]) -> Design:
    """Choose few cases that cover every pair of the candidates, small ones first.

    Args:
        candidates: each with its size and its pairs.
    """
    claimed = frozenset[Pair]().union(*(pairs for _, _, pairs in candidates))
    missing, chosen = set(claimed), []
    for size in (2_000, 40_000, 400_000, float("inf")):
        small = [each for each in candidates if each[1] <= size]
        while best := max(small, key=lambda each: len(each[2] & missing), default=None):
            if not best[2] & missing:
                break
            chosen.append(best[0])
            missing -= best[2]
    return Design(cases=tuple(chosen), claimed=claimed)


def drawn(count: int, **values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Return combinations of values of fields, the same ones in every run.

    Args:
        count: of combinations.
        values: of each field, each as likely as the others.
    """
    chance = random.Random(0)
    for seed in range(count):
        yield {name: chance.choice(each) for name, each in values.items()} | {"seed": seed}


def design_of(
    subject: OperatorSubject,
    cases: Iterable[Any],
    size: Callable[[Any], int],
    call: Callable[[Any], Any],
    axes: Axes,
) -> Design:
    """Choose few of the cases that a subject claims, and note what they are to cover.

    Args:
        subject: refuses cases.
        cases: candidates.
        size: the amount of work of a case.
        call: returns what the conditions of the axes read.
        axes: of the operator.
    """
    claimed = [each for each in cases if subject.refuses(each) is None]
    chosen = choose([(each, size(each), pairs_of(call(each), axes)) for each in claimed])
    note_design(chosen)
    return chosen


def _size(case: dict[str, Any]) -> int:
    count = int(case["channels"])
    for size in case["shape"]:
        count *= size
    return count


def _without_memory(case: dict[str, Any]) -> torch.Tensor:
    """Return the rows of a case on the meta device, with their strides alone."""
    rows = torch.empty(*case["shape"], case["channels"], dtype=case["dtype"], device="meta")
    return lay_out(rows, case["layout"]).requires_grad_(case["backward"])


def note_design(chosen: Design) -> None:
    """Note the pairs that a law is to cover."""
    count = tally.current()
    if count is not None:
        count.claimed_pairs |= chosen.claimed


def note_call(call: Any, exact: torch.Tensor, bound: torch.Tensor, axes: Axes = AXES) -> None:
    """Note the pairs of a call that was judged; covered if its bound would show a mistake.

    Args:
        call: what the conditions of the axes read; operands require a gradient if there was a
            backward pass.
        exact: the exact result.
        bound: the largest distance that is allowed from it.
        axes: of the operator.
    """
    count = tally.current()
    if count is not None:
        pairs = pairs_of(call, axes)
        count.called_pairs |= pairs
        is_evidence = not exact.numel() or bool((bound < (0.5 * exact + 1).abs()).any())
        count.covered_pairs |= pairs if is_evidence else set()


def pinned(make: Callable[..., Any], dtypes: Iterable[torch.dtype]) -> tuple[Any, ...]:
    """Return a case of every class, made by the type of an operator's cases."""
    kinds = tuple(dtypes)
    sizes = zip(CHANNELS[1::2], (*SHAPES, *SHAPES), strict=False)
    cases = [
        make(
            shape=shape,
            channels=channels,
            layout=LAYOUTS[place % len(LAYOUTS)],
            dtype=kinds[place % len(kinds)],
            backward=place % 3 == 2,
            seed=place,
        )
        for place, (channels, shape) in enumerate(sizes)
    ]
    several = make(shape=(5,), channels=64, dtype=kinds[0], seed=1)
    further = [several.but(layout=layout, dtype=kinds[1]) for layout in LAYOUTS]
    return tuple(dict.fromkeys((several, *further, *cases)))
