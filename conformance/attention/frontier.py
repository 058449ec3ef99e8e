"""Calls at the limit of what is affordable, whose sizes are drawn.

A kernel may be wrong only where a few sizes lie beyond thresholds at once: many key/value heads of
128 channels on many keys, for example. A call meets all thresholds that its sizes exceed. So some
sizes of these calls are drawn, and then each is made as large as is affordable beside the others.
"""

import bisect
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import torch

from attnspec.conformance.attention.launches import CONTENTS, WIDTHS, is_affordable
from attnspec.conformance.attention.workloads import (
    ALTERNATIVES,
    MODES,
    MODES_OF_TRAINING,
    Turns,
    layouts_by_turns,
    options_of,
    scale_by_turns,
    with_type_of_mask,
)
from attnspec.spec import Case, Feature

LARGEST = {
    "queries": 16_384,
    "keys": 70_000,
    "length": 16_384,
    "kv_heads": 64,
    "group": 32,
    "batch": 256,
}
"""The largest value of each size; the length is that of queries and keys, where they are equal."""

LENGTHS = (("queries", "keys"), ("queries", "keys"), ("length",))
"""Lengths of calls by turns."""

NAMES_OF_LENGTHS = ("queries", "keys", "length")

DRAWN = (3, 4, 5)
"""By turns so many sizes are drawn; the others are 1."""

WITHOUT_OPTIONS: tuple[tuple[Feature, ...], ...] = ((),) * len(ALTERNATIVES)
"""Every second call has no option."""

TILES = (64, 128, 16, 256)
"""Lengths lie beside multiples of these by turns."""

BESIDE = (None, 0, None, 1, None, -1)
"""The distance of a length from a multiple of a tile, by turns; None for any length."""

Sizes = dict[str, int]


def frontier_calls(
    claimed: Collection[Feature],
    dtypes: Sequence[torch.dtype],
    dice: random.Random,
    *,
    backward: bool,
    work: float,
    device: str = "cpu",
    is_aligned: bool = False,
) -> Iterator[Case]:
    """Yield calls without end, each as large as is affordable for some of its sizes.

    Args:
        claimed: the claimed features; groups and the causal flag are left out if not claimed.
        dtypes: the claimed storage types, which take turns.
        dice: draw sizes.
        backward: whether calls have a backward pass.
        work: work of a call at most, as that of launches.
        device: the device of the calls.
        is_aligned: whether the causal flag lets the last query read the last key; if it does not,
            it is not set where there are fewer queries than keys, which would read few keys.
    """
    turns = Turns(dice)
    options = [each for each in ALTERNATIVES if set(each) <= set(claimed)]
    while True:
        d_head, d_value = dice.choice(turns.choose(WIDTHS))
        case = Case(
            d_head=d_head,
            d_value=d_value,
            dtype=turns.choose(dtypes),
            device=device,
            is_causal=Feature.CAUSAL in claimed and turns.choose((True, False)),
            backward=backward,
            mode=turns.choose(MODES_OF_TRAINING if backward else MODES),
            values=turns.choose(CONTENTS),
            scale=scale_by_turns(turns, "frontier", d_head),
            **options_of(turns.choose((*options, *WITHOUT_OPTIONS[: len(options)])), dice),
        )
        case = with_type_of_mask(case, turns)
        names = [*turns.choose(LENGTHS), "kv_heads", "batch"]
        names += ["group"] if Feature.GQA in claimed else []
        case = _with(case, _sizes(partial(_fits, case, work), names, dice, turns))
        is_cached = case.queries < case.keys
        yield case.but(
            is_causal=case.is_causal and (is_aligned or not is_cached),
            layouts=layouts_by_turns(
                turns, "frontier", kv_heads=case.kv_heads, is_cached=is_cached
            ),
            seed=dice.randrange(2**16),
        )


def _fits(case: Case, work: float, sizes: Sizes) -> bool:
    return is_affordable(_with(case, sizes), work)


def _with(case: Case, sizes: Sizes) -> Case:
    kv_heads = sizes["kv_heads"]
    return case.but(
        batch=sizes["batch"],
        heads=kv_heads * sizes.get("group", 1),
        kv_heads=kv_heads,
        queries=sizes.get("queries", sizes.get("length")),
        keys=sizes.get("keys", sizes.get("length")),
    )


def _sizes(
    fits: Callable[[Sizes], bool], names: Sequence[str], dice: random.Random, turns: Turns
) -> Sizes:
    """Return sizes of which none can be larger beside the others, but for whole tiles."""
    drawn = dice.sample(names, min(len(names), turns.choose(DRAWN)))
    least = dict.fromkeys(names, 1)
    sizes = least | {name: _drawn(LARGEST[name], dice) for name in drawn}
    while not fits(sizes):
        sizes = least | {name: _drawn(LARGEST[name], dice) for name in drawn}
    grown = dice.sample(drawn, len(drawn))
    if turns.choose((True, False), "lengths first"):
        grown.sort(key=lambda name: name not in NAMES_OF_LENGTHS)
    for name in grown:
        larger = range(sizes[name] + 1, LARGEST[name] + 1)
        count = bisect.bisect_left(larger, True, key=lambda n: not fits(sizes | {name: n}))
        sizes[name] += count
    for name in (name for name in NAMES_OF_LENGTHS if name in sizes):
        sizes[name] = _beside_a_tile(sizes[name], name, turns)
    return sizes


def _drawn(most: int, dice: random.Random) -> int:
    """Draw a size up to a largest one, whose logarithm is uniform."""
    return round(math.exp(dice.uniform(0, math.log(most))))


def _beside_a_tile(length: int, name: str, turns: Turns) -> int:
    """Return a length that is at most a given one, beside a multiple of a tile by turns."""
    beside, tile = turns.choose(BESIDE, name), turns.choose(TILES, name)
    if beside is None or length < 2 * tile:
        return length
    return int((length - beside) // tile * tile + beside)
