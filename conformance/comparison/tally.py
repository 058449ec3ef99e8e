"""Counts of one run of a law: the worst fraction of a bound, and reasons of unclaimed cases."""

import contextvars
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from attnspec.conformance.comparison.lines import Lines

REFUSED_COMBINATION = "it refuses together "
"""The first words of the reason why a combination of arguments is not claimed."""


@dataclass
class Tally:
    """The counts of one law on one subject.

    Attributes:
        examples: cases on which the law ran to the end.
        worst: the largest fraction of a bound that was used; 1 is the limit.
        seconds: time spent per part: `implementation`, `oracle`, `bound`.
        reasons: the distinct reasons why cases were not claimed, in order.
        missing: those of the reasons that name something this machine lacks.
        figures: by name, the largest of the numbers that a law measures without judging them.
        covered_pairs: the pairs of regimes of calls whose wrong results a law would have seen.
        called_pairs: those of all calls that it has judged.
        claimed_pairs: the pairs of regimes that it is to cover.
        untried_pairs: pairs of regimes that it leaves out, by the reason.
        deviating_pairs: those of calls that a known deviation affects, which are not judged.
        lines: the lines of the subject's own code that its calls run; None if it has no such code.
    """

    examples: int = 0
    worst: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    covered_pairs: set[frozenset[Any]] = field(default_factory=set)
    called_pairs: set[frozenset[Any]] = field(default_factory=set)
    claimed_pairs: set[frozenset[Any]] = field(default_factory=set)
    untried_pairs: dict[str, list[frozenset[Any]]] = field(default_factory=dict)
    deviating_pairs: set[frozenset[Any]] = field(default_factory=set)
    lines: Lines | None = None

    def add_reason(self, reason: str, *, missing: bool = False) -> None:
        """Add the reason why a case was not tried.

        Args:
            reason: in words.
            missing: true if the machine lacks something, false if the subject does not claim it.
        """
        if reason not in self.reasons:
            self.reasons.append(reason)
        if missing and reason not in self.missing:
            self.missing.append(reason)

    def add_seconds(self, part: str, seconds: float) -> None:
        """Add time to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds


_CURRENT: contextvars.ContextVar[Tally | None] = contextvars.ContextVar("tally", default=None)


@contextmanager
def counting(tally: Tally) -> Iterator[Tally]:
    """Count the results of every law inside into `tally`."""
    token = _CURRENT.set(tally)
    try:
        yield tally
    finally:
        _CURRENT.reset(token)


def current() -> Tally | None:
    """Return the tally of the current run, or None outside a run."""
    return _CURRENT.get()


def watching_lines() -> AbstractContextManager[None]:
    """Return a context in which the lines of the subject's own code are noted, if any are."""
    tally = current()
    return nullcontext() if tally is None or tally.lines is None else tally.lines.watched()


def spent(part: str, started: float) -> None:
    """Add the time since a start, of `time.perf_counter`, to a part of the current run, if any."""
    tally = current()
    if tally is not None:
        tally.add_seconds(part, time.perf_counter() - started)


LARGEST = "longest call: "
"""The beginning of the names of figures that are sizes of calls, as in reports that are stored."""


def record_sizes(tally: Tally, queries: int, keys: int, items: int, *, backward: bool) -> None:
    """Record that a call of attention was judged: the largest sizes of each kind are kept.

    Args:
        tally: the counts of the law.
        queries: of the call.
        keys: likewise.
        items: its batch elements times its heads.
        backward: whether it has a backward pass.
    """
    if queries == 1:
        sizes = {"keys of one query": keys}
    else:
        sizes = {"queries and keys": min(queries, keys)}
    sizes["scores of all heads"] = items * queries * keys
    for kind, size in sizes.items():
        name = f"{LARGEST}{kind}{WITH_GRADIENTS if backward else ''}"
        tally.figures[name] = max(size, tally.figures.get(name, size))


GIVEN = "calls at given sizes: "
"""The beginning of the names of figures that count the calls at sizes which a user gives."""

WITH_GRADIENTS = " with gradients"


def record_given(tally: Tally, sizes: str, count: int, *, backward: bool) -> None:
    """Record a number of calls at given sizes, which may be 0: a report tells that none is claimed.

    Args:
        tally: the counts of the law.
        sizes: as the user typed them.
        count: how many more.
        backward: whether they have a backward pass.
    """
    name = f"{GIVEN}{sizes}{WITH_GRADIENTS if backward else ''}"
    tally.figures[name] = tally.figures.get(name, 0) + count


def record_fraction(fraction: float) -> None:
    """Record the fraction of its bound that a result used; NaN counts as infinity."""
    tally = _CURRENT.get()
    if tally is not None:
        fraction = math.inf if math.isnan(fraction) else fraction
        tally.worst = fraction if tally.worst is None else max(tally.worst, fraction)


def record_figure(name: str, value: float) -> None:
    """Record a number that is measured and not judged; the largest of each name is kept."""
    tally = _CURRENT.get()
    if tally is not None:
        tally.figures[name] = max(value, tally.figures.get(name, value))
