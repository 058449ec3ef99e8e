"""Pairwise designs: few cases in which every two options meet.

Most mistakes need one option or two together, not all; a design whose rows hold every pair of
choices grows with the square of the largest numbers of choices, where the product of all grows
without end.

Source:
    Cohen, Dalal, Fredman, Patton 1997, The AETG system: the greedy construction followed here
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Choice = tuple[str, int]
"""An axis, and which of its values."""
Pair = tuple[Choice, Choice]

CANDIDATES = 6
"""Rows that are tried for each row that is kept: more of them make a design little smaller."""

ATTEMPTS = 40
"""Rows that are tried for a pair before it is taken to be refused."""


def pairwise(
    axes: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    """Choose rows so that every two values of different axes meet in a row, where they may.

    Args:
        axes: the values of each axis; the first ones together are a row that is allowed.
        allowed: false for rows that may not be chosen. A value or a pair that is refused among
            first values is left out, and a pair that is in no allowed row that was tried.

    Returns:
        The same rows for the same axes on every machine.
    """
    return _Design(axes, allowed).rows()


class _Design:
    """The state of a design under construction; values are known by their numbers."""

    def __init__(self, axes: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool]) -> None:
        self.axes = axes
        self.names = list(axes)
        self.allowed = allowed
        self.rng = random.Random(0)
        first = dict.fromkeys(axes, 0)
        self.values = {
            name: [n for n in range(len(axes[name])) if allowed(self.row(first | {name: n}))]
            for name in axes
        }
        self.missing: set[Pair] = set()
        self.open: dict[Choice, set[Choice]] = defaultdict(set)
        self.refused: dict[Choice, set[Choice]] = defaultdict(set)
        for left, right in itertools.combinations(self.names, 2):
            for one, two in itertools.product(self.values[left], self.values[right]):
                if allowed(self.row(first | {left: one, right: two})):
                    self.missing.add(((left, one), (right, two)))
                    met = self.open
                else:
                    met = self.refused
                met[left, one].add((right, two))
                met[right, two].add((left, one))

    def row(self, chosen: Mapping[str, int]) -> Row:
        """The values of a row."""
        return {name: self.axes[name][chosen[name]] for name in self.names}

    def rows(self) -> list[Row]:
        """Add rows until no pair is missing."""
        found = []
        while self.missing:
            pair = min(self.missing)
            best = self.best(pair, CANDIDATES) or self.best(pair, ATTEMPTS, greedy=False)
            if best is None:
                self.close(pair)
                continue
            for held in self.missing.intersection(itertools.combinations(best.items(), 2)):
                self.close(held)
            found.append(self.row(best))
        return found

    def close(self, pair: Pair) -> None:
        """Look for a pair no longer."""
        one, two = pair
        self.missing.discard(pair)
        self.open[one].discard(two)
        self.open[two].discard(one)

    def best(self, pair: Pair, attempts: int, *, greedy: bool = True) -> dict[str, int] | None:
        """The allowed row around a pair that holds most of what is missing, of a few."""
        found, most = None, 0
        for _ in range(attempts):
            candidate = self.candidate(pair, greedy)
            if candidate is not None and self.allowed(self.row(candidate)):
                items = candidate.items()
                held = sum(len(self.open[choice].intersection(items)) for choice in items)
                if held > most:
                    found, most = candidate, held
        return found

    def candidate(self, pair: Pair, greedy: bool) -> dict[str, int] | None:
        """Complete a pair, axis after axis, each with the value that adds most, or with any."""
        chosen = dict(pair)
        others = [name for name in self.names if name not in chosen]
        self.rng.shuffle(others)
        for name in others:
            gains = {}
            for value in self.values[name]:
                choice = (name, value)
                if self.refused[choice].isdisjoint(chosen.items()):
                    gains[value] = len(self.open[choice].intersection(chosen.items()))
            if not gains:
                return None
            most = max(gains.values()) if greedy else 0
            # at random among equals: another attempt must be another row
            chosen[name] = self.rng.choice([n for n, gain in gains.items() if gain >= most])
        return {name: chosen[name] for name in self.names}
