"""Regimes of operators on rows: classes of calls for which kernels have code of their own.

A kernel selects code by the number of channels and rows, by strides and by the storage type, so
that a mistake can spoil one class of calls alone. Each axis below divides calls into classes; a
class is a condition on the tensor of rows, so that both a case and a call tell their classes. Sizes
straddle the widths of vectors and tiles.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.comparison import tally
from attnspec.spec import Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class RowRegime:
    """A class of calls.

    Attributes:
        axis: the axis that it is a class of.
        name: its name on that axis.
        holds: whether a tensor of rows is of this class.
    """

    axis: str
    name: str
    holds: Callable[[torch.Tensor], bool]

    def __str__(self) -> str:
        return f"{self.axis}: {self.name}"


def _axis(name: str, **classes: Callable[[torch.Tensor], bool]) -> tuple[RowRegime, ...]:
    return tuple(
        RowRegime(axis=name, name=each.replace("_", " ").strip(), holds=holds)
        for each, holds in classes.items()
    )


def _channels(low: int, high: float) -> Callable[[torch.Tensor], bool]:
    return lambda x: low <= x.shape[-1] <= high


def _rows(low: int, high: float) -> Callable[[torch.Tensor], bool]:
    return lambda x: low <= x[..., 0].numel() <= high


def _is_expanded(x: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def _is_unaligned(x: torch.Tensor) -> bool:
    return x.storage_offset() * x.element_size() % 16 != 0


AXES: dict[str, tuple[RowRegime, ...]] = {
    "channels": _axis(
        "channels",
        _1_to_16=_channels(1, 16),
        _63_to_65=_channels(63, 65),
        _127_to_129=_channels(127, 129),
        _255_to_257=_channels(255, 257),
        _1023_to_1025=_channels(1023, 1025),
        _4096_and_more=_channels(4096, float("inf")),
    ),
    "width": _axis(
        "width",
        odd=lambda x: x.shape[-1] % 2 == 1,
        multiple_of_16=lambda x: x.shape[-1] % 16 == 0,
    ),
    "rows": _axis(
        "rows",
        none=_rows(0, 0),
        one=_rows(1, 1),
        _2_to_64=_rows(2, 64),
        over_256=_rows(257, float("inf")),
    ),
    "layout": _axis(
        "layout",
        contiguous=lambda x: x.is_contiguous() and not _is_unaligned(x),
        unaligned=lambda x: x.is_contiguous() and _is_unaligned(x),
        channels_apart=lambda x: x.shape[-1] > 1 and x.stride(-1) > 1,
        rows_apart=lambda x: x.stride(-1) == 1 and not x.is_contiguous() and not _is_expanded(x),
        expanded=_is_expanded,
    ),
    "dtype": _axis(
        "dtype",
        float64=lambda x: x.dtype == torch.float64,
        float32=lambda x: x.dtype == torch.float32,
        float16=lambda x: x.dtype == torch.float16,
        bfloat16=lambda x: x.dtype == torch.bfloat16,
    ),
    "backward": _axis("backward", no=lambda x: not x.requires_grad, yes=lambda x: x.requires_grad),
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

Pair = frozenset[RowRegime]


def regimes_of(x: torch.Tensor) -> list[RowRegime]:
    """Return the classes of a call on these rows, in the order of the axes."""
    return [each for classes in AXES.values() for each in classes if each.holds(x)]


def pairs_of(x: torch.Tensor) -> frozenset[Pair]:
    """Return the pairs of classes of a call on these rows.

    A call without rows shows no other mistake than those of calls without rows.
    """
    pairs = (frozenset(pair) for pair in combinations(regimes_of(x), 2))
    return frozenset(each for each in pairs if x.numel() or any(one.axis == "rows" for one in each))


@dataclass(frozen=True, kw_only=True)
class RowDesign:
    """Cases in which any two classes meet, those excepted that no case joins.

    Attributes:
        cases: the keyword arguments of each: shape, channels, layout, dtype, backward and seed.
        claimed: the pairs that they cover.
    """

    cases: tuple[dict[str, Any], ...]
    claimed: frozenset[Pair]


@functools.cache
def design(dtypes: Sequence[torch.dtype], *, has_gradients: bool) -> RowDesign:
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
                candidates.append((case, pairs_of(_without_memory(case))))
    claimed = frozenset[Pair]().union(*(pairs for _, pairs in candidates))
    missing, chosen = set(claimed), []
    for size in (2_000, 40_000, float("inf")):
        small = [each for each in candidates if _size(each[0]) <= size]
        while best := max(small, key=lambda each: len(each[1] & missing), default=None):
            if not best[1] & missing:
                break
            chosen.append(best[0])
            missing -= best[1]
    return RowDesign(cases=tuple(chosen), claimed=claimed)


def _size(case: dict[str, Any]) -> int:
    count = int(case["channels"])
    for size in case["shape"]:
        count *= size
    return count


def _without_memory(case: dict[str, Any]) -> torch.Tensor:
    """Return the rows of a case on the meta device, with their strides alone."""
    rows = torch.empty(*case["shape"], case["channels"], dtype=case["dtype"], device="meta")
    return lay_out(rows, case["layout"]).requires_grad_(case["backward"])


def note_design(chosen: RowDesign) -> None:
    """Note the pairs that a law is to cover."""
    count = tally.current()
    if count is not None:
        count.claimed_pairs |= chosen.claimed


def note_call(x: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    """Note the pairs of a call that was judged; covered if its bound would show a mistake.

    Args:
        x: the rows; they require a gradient if there was a backward pass.
        exact: the exact result.
        bound: the largest distance that is allowed from it.
    """
    count = tally.current()
    if count is not None:
        pairs = pairs_of(x)
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
