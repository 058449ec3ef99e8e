"""Calls at the limit of what is affordable, whose sizes are drawn.

A kernel may be wrong only where a few sizes lie beyond thresholds at once: many key/value heads of
128 channels on many keys, for example. A call meets all thresholds that its sizes exceed. So some
sizes of these calls are drawn, and then each is made as large as is affordable beside the others.
"""

import math
import random
from collections.abc import Collection, Iterator, Sequence
from functools import partial

import torch

from attnspec.conformance.attention.launches import WIDTHS, is_affordable, largest, varied
from attnspec.conformance.attention.workloads import (
    Turns,
    claimed_alternatives,
    options_of,
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

DRAWN = (3, 4, 5)
"""By turns so many sizes are drawn; the others are 1."""

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
    options = claimed_alternatives(claimed)
    # every second call has none
    options += [()] * len(options)
    while True:
        d_head, d_value = dice.choice(turns.choose(WIDTHS))
        case = Case(
            d_head=d_head,
            d_value=d_value,
            dtype=turns.choose(dtypes),
            device=device,
            is_causal=Feature.CAUSAL in claimed and turns.choose((True, False)),
            backward=backward,
            **options_of(turns.choose(options), dice),
        )
        lengths = turns.choose(LENGTHS)
        others = ("kv_heads", "batch", *(["group"] if Feature.GQA in claimed else []))
        case = _with(case, _sizes(case, work, lengths, others, dice, turns))
        is_cached = case.queries < case.keys
        case = case.but(
            is_causal=case.is_causal and (is_aligned or not is_cached),
            seed=dice.randrange(2**16),
        )
        yield with_type_of_mask(varied(case, turns, "frontier", is_cached=is_cached), turns)


def _with(case: Case, sizes: Sizes) -> Case:
    kv_heads, length = sizes["kv_heads"], sizes.get("length")
    return case.but(
        batch=sizes["batch"],
        heads=kv_heads * sizes.get("group", 1),
        kv_heads=kv_heads,
        queries=sizes.get("queries", length),
        keys=sizes.get("keys", length),
    )


def _sizes(
    case: Case,
    work: float,
    lengths: Sequence[str],
    others: Sequence[str],
    dice: random.Random,
    turns: Turns,
) -> Sizes:
    """Return sizes of which none can be larger beside the others, but for whole tiles."""
    names = [*lengths, *others]
    drawn = dice.sample(names, min(len(names), turns.choose(DRAWN)))

    def draw() -> Sizes:
        of_drawn = {name: log_uniform(1, LARGEST[name], dice) for name in drawn}
        return dict.fromkeys(names, 1) | of_drawn

    def fits(name: str, size: int) -> bool:
        return is_affordable(_with(case, sizes | {name: size}), work)

    sizes = draw()
    while not is_affordable(_with(case, sizes), work):
        sizes = draw()
    grown = dice.sample(drawn, len(drawn))
    if turns.choose((True, False), "lengths first"):
        grown.sort(key=lambda name: name not in lengths)
    for name in grown:
        sizes[name] = largest(partial(fits, name), LARGEST[name])
    for name in lengths:
        sizes[name] = beside_a_tile(sizes[name], name, turns)
    return sizes


def log_uniform(first: int, last: int, dice: random.Random) -> int:
    """Draw a size whose logarithm is uniform."""
    return round(math.exp(dice.uniform(math.log(first), math.log(last))))


def beside_a_tile(length: int, name: str, turns: Turns) -> int:
    """Return a length that is at most a given one, beside a multiple of a tile by turns."""
    beside, tile = turns.choose(BESIDE, name), turns.choose(TILES, name)
    if beside is None or length < 2 * tile:
        return length
    return int((length - beside) // tile * tile + beside)
