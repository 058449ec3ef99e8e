"""Calls at sizes that a user gives: those at which their model calls its attention."""

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from attnspec.conformance.attention.frontier import beside_a_tile, log_uniform
from attnspec.conformance.attention.launches import WORK, varied, work_of
from attnspec.conformance.attention.workloads import (
    Turns,
    claimed_alternatives,
    claimed_form,
    options_of,
    with_type_of_mask,
)
from attnspec.spec import Case, Feature

GROUPS = 12
"""Groups of calls at given sizes."""

MOST_WORK = 120
"""Work of all but the first three, at most, in that of launches: half a minute on one core."""

Interval = tuple[int, int]
"""The least and the largest value of a size."""

INTERVALS = ("batch", "queries", "keys")
"""Sizes that may be given as an interval."""


@dataclass(frozen=True, kw_only=True)
class GivenSizes:
    """The sizes of calls of one kind, such as the decoding of some model.

    Attributes:
        batch: batch elements, the least and the largest number.
        heads: query heads.
        kv_heads: key/value heads.
        queries: queries, the least and the largest number; None for as many as keys.
        keys: likewise; None for as many as queries.
        d_head: channels of a query and a key.
        d_value: channels of a value.
    """

    batch: tuple[int, int]
    heads: int
    kv_heads: int
    queries: tuple[int, int] | None
    keys: tuple[int, int] | None
    d_head: int
    d_value: int

    @classmethod
    def read(cls, text: str) -> "GivenSizes":
        """Read sizes as a user types them, such as `heads=32,kv_heads=8,d_head=128,keys=1-4096`.

        One text, as many key/value heads as query heads, as many queries as keys, and values as
        wide as keys are meant if nothing else is given.

        Raises:
            ValueError: for a size that is missing, or is none, naming it.
        """
        given: dict[str, Interval] = {}
        for word in filter(None, (each.strip() for each in text.split(","))):
            name, equals, value = (part.strip() for part in word.partition("="))
            if not equals:
                raise ValueError(f"sizes are given as name=number, got {word!r}")
            known = [each.name for each in fields(cls)]
            if name not in known:
                raise ValueError(f"no size {name!r}; there are {', '.join(known)}")
            if name in given:
                raise ValueError(f"the size {name} is given twice")
            given[name] = _interval(name, value)
        lacking = [name for name in ("heads", "d_head") if name not in given]
        if not given.keys() & {"queries", "keys"}:
            lacking.append("queries or keys")
        if lacking:
            raise ValueError(f"the sizes {text!r} lack {', '.join(lacking)}")
        heads, d_head = given["heads"][0], given["d_head"][0]
        kv_heads = given.get("kv_heads", (heads, heads))[0]
        if heads % kv_heads:
            raise ValueError(f"{heads} heads are no multiple of {kv_heads} kv_heads")
        return cls(
            batch=given.get("batch", (1, 1)),
            heads=heads,
            kv_heads=kv_heads,
            queries=given.get("queries"),
            keys=given.get("keys"),
            d_head=d_head,
            d_value=given.get("d_value", (d_head, d_head))[0],
        )

    def __str__(self) -> str:
        """Return the sizes as a user types them."""
        return ",".join(
            f"{name}={first}" + (f"-{last}" if last > first else "")
            for name, (first, last) in self._intervals().items()
        )

    @property
    def is_trained(self) -> bool:
        """True if calls have gradients too: a single query is a step of decoding, without any."""
        return self.queries is None or self.queries[1] > 1

    def holds(self, case: Case) -> bool:
        """Return whether a case has these sizes."""
        if None in (self.queries, self.keys) and case.queries != case.keys:
            return False
        return all(
            first <= getattr(case, name) <= last
            for name, (first, last) in self._intervals().items()
        )

    def _intervals(self) -> dict[str, Interval]:
        """Return the least and the largest value of each size that is given."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value if isinstance(value, tuple) else (value, value)
            for name, value in values.items()
            if value is not None
        }


def _interval(name: str, text: str) -> Interval:
    """Read a size: a number, or the least and the largest one as `1-4096`."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"{name}={text}: not a number, or two as in 1-4096")
    least, largest = int(first), int(last or first)
    if not 1 <= least <= largest:
        raise ValueError(f"{name}={text}: sizes are at least 1, and the first one is the smaller")
    if least < largest and name not in INTERVALS:
        raise ValueError(f"{name}={text}: only {', '.join(INTERVALS)} may be given as two numbers")
    return least, largest


