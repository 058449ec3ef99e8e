"""Effort: how many cases exploration draws, and how long it may shrink what it finds."""

from dataclasses import dataclass
from enum import StrEnum


class Effort(StrEnum):
    """How hard to look; every effort runs all pinned cases first."""

    SMOKE = "smoke"
    """Pinned cases and a handful more: seconds."""
    STANDARD = "standard"
    """The default: wide cases as well, and more that are drawn, the same on every run."""
    THOROUGH = "thorough"
    """New cases on every run, and a database of those that failed."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What an effort allows.

    Attributes:
        examples: cases drawn for a law whose cost is 1.
        shrinking: seconds after the first failure in which a smaller one is sought.
        derandomised: true where every run draws the same cases.
    """

    examples: int
    shrinking: float
    derandomised: bool

    def examples_of(self, cost: float) -> int:
        """Cases drawn for a law of a given cost: never none."""
        return max(2, round(self.examples / cost))


BUDGETS = {
    Effort.SMOKE: Budget(examples=2, shrinking=2.0, derandomised=True),
    Effort.STANDARD: Budget(examples=25, shrinking=5.0, derandomised=True),
    Effort.THOROUGH: Budget(examples=500, shrinking=60.0, derandomised=False),
}
