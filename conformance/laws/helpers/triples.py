"""Calls in which every three classes of sizes meet: of lengths, widths, heads and batch.

Every two classes meet in calls of NUM-18, which has many axes and narrow classes. A kernel chooses
its code by a few sizes together, as by the width of a head, the number of keys and the group. So
classes of these are wider here, about as tiles divide them, and every three of them meet. Storage
types, options and rare classes meet every class of another size. One run tries half of the calls
that take little work, and a sixth of the others, by its seed.
"""

import functools
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from attnspec.conformance.attention.frontier import BESIDE, TILES, log_uniform
from attnspec.conformance.attention.launches import is_affordable, varied, work_of
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.workloads import (
    ALTERNATIVES,
    Turns,
    claimed_form,
    options_of,
    with_type_of_mask,
)
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.pairwise import Row, pairwise, threewise
from attnspec.spec import Case, Feature

Interval = tuple[int, int]
"""The least and the largest length of a class."""

WORK = 1.5e9
"""Work of calls that every second run tries, as that of launches: a twentieth of a second on one
core."""

LARGE_WORK = 4e9
"""Work of a call whose three classes need as much, which some runs try."""

LARGEST_WORK = 6e9
"""Likewise of a call of two classes, one of which is rare."""

CHEAP_RUNS = 2
"""Runs, of which one tries a call of at most `WORK`."""

RUNS = 6
"""Runs, of which one tries a call whose classes need more or are rare."""

ROOM = 1.2
"""Work of a call that takes more, at most, in that of the least call of its classes."""

DRAWS = 3
"""Draws of each size, of which the largest that is affordable is taken."""

LONGEST = 2**18
"""Queries or keys of a call."""

Widths = tuple[tuple[int, int], ...]
"""Widths of (queries and keys, values) in a class."""

QUERIES: tuple[Interval, ...] = (
    (1, 1),
    (2, 16),
    (17, 256),
    (257, 1023),
    (1024, 4096),
)
MANY_QUERIES: tuple[Interval, ...] = ((8193, 16_384), (65_537, 70_000))
KEYS: tuple[Interval, ...] = ((17, 64), (65, 256), (257, 1023), (1024, 4096), (8193, 16_384))
OTHER_KEYS: tuple[Interval, ...] = ((2, 16), (16_385, 65_536), (131_073, 150_000))
WIDTHS: tuple[Widths, ...] = (
    ((16, 16), (32, 32), (48, 48), (64, 64)),
    ((80, 80), (96, 96), (72, 72)),
    ((128, 128), (104, 104), (112, 112), (120, 120)),
    ((160, 160), (192, 192), (256, 256), (320, 320), (512, 512)),
    ((64, 128), (96, 64), (192, 128), (128, 256)),
)
NARROW: tuple[Widths, ...] = (((8, 8), (4, 4), (16, 16)),)
GROUPS = ((1,), (2, 3, 4), (5, 6, 7, 8), (12, 16), (32, 24, 48, 71))
KV_HEADS = ((1,), (2, 3, 4), (5, 8, 11, 16))
MANY_KV_HEADS = ((32, 40, 64),)
BATCH = ((1,), (2, 3, 4, 8), (9, 16, 17, 32), (65, 66, 100))
LARGE_BATCH = ((1024, 1100),)
OPTIONS = tuple(features for features in ALTERNATIVES if len(features) < 2)
WITHOUT_OPTIONS = ((), ())
"""Further turns of calls without an option."""


def cases_of_triples(
    subject: Subject, seed: int, *, backward: bool, rounds: Iterable[int] = range(1)
) -> tuple[Case, ...]:
    """Return claimed cases in which every three classes of sizes meet, if that is affordable.

    Args:
        subject: the subject, whose claims are read. There are no cases if it compiles each shape,
            or if the scalar definition judges it.
        seed: selects the sizes inside the classes, and everything else. Successive seeds try other
            classes together.
        backward: true for cases with a backward pass.
        rounds: numbers of further draws.
    """
    if subject.implementation.compiles_each_shape or subject.largest < math.inf:
        return ()
    rows, costly = _rows(DesignClaims.of(subject), backward)
    cases: list[Case] = []
    for each in rounds:
        dice = random.Random(f"{seed}/{each}/{backward}")
        turns = Turns(dice)
        start = seed + each
        of_round = (*rows[start % CHEAP_RUNS :: CHEAP_RUNS], *costly[start % RUNS :: RUNS])
        cases += [_drawn(subject, row, backward, dice, turns) for row in of_round]
    return tuple(cases)


