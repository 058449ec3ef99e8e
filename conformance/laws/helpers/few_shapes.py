"""A design of regimes for a kernel that compiles anew for each shape: its calls share few shapes.

Compiling takes longer than the calls. So every class of sizes is in one of a few shapes, and each
shape meets the classes of all other axes. Two classes of sizes meet only if a shape has both.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from attnspec.conformance.attention.regimes import AXES, Regime
from attnspec.conformance.laws.helpers.pairwise import each_once, pairwise
from attnspec.conformance.laws.helpers.regimes import (
    CHEAP,
    FREE,
    Choice,
    Plan,
    min_of,
    pairs_shown,
)

SHAPES = 30
"""Shapes that a design uses at most."""

REASON = f"it compiles for each shape, and {SHAPES} shapes are tried"
"""Why pairs of sizes are not tried."""

SIZES = ("batch", "heads", "queries", "keys", "d_head", "d_value")
"""The fields that make a shape."""

SIZE_AXES = tuple(
    axis
    for axis, regimes in AXES.items()
    if any(set(SIZES).intersection(regime.conditions) for regime in regimes)
)
"""The axes with classes of sizes; those of some depend on other fields too."""


class PlanOfFewShapes(Plan):
    """A plan whose cases share at most `SHAPES` shapes.

    Attributes:
        shapes: the shapes, each as a class of its own.
    """

    def __init__(self, plan: Plan) -> None:
        """Choose rows for the claims of a plan that has any number of shapes."""
        self.device, self.subject = plan.device, plan.subject
        self.usual, self.heads, self.axes = plan.usual, plan.heads, plan.axes
        self._simplest = {}
        self.shapes = tuple(self._shapes())
        axes = {"shape": self.shapes} | {
            axis: self._choices(axis) for axis in AXES if axis not in SIZE_AXES
        }
        self.combined = tuple(pairwise(axes, partial(self._takes_at_most, CHEAP)))
        self.rows = [*self.combined]
        shown = set().union(*(pairs_shown(self._regimes_of(row)) for row in self.rows))
        self.claimed = plan.claimed & shown
        missing = sorted(plan.claimed - shown, key=lambda pair: sorted(map(str, pair)))
        self.not_tried = plan.not_tried | ({REASON: missing} if missing else {})

    def _shapes(self) -> Iterator[Regime]:
        """Yield shapes that hold every class of sizes that a cheap call may have."""
        axes = {axis: self._choices(axis) for axis in SIZE_AXES}
        known: set[tuple[Any, ...]] = set()
        for row in each_once(axes, partial(self._takes_at_most, CHEAP)):
            values = self.values(row, min_of)
            assert values is not None
            sizes = {name: values[name] for name in SIZES}
            if len(known) < SHAPES and tuple(sizes.values()) not in known:
                known.add(tuple(sizes.values()))
                yield Regime(
                    axis="shape",
                    name=" ".join(f"{name}={value}" for name, value in sizes.items()),
                    conditions={name: partial(_is, value) for name, value in sizes.items()},
                )

    def _choices(self, axis: str) -> tuple[Choice, ...]:
        return (*self.axes[axis], None) if axis in FREE else self.axes[axis]

    def _regimes_of(self, row: Mapping[str, Choice]) -> Iterator[Regime]:
        """Yield the regimes of the simplest case of a row: those of its sizes, and its own."""
        values = self.values(row, min_of)
        assert values is not None
        for axis in SIZE_AXES:
            for regime in AXES[axis]:
                if all(condition(values[name]) for name, condition in regime.conditions.items()):
                    yield regime
        yield from (each for axis, each in row.items() if each is not None and axis != "shape")


def _is(value: Any, other: Any) -> bool:
    return bool(value == other)
