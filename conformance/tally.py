"""What a run of a law counts: the worst fraction of a bound, and why a case was not claimed."""

import contextvars
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

TOGETHER = "it refuses together "
"""How the reason begins for which a combination of arguments was not claimed."""


class NotClaimed(Exception):
    """The subject does not claim what this case asks; the message says why."""


class NotAvailable(NotClaimed):
    """The machine lacks what this case needs; the message says what."""


@dataclass
class Tally:
    """Counts of one law on one subject.

    Attributes:
        examples: cases on which the law was tried to the end.
        worst: the largest fraction of a bound that was reached, 1 being the limit.
        seconds: time spent per part: `implementation`, `oracle`, `bound`.
        reasons: why cases were not claimed, each once, in order.
        figures: what a law measures without judging it, by name; the largest of each.
    """

    examples: int = 0
    worst: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def refused(self, reason: str) -> None:
        """Remember why a case was not claimed."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def spent(self, part: str, seconds: float) -> None:
        """Add time to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds


_CURRENT: contextvars.ContextVar[Tally | None] = contextvars.ContextVar("tally", default=None)


@contextmanager
def counting(tally: Tally) -> Iterator[Tally]:
    """Let the laws inside count into `tally`."""
    token = _CURRENT.set(tally)
    try:
        yield tally
    finally:
        _CURRENT.reset(token)


def current() -> Tally | None:
    """The tally being counted into, or `None` outside a run."""
    return _CURRENT.get()


def reached(fraction: float) -> None:
    """Report that a result used this fraction of its bound (NaN counts as infinitely much)."""
    tally = _CURRENT.get()
    if tally is not None:
        fraction = math.inf if math.isnan(fraction) else fraction
        tally.worst = fraction if tally.worst is None else max(tally.worst, fraction)


def figure(name: str, value: float) -> None:
    """Report a number that is measured and not judged; of several, the largest is kept."""
    tally = _CURRENT.get()
    if tally is not None:
        tally.figures[name] = max(value, tally.figures.get(name, value))
