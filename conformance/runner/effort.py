"""Efforts: how many cases exploration draws, and how long it may shrink a failing one."""

from dataclasses import dataclass
from enum import StrEnum


class Effort(StrEnum):
    """How many cases to try; pinned cases come first."""

    SMOKE = "smoke"
    """Pinned cases and a few more, or few of them where each shape is compiled; takes seconds."""
    STANDARD = "standard"
    """The default: wide cases, grown ones, new on every run, and more drawn ones, the same ones."""
    THOROUGH = "thorough"
    """New cases on every run, and a database of failing ones."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The cases and the time that an effort allows.

    Attributes:
        examples: cases drawn for a law whose cost is 1.
        shrinking: seconds after the first failure in which a smaller one is sought.
        derandomised: true if every run draws the same cases.
    """

    examples: int
    shrinking: float
    derandomised: bool

    def examples_of(self, cost: float) -> int:
        """Return the number of cases to draw for a law of a given cost, two at least."""
        return max(2, round(self.examples / cost))


BUDGETS = {
    Effort.SMOKE: Budget(examples=2, shrinking=2.0, derandomised=True),
    Effort.STANDARD: Budget(examples=15, shrinking=5.0, derandomised=True),
    Effort.THOROUGH: Budget(examples=500, shrinking=60.0, derandomised=False),
}