@functools.lru_cache(maxsize=64)
def _rows(claims: DesignClaims, backward: bool) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Return the classes of each case of little work, and of each that takes more or is rare.

    They are those of all subjects with the same claims.
    """
    subject = claims.subject()
    axes: dict[str, tuple[Any, ...]] = {
        "width": WIDTHS,
        "queries": QUERIES,
        "keys": KEYS,
        "group": GROUPS if Feature.GQA in claims.features else GROUPS[:1],
        "kv_heads": KV_HEADS,
        "batch": BATCH,
        "is_causal": (False, True) if Feature.CAUSAL in claims.features else (False,),
    }
    options = tuple(each for each in OPTIONS if claims.features.issuperset(each))
    of_calls = {"dtype": claims.dtypes, "options": options}
    rare = {
        "width": WIDTHS + NARROW,
        "queries": QUERIES + MANY_QUERIES,
        "keys": KEYS + OTHER_KEYS,
        "kv_heads": KV_HEADS + MANY_KV_HEADS,
        "batch": BATCH + LARGE_BATCH,
    }

    def allowed(row: Mapping[str, Any], work: float = LARGEST_WORK) -> bool:
        return _is_allowed(subject, _smallest(subject, row, backward), work)

    is_cheap, is_large = (functools.partial(allowed, work=work) for work in (WORK, LARGE_WORK))
    rows = threewise(axes, is_cheap)
    cheap = len(rows)
    rows += [row for row in threewise(axes, is_large, rows) if row not in rows]
    # types and options by turns, so that claims of more of them make few calls more
    turns = Turns(random.Random(0))
    by_turns = of_calls | {"options": (*options, *WITHOUT_OPTIONS)}
    for row in rows:
        for name, values in by_turns.items():
            chosen = turns.choose(values, name)
            row |= {name: next(v for v in (chosen, *values) if allowed(row | {name: v}))}
    rows += [row for row in pairwise(axes | of_calls | rare, allowed, rows) if row not in rows]
    return tuple(rows[:cheap]), tuple(rows[cheap:])


def _is_allowed(subject: Subject, case: Case, work: float) -> bool:
    """Return whether a case is claimed and takes at most some work."""
    return is_affordable(case, work, LONGEST) and subject.refuses(case) is None


def _smallest(subject: Subject, row: Mapping[str, Any], backward: bool) -> Case:
    """Return the smallest case of a row, on all axes or on some."""
    options = options_of(row.get("options", ()), random.Random(0))
    kv_heads = row.get("kv_heads", KV_HEADS[0])[0]
    d_head, d_value = min(row.get("width", WIDTHS[0]))
    return Case(
        batch=row.get("batch", BATCH[0])[0],
        heads=kv_heads * row.get("group", GROUPS[0])[0],
        kv_heads=kv_heads,
        queries=row.get("queries", QUERIES[0])[0],
        keys=row.get("keys", KEYS[0])[0],
        d_head=d_head,
        d_value=d_value,
        dtype=row.get("dtype", subject.implementation.dtypes[-1]),
        device=subject.device,
        is_causal=row.get("is_causal", False),
        backward=backward,
        **options,
    )


def _drawn(subject: Subject, row: Row, backward: bool, dice: random.Random, turns: Turns) -> Case:
    """Return a case of a row with sizes that dice draw, and everything else by turns."""
    case = _smallest(subject, row, backward)
    chosen = with_type_of_mask(case.but(**options_of(row["options"], dice)), turns)
    if subject.refuses(chosen) is None:
        case = chosen
    fits = functools.partial(_is_allowed, subject, work=max(WORK, ROOM * work_of(case)))
    for changes in _changes(row, dice, turns):
        cases = sorted((case.but(**each) for each in changes), key=work_of, reverse=True)
        case = next(filter(fits, cases), case)
    chosen = varied(case, turns, "triples", is_cached=case.queries < case.keys)
    return claimed_form(chosen.but(seed=dice.randrange(2**16)), subject.refuses) or case


def _changes(row: Row, dice: random.Random, turns: Turns) -> list[list[dict[str, Any]]]:
    """Return for some fields changes to values in their classes; dice draw values and order."""
    is_square = row["queries"] == row["keys"] and turns.choose((True, True, False), "square")

    def of_batch() -> dict[str, Any]:
        return {"batch": dice.choice(row["batch"])}

    def of_heads() -> dict[str, Any]:
        kv_heads = dice.choice(row["kv_heads"])
        return {"heads": kv_heads * dice.choice(row["group"]), "kv_heads": kv_heads}

    def of_widths() -> dict[str, Any]:
        d_head, d_value = dice.choice(row["width"])
        return {"d_head": d_head, "d_value": d_value}

    def of_queries() -> dict[str, Any]:
        queries = _length(row["queries"], dice, turns)
        return {"queries": queries} | ({"keys": queries} if is_square else {})

    def of_keys() -> dict[str, Any]:
        return {} if is_square else {"keys": _length(row["keys"], dice, turns)}

    fields = dice.sample([of_batch, of_heads, of_widths, of_queries, of_keys], 5)
    return [[change() for _ in range(DRAWS)] for change in fields]


def _length(interval: Interval, dice: random.Random, turns: Turns) -> int:
    """Return a length of a class, small ones as often as large ones, beside a tile by turns."""
    first, last = interval
    length = log_uniform(first, last, dice)
    beside = turns.choose(BESIDE, interval)
    if beside is not None:
        tile = turns.choose(TILES, interval)
        length = round(length / tile) * tile + beside
    return min(max(length, first), last)
