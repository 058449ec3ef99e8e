"""Trials: which law is tried on which subject, and the one entry that tries it."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnspec.conformance.check import check, check_deviation, deviations
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Law, registered
from attnspec.conformance.other_profiles import holds_under, sentence
from attnspec.conformance.process import restored
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.targets import Judgeable, alike
from attnspec.conformance.undeclared import undeclared
from attnspec.spec import Deviation


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One law on one subject, or one of its known deviations."""

    law: Law
    judged: Judgeable
    deviation: Deviation | None = None

    @property
    def id(self) -> str:
        """As reports and pytest print it: clause, law, subject."""
        known = "" if self.deviation is None else "/known"
        return f"{self.law.clauses[0]}/{self.law.name}/{self.judged.subject.name}{known}"

    def run(
        self,
        effort: Effort,
        seed: int | None = None,
        told: Callable[[Any], None] | None = None,
        so_far: Callable[[Record], None] | None = None,
    ) -> Record:
        """Try it.

        Args:
            effort: how hard to look.
            seed: of cases which differ from run to run.
            told: is handed each case before it is tried, which may be the last that is heard of.
            so_far: is handed the record that stands, should what follows it not come back: calls
                that the subject does not claim, or that tell which planted bug it looks like.
        """
        subject = self.judged.subject
        failing: list[Any] = []

        def heard(case: Any) -> None:
            failing[:] = [case]
            if told is not None:
                told(case)

        with restored():
            if self.deviation is not None:
                if told is not None:
                    told(self.deviation.example)
                return check_deviation(self.law, subject, self.deviation)
            record = check(self.law, subject, effort, seed, heard)
            if record.outcome is Outcome.NOT_CLAIMED:
                return undeclared(self.law, subject, record, so_far)
        if record.outcome is not Outcome.FAILED:
            return record
        if so_far is not None:
            so_far(record)
        with restored():
            words = holds_under(self.law, subject, failing[-1])
        if words:
            message = f"{record.message}\n\n{sentence(words)}"
            record = replace(record, holds_under=words, message=message)
        # the catalogue takes longer to import than a law to run
        from attnspec.conformance.diagnosis import diagnosed

        return diagnosed(record, subject)


def trials(subjects: Iterable[Judgeable], patterns: Sequence[str] = ()) -> list[Trial]:
    """Every law of a subject's kind on each subject, and its known deviations.

    Args:
        subjects: what to judge.
        patterns: shell patterns of law names, clause ids or families; none means all laws.

    Raises:
        ValueError: for a pattern that matches no law, naming it.
    """
    found = []
    # Law by law, so that one verdict of the oracle serves all subjects that make the same call.
    subjects = list(subjects)
    for law in chosen(patterns):
        for judged in subjects:
            if law.judges is judged.kind:
                found.append(Trial(law=law, judged=judged))
                known = deviations(law, judged.subject)
                found += [Trial(law=law, judged=judged, deviation=each) for each in known]
    return found


def chosen(patterns: Sequence[str]) -> list[Law]:
    """The laws that shell patterns choose; none means all.

    Raises:
        ValueError: for a pattern that matches no law, naming it.
    """
    import attnspec.conformance.laws  # noqa: F401  (registers them)

    laws = registered()
    for pattern in patterns:
        if not any(_matches(law, pattern) for law in laws.values()):
            names = {name for law in laws.values() for name in _names(law)}
            raise ValueError(f"no law or clause matches {pattern!r}{alike(pattern, sorted(names))}")
    return [
        law
        for law in laws.values()
        if not patterns or any(_matches(law, each) for each in patterns)
    ]


def _matches(law: Law, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for name in _names(law))


def _names(law: Law) -> list[str]:
    return [law.name, *law.clauses, *(each.partition("-")[0] for each in law.clauses)]
