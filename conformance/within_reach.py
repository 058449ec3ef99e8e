"""Trials of planted bugs: laws by their pinned cases, each where it reaches what may be wrong."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Law
from attnspec.conformance.process import restored
from attnspec.conformance.reach import Reach, noting
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.spec import Implementation


@dataclass
class Known:
    """What passed on subjects tried before.

    Attributes:
        cases: of each case of a law the steps that it took, and its seconds.
        laws: of each law its record, and its seconds.
        claims: a number for all that a subject claims; numbers are compared sooner.
    """

    cases: Reach[tuple[frozenset[str], float]] = field(default_factory=Reach)
    laws: Reach[tuple[Record, float]] = field(default_factory=Reach)
    claims: dict[Implementation, int] = field(default_factory=dict)

    def number(self, implementation: Implementation) -> int:
        """The number of what an implementation claims, by whatever name and attention."""
        claimed = replace(implementation, name="any", attention=_nothing)
        return self.claims.setdefault(claimed, len(self.claims))


_KNOWN = Known()


class Trials:
    """The laws tried on one subject by their pinned cases, without what passed by the same code.

    Attributes:
        subject: what is judged, which notes the steps that it takes.
    """

    def __init__(self, subject: Any, known: Known = _KNOWN) -> None:
        self.subject = subject
        self._known = known
        self._attention: Any = None
        self._steps: set[str] = set()
        self._claims = 0
        # of extras more than calls is judged: what a compiler sees, say
        if isinstance(subject, Subject) and not subject.implementation.extras:
            implementation = subject.implementation
            self._attention = implementation.attention
            noted, self._steps = noting(self._attention)
            self.subject = replace(subject, implementation=replace(implementation, attention=noted))
            # with other claims a law meets other cases, or asks otherwise
            self._claims = known.number(implementation)

    def on(self, law: Law) -> tuple[Record, float]:
        """What becomes of a law, and how many seconds it takes where it is tried on every case."""
        about = law.name, self._claims
        known = self._known.laws.known(about, self._attention)
        if known is not None:
            record, seconds = known
            return replace(record, subject=self.subject.name), seconds
        taken: set[str] = set()
        spared: list[float] = []
        near = replace(law, check=self._check(law, taken, spared))
        record, seconds = tried(near, self.subject, None)
        seconds += sum(spared)
        if record.outcome is Outcome.PASSED:
            self._known.laws.learn(about, self._attention, taken, (record, seconds))
        return record, seconds

    def _check(self, law: Law, taken: set[str], spared: list[float]) -> Callable[[Any, Any], None]:
        """The check of a law, passing over cases that passed by the same code.

        Args:
            law: whose check.
            taken: is given the steps that all cases take.
            spared: is given the seconds of each case that is passed over.
        """

        @functools.wraps(law.check)
        def check_within_reach(subject: Any, case: Any) -> None:
            about = law.name, self._claims, case
            known = self._known.cases.known(about, self._attention)
            if known is not None:
                taken.update(known[0])
                spared.append(known[1])
                return
            started = time.perf_counter()
            self._steps.clear()
            try:
                law.check(subject, case)
            finally:
                taken.update(self._steps)
            passed = frozenset(self._steps), time.perf_counter() - started
            self._known.cases.learn(about, self._attention, self._steps, passed)

        return check_within_reach


def tried(law: Law, subject: Any, effort: Effort | None) -> tuple[Record, float]:
    """Try a law once, and say in how many seconds.

    A case that fails is not repeated: dead is dead.
    """
    started = time.perf_counter()
    with restored():
        record = check(law, subject, effort, seed=0, repeats=0)
    return record, time.perf_counter() - started


def _nothing(*_: Any, **__: Any) -> Any:
    """Stands for any attention, where claims are compared."""
