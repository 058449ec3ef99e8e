"""Condense a design: fewer rows, without the choices that show no pair of their own.

A row of a covering design shows many pairs that other rows show as well. Each pair is left to one
row, and a row keeps the choices of its own pairs alone. Rows that then say nothing about each
other's axes are merged. The other axes are free, for values that hide no mistake.

Source:
    Nayeri, Colbourn, Konjevod 2013, Randomized post-optimization of covering arrays
"""

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

Choice = TypeVar("Choice", bound=Hashable)
Row = dict[str, Choice]
Pairs = frozenset[frozenset[Choice]]


def condensed(
    rows: Sequence[Mapping[str, Choice]],
    pairs_of: Callable[[Mapping[str, Choice]], Pairs[Choice]],
    shows: Callable[[Mapping[str, Choice], Pairs[Choice]], bool],
    axis_of: Callable[[Choice], str],
    allowed: Callable[[Mapping[str, Choice]], bool],
) -> list[Row[Choice]]:
    """Return rows that show the same pairs.

    Args:
        rows: of a covering design.
        pairs_of: returns the pairs of choices that a row shows.
        shows: returns whether a row shows given pairs of its choices.
        axis_of: returns the axis of a choice.
        allowed: false if no call is of a row, or if it should not be made.
    """
    merged: list[Row[Choice]] = []
    own: list[Pairs[Choice]] = []
    for number, pairs in _divided([pairs_of(row) for row in rows]):
        needed = {axis_of(choice): choice for pair in pairs for choice in pair}
        for place, row in enumerate(merged):
            if any(row.get(axis, choice) != choice for axis, choice in needed.items()):
                continue
            both = row | needed
            is_new = len(both) > len(row)
            if is_new and not (shows(both, own[place] | pairs) and allowed(both)):
                continue
            merged[place], own[place] = both, own[place] | pairs
            break
        else:
            merged.append(needed if allowed(needed) else dict(rows[number]))
            own.append(pairs)
    return merged


def _divided(shown: Sequence[Pairs[Choice]]) -> Iterator[tuple[int, Pairs[Choice]]]:
    """Yield the rows that show most new pairs, each with these pairs."""
    missing = set().union(*shown)
    heap = [(-len(pairs), number) for number, pairs in enumerate(shown)]
    heapq.heapify(heap)
    while heap and missing:
        _, number = heapq.heappop(heap)
        new = shown[number] & missing
        if heap and len(new) < -heap[0][0]:
            if new:
                heapq.heappush(heap, (-len(new), number))
            continue
        missing -= new
        yield number, new