def calls_at(
    sizes: GivenSizes,
    claimed: Collection[Feature],
    dtypes: Sequence[torch.dtype],
    refuses: Callable[[Case], str | None],
    dice: random.Random,
    *,
    backward: bool,
    device: str = "cpu",
    is_aligned: bool = False,
) -> Iterator[list[list[Case]]]:
    """Yield groups of calls at given sizes, in each storage type with the causal flag and without.

    Groups that are yielded together follow one another, as a step does the length before; calls at
    other sizes may come after them. The first group has the largest sizes, the second one the
    smallest, and nothing else that is special; the third one has the largest lengths in the
    smallest batch, so that more texts of fewer tokens follow. In others sizes are drawn, and every
    second one has a token more than the one before, as a step of decoding, by turns after a whole
    block of a cache. Their options, modes, layouts and contents follow by turns. Calls of a group
    differ in type and flag, while a kernel may keep a plan for the same lengths. A call that is
    refused in every form is yielded as it is, and its reason is reported. Groups that take too long
    are left out.

    Args:
        sizes: the sizes.
        claimed: the claimed features.
        dtypes: the claimed storage types.
        refuses: returns why a case is not claimed, or None.
        dice: draw sizes.
        backward: whether calls have a backward pass.
        device: the device of the calls.
        is_aligned: whether the causal flag lets the last query read the last key; if it does not,
            it is not set where there are fewer queries than keys, which would read few keys.
    """
    turns = Turns(dice)
    options = claimed_alternatives(claimed)
    flags = (True, False) if Feature.CAUSAL in claimed else (False,)
    work = 0.0
    drawn: dict[str, Any] = {}
    together: list[list[Case]] = []
    for number in range(GROUPS):
        drawn = _drawn(sizes, number, drawn, dice, turns)
        case = Case(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            d_head=sizes.d_head,
            d_value=sizes.d_value,
            device=device,
            backward=backward,
            **drawn,
        )
        is_cached = case.queries < case.keys
        group = []
        for dtype, is_causal in itertools.product(dtypes, flags):
            if is_causal and is_cached and not is_aligned:
                continue
            each = case.but(dtype=dtype, is_causal=is_causal, seed=dice.randrange(2**16))
            if number not in PLAIN:
                chosen = turns.choose(options) if number % 2 else ()
                each = each.but(**options_of(chosen, dice))
                each = varied(each, turns, "given sizes", is_cached=is_cached)
                each = with_type_of_mask(each, turns)
            group.append(claimed_form(each, refuses) or each)
        more = sum(map(work_of, group)) / WORK if number > 2 else 0
        if work + more <= MOST_WORK:
            work += more
            together.append(group)
        if number in PLAIN or _is_step(number):
            yield together
            together = []
    yield together


PLAIN = (0, 1)
"""Groups without anything special: of the largest, and of the smallest sizes."""

BLOCK = 256
"""Tokens of a block of a cache, or of several smaller ones."""


def _is_step(number: int) -> bool:
    """Return whether a group has a token more than the one before."""
    return number > 3 and number % 2 == 0


def _drawn(
    sizes: GivenSizes, number: int, before: dict[str, Any], dice: random.Random, turns: Turns
) -> dict[str, Any]:
    """Return batch, queries and keys of a group; those of the first ones are ends."""
    if _is_step(number):
        return before | _one_more(sizes, before)

    def draw(name: str) -> int:
        interval: Interval = getattr(sizes, name)
        first, last = interval
        if number < 3:
            is_smallest = number == 1 or (number == 2 and name == "batch")
            return first if is_smallest else last
        # short ones are like the shortest
        size = log_uniform(max(first, math.isqrt(first * last)), last, dice)
        if name == "batch":
            return size
        if last > BLOCK and turns.choose((True, False), (name, "blocks")):
            return max(first, size // BLOCK * BLOCK, BLOCK)
        return max(first, beside_a_tile(size, name, turns))

    drawn = {name: draw(name) for name in INTERVALS if getattr(sizes, name) is not None}
    length = drawn.get("queries") or drawn["keys"]
    return {"queries": length, "keys": length} | drawn


def _one_more(sizes: GivenSizes, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the lengths with a token more, if they are not the largest."""
    names = ("keys",) if sizes.queries and sizes.keys else ("queries", "keys")
    _, largest = sizes.keys or sizes.queries or (1, 1)
    return {name: min(drawn[name] + 1, largest) for name in names}
