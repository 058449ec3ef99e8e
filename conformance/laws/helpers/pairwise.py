"""Covering designs: few rows that hold every one, two or three options, chosen by allpairspy.

Most bugs need one option or two together, not all. A design that holds every pair of values grows
with the square of the largest numbers of values; the product of all axes grows exponentially.

allpairspy adds rows until one holds no new pair, which conditions on rows can make happen early. It
is started again from the rows so far, with the axes that miss most pairs first, and once few pairs
are missing, with one value on each of two axes for each of them.

Source:
    Cohen, Dalal, Fredman, Patton 1997, The AETG system
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from allpairspy import AllPairs  # type: ignore[import-untyped]

Row = dict[str, Any]
Indices = Mapping[str, int]
"""For each axis the index of one of its values."""
Group = tuple[tuple[str, int], ...]
"""One axis or some, each with the index of one of its values."""

PATIENCE = 20_000
"""Values tried in the search for one row, after which it is given up."""


FEW = 20
"""Rows found, below which allpairspy is not started again: each start takes seconds."""

SHARE_MISSING = 0.2
"""Share of the groups, below which each that is missing has a row of its own, found sooner."""


def pairwise(
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool] = lambda row: True,
    earlier: Iterable[Mapping[str, Any]] = (),
) -> list[Row]:
    """Choose rows so that every two values of different axes share a row, if that is allowed.

    Args:
        axes: the values of each axis. None means any value: no row need hold a pair with it.
        allowed: called with the values of some axes or of all; false if no row may hold them. A
            pair is left out if it is refused, or if no allowed row that was tried holds it.
        earlier: rows to begin with, of a design with more values or fewer. A value of theirs that
            is refused is replaced; what they miss is added. It only saves time.

    Returns:
        The same rows for the same arguments on every machine.
    """
    return _covering(axes, allowed, earlier, strength=2)


def threewise(
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool] = lambda row: True,
    earlier: Iterable[Mapping[str, Any]] = (),
) -> list[Row]:
    """Choose rows so that every three values of different axes share a row, if that is allowed.

    The parameters and the result are those of `pairwise`.
    """
    return _covering(axes, allowed, earlier, strength=3)


def each_once(
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool] = lambda row: True,
    earlier: Iterable[Mapping[str, Any]] = (),
) -> list[Row]:
    """Choose rows so that every value of every axis is in one, if that is allowed.

    The parameters and the result are those of `pairwise`.
    """
    return _covering(axes, allowed, earlier, strength=1)


def _covering(
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool],
    earlier: Iterable[Mapping[str, Any]],
    strength: int,
) -> list[Row]:
    """Choose rows so that every `strength` values of different axes share a row."""
    design = _Design(axes, allowed, strength)
    rows: list[Indices] = []
    missing = design.groups() - design.refused
    few = SHARE_MISSING * len(missing)
    for each in map(design.adapted, earlier):
        if each is not None and not missing.isdisjoint(design.groups_of(each)):
            rows.append(each)
            missing -= design.groups_of(each)
        if not missing:
            break
    while len(missing) > (few if rows else 0):
        counts = Counter(name for group in missing for name, _ in group)
        names = sorted(axes, key=lambda name: -counts[name])
        found = list(design.rows({name: design.values[name] for name in names}, rows))
        rows += found
        missing = missing.difference(*map(design.groups_of, found))
        if len(found) < FEW:
            break
    while missing:
        group = min(missing)
        missing.remove(group)
        values = design.with_most_of(missing, group)
        for row in itertools.islice(design.rows(values), 1):
            rows.append(row)
            missing -= design.groups_of(row)
    return [{name: axes[name][row[name]] for name in axes} for row in rows]


class _Design:
    """The allowed values and groups of a design, known by the indices of their values."""

    def __init__(
        self, axes: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], strength: int
    ) -> None:
        self.axes = axes
        self.allowed = allowed
        self.strength = strength
        self.values = {
            name: [n for n in range(len(axes[name])) if allowed(self.row({name: n}))]
            for name in axes
        }
        self.refused = {
            pair
            for pair in itertools.chain.from_iterable(
                itertools.product(*([(name, n) for n in self.values[name]] for name in names))
                for names in itertools.combinations(sorted(axes), 2)
            )
            if not allowed(self.row(dict(pair)))
        }
        while any([self._remove_lonely(name) for name in axes]):
            pass

    def _remove_lonely(self, name: str) -> bool:
        """Remove the values of an axis that no row can hold: another axis has none beside them."""
        others = [(other, self.values[other]) for other in self.axes if other != name]
        kept = [
            index
            for index in self.values[name]
            if all(
                any(self._go_together({name: index}, (other, n)) for n in values)
                for other, values in others
            )
        ]
        is_shorter = len(kept) < len(self.values[name])
        self.values[name] = kept
        return is_shorter

    def row(self, indices: Indices) -> Row:
        """Return the values of given indices."""
        return {name: self.axes[name][index] for name, index in indices.items()}

    def groups(self) -> set[Group]:
        """Return every group of values but None."""
        values = {
            name: [(name, n) for n in indices if self.axes[name][n] is not None]
            for name, indices in self.values.items()
        }
        return {
            group
            for names in itertools.combinations(sorted(values), self.strength)
            for group in itertools.product(*(values[name] for name in names))
        }

    def groups_of(self, row: Indices) -> set[Group]:
        """Return the groups that a row holds."""
        return set(itertools.combinations(sorted(row.items()), self.strength))

    def adapted(self, row: Mapping[str, Any]) -> Indices | None:
        """Return an allowed row that is as a given one where it may be, or None if it is not found.

        A value that is refused, alone or with one before it, is replaced by the first that is not;
        if the whole row is refused then, likewise one that is refused with all before it.
        """
        adapted = self._adapted(row, self._go_together)
        if adapted is not None and not self.allowed(self.row(adapted)):
            adapted = self._adapted(row, self._is_allowed)
        return adapted

    def _adapted(
        self, row: Mapping[str, Any], fits: Callable[[Indices, tuple[str, int]], bool]
    ) -> Indices | None:
        """Return a row as a given one, but for values that do not fit those before them."""
        adapted: dict[str, int] = {}
        for name, indices in self.values.items():
            known = [n for n in indices if self.axes[name][n] == row.get(name)]
            fitting = (n for n in [*known, *indices] if fits(adapted, (name, n)))
            index = next(fitting, None)
            if index is None:
                return None
            adapted[name] = index
        return adapted

    def _is_allowed(self, row: Indices, newest: tuple[str, int]) -> bool:
        """Return whether a row may hold one more value."""
        together = dict([*row.items(), newest])
        return self._go_together(row, newest) and self.allowed(self.row(together))

    def _go_together(self, row: Indices, newest: tuple[str, int]) -> bool:
        """Return whether no value of a row is refused together with one more."""
        pairs = (tuple(sorted([each, newest])) for each in row.items())
        return self.refused.isdisjoint(pairs)

    def with_most_of(self, missing: set[Group], group: Group) -> dict[str, list[int]]:
        """Return the values of each axis, those first that are in most groups that are missing.

        The values of one group are fixed, and the groups that share one of them count most.
        """
        counts: Counter[tuple[str, int]] = Counter()
        for each in missing:
            for member in each:
                counts[member] += 1 + len(missing) * (not set(group).isdisjoint(each))
        sorted_values = {
            name: sorted(indices, key=lambda index: -counts[name, index])
            for name, indices in self.values.items()
        }
        fixed = {name: [index] for name, index in group}
        # an axis of one value leaves no choice: put first, it is tried once
        return fixed | (sorted_values | fixed)

    def rows(
        self, values: Mapping[str, list[int]], earlier: Sequence[Indices] = ()
    ) -> Iterator[Indices]:
        """Yield allowed rows of some values, until none has a new group or the search is given up.

        Args:
            values: the indices that each axis may have; conditions are met soonest on the first.
            earlier: rows whose groups are not new.
        """
        if len(values) < 2 or not all(values.values()):
            return
        names, tried = list(values), 0

        def filtered(indices: list[int]) -> bool:
            nonlocal tried
            tried += 1
            if tried > PATIENCE:
                raise _GivenUp
            row = dict(zip(names, indices[:-1], strict=False))
            newest = (names[len(row)], indices[-1])
            if not self._go_together(row, newest):
                return False
            return self.allowed(self.row(row | dict([newest])))

        found = AllPairs(
            [values[name] for name in names],
            filter_func=filtered,
            previously_tested=[[row[name] for name in names] for row in earlier],
            n=self.strength,
        )
        while True:
            tried = 0
            try:
                row = next(found)
            except (StopIteration, _GivenUp):
                return
            yield dict(zip(names, row, strict=True))


class _GivenUp(Exception):
    """The search for a row took too long."""
