"""Checking: one law on one subject, from the first pinned case to a record."""

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis.errors import Flaky

from attnspec.conformance import tally
from attnspec.conformance.combination import refused_combination
from attnspec.conformance.effort import BUDGETS, Effort
from attnspec.conformance.explore import explore
from attnspec.conformance.failure import describe
from attnspec.conformance.law import Law
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import QualityWarning, Violation
from attnspec.spec import Case, Deviation

REPEATS = 10
"""How often a case that failed is repeated, to tell what is wrong from what changes its mind."""

REPEATING = 1.0
"""Seconds after which it is not repeated again."""


@dataclass
class _Trial:
    """A law being tried on a subject: the state that one record is made from."""

    law: Law
    subject: Any
    count: tally.Tally = field(default_factory=tally.Tally)
    dtypes: dict[str, None] = field(default_factory=dict)
    failing: Any = None
    seed: int | None = None
    lacks: bool = False
    told: Callable[[Any], None] | None = None

    def attempt(self, case: Any) -> None:
        """Try one case; a case that the subject does not claim is counted as refused."""
        if isinstance(self.subject, Subject):
            reason = self.subject.refuses(case)
            if reason is not None:
                self.count.refused(reason)
                return
            if any(known.applies(case) for known in deviations(self.law, self.subject)):
                return
        if self.told is not None:
            self.told(case)
        try:
            with tally.counting(self.count):
                self.law.check(self.subject, case)
        except tally.NotClaimed as refusal:
            self.count.refused(str(refusal))
            self.lacks |= isinstance(refusal, tally.NotAvailable)
            return
        except Exception as error:
            told = refused_combination(self.subject, error)
            if told is not None:
                self.count.refused(told)
                return
            self.failing = case
            raise
        self.count.examples += 1
        self.dtypes[str(getattr(case, "dtype", "")).removeprefix("torch.")] = None

    def record(self, outcome: Outcome, started: float, **more: Any) -> Record:
        """The record of what has been tried so far."""
        return Record(
            subject=self.subject.name,
            law=self.law.name,
            clauses=self.law.clauses,
            outcome=outcome,
            examples=self.count.examples,
            refused=tuple(self.count.reasons),
            worst=self.count.worst,
            dtypes=tuple(name for name in self.dtypes if name),
            device=getattr(self.subject, "device", "cpu"),
            seconds=self.count.seconds | {"total": time.perf_counter() - started},
            figures=dict(self.count.figures),
            seed=self.seed,
            **more,
        )


def deviations(law: Law, subject: Any) -> list[Deviation]:
    """The known deviations of a subject from a law."""
    implementation = getattr(subject, "implementation", None)
    return [each for each in getattr(implementation, "deviations", ()) if each.law == law.name]


def claims(subject: Any) -> Iterable[str]:
    """The features and extras that a subject of any kind declares."""
    claimed = getattr(subject, "implementation", subject)
    return (*getattr(claimed, "features", ()), *getattr(claimed, "extras", ()))


def unavailable(subject: Any) -> str | None:
    """Why a subject of any kind cannot run here, or `None`."""
    reason = getattr(getattr(subject, "implementation", subject), "unavailable", None)
    return None if reason is None else reason()


def check(
    law: Law,
    subject: Any,
    effort: Effort | None = Effort.STANDARD,
    seed: int | None = None,
    told: Callable[[Any], None] | None = None,
    repeats: int = REPEATS,
) -> Record:
    """Try a law on a subject: pinned cases in their order, wide ones, then drawn ones.

    Args:
        law: from `attnspec.conformance.law.registered()`.
        subject: a `Subject` for laws of attention, else the record of the implementation.
        effort: which cases to try beside the pinned ones; `None` for none.
        seed: from which cases are drawn where they differ from run to run; `None` throws dice.
        told: is handed each case before it is tried.
        repeats: how often a failing case is tried again, to tell whether it always fails.

    Returns:
        What became of it. This never raises for anything that the subject does.
    """
    started = time.perf_counter()
    trial = _Trial(law, subject, told=told)
    reason = unavailable(subject)
    if reason is not None:
        return trial.record(Outcome.NOT_AVAILABLE, started, reason=reason)
    missing = sorted(law.needs.difference(claims(subject)))
    if missing:
        reason = f"feature not claimed: {', '.join(missing)}"
        return trial.record(Outcome.NOT_CLAIMED, started, reason=reason)
    try:
        pinned = _fitted(subject, law.pinned)
        for case in pinned:
            trial.attempt(case)
        known = set(pinned)
        chosen = law.design(subject) if law.design else ()
        wide = law.wide if effort in (Effort.STANDARD, Effort.THOROUGH) else ()
        large = law.large if effort is Effort.THOROUGH else ()
        for case in (*chosen, *_fitted(subject, (*wide, *large))):
            if case not in known:
                trial.attempt(case)
        source = None if law.explore is None or effort is None else law.explore(subject)
        if source is not None and effort is not None:
            if law.fresh or not BUDGETS[effort].derandomised:
                trial.seed = secrets.randbelow(2**32) if seed is None else seed
            name = f"{law.name} on {subject.name}"
            explore(trial.attempt, source, BUDGETS[effort], law.cost, trial.seed, name)
    except Flaky as error:
        return _flaky(trial, error, started, repeats)
    except (Violation, Exception) as error:
        return _broken(trial, error, started, repeats)
    if trial.count.examples == 0:
        reason = trial.count.reasons[0] if trial.count.reasons else "no case to try"
        outcome = Outcome.NOT_AVAILABLE if trial.lacks else Outcome.NOT_CLAIMED
        return trial.record(outcome, started, reason=reason)
    return trial.record(Outcome.PASSED, started)


def _fitted(subject: Any, cases: Iterable[Any]) -> list[Any]:
    """Cases as near to the given ones as a subject claims, each once."""
    if not isinstance(subject, Subject):
        return list(cases)
    return list(
        dict.fromkeys(subject.fit(each) if isinstance(each, Case) else each for each in cases)
    )


def _broken(trial: _Trial, error: Exception, started: float, repeats: int) -> Record:
    """Tell a broken law from a subject that raised, and both from one that changes its mind."""
    told = describe(trial.law, trial.subject, trial.failing, error)
    if trial.seed is not None:
        told["message"] += f"\n\nDrawn with --seed {trial.seed}"
    if isinstance(error, QualityWarning):
        return trial.record(Outcome.QUALITY_WARNING, started, **told)
    failed, passed = _again(trial, repeats)
    if passed:
        _say_flaky(told, failed + 1, passed)
        return trial.record(Outcome.FLAKY, started, **told)
    outcome = Outcome.ERRORED if not isinstance(error, Violation) else Outcome.FAILED
    return trial.record(outcome, started, **told)


def _again(trial: _Trial, repeats: int) -> tuple[int, int]:
    """Repeat the failing case: how often it failed, and how often it passed."""
    started, failed, passed = time.perf_counter(), 0, 0
    while failed + passed < repeats:
        try:
            trial.attempt(trial.failing)
        except Exception:
            failed += 1
        else:
            passed += 1
        if time.perf_counter() - started > REPEATING:
            break
    return failed, passed


def _flaky(trial: _Trial, error: Flaky, started: float, repeats: int) -> Record:
    """What Hypothesis found to change its mind: with how it failed, and how often."""
    causes = [each for each in getattr(error, "exceptions", ()) if isinstance(each, Exception)]
    told = describe(trial.law, trial.subject, trial.failing, causes[0] if causes else error)
    failed, passed = _again(trial, repeats)
    # it was seen to fail and to pass before it was repeated
    _say_flaky(told, failed + 1, passed + 1)
    return trial.record(Outcome.FLAKY, started, **told)


def _say_flaky(told: dict[str, Any], failed: int, passed: int) -> None:
    """Tell both results of the same case."""
    reason = (
        f"the same case failed and passed: {failed} of {failed + passed} times it failed, "
        f"the others it passed. Where it failed: {told['reason']}"
    )
    told["message"] += f"\n\nFlaky    {reason}"
    told["reason"] = reason


def check_deviation(law: Law, subject: Subject, deviation: Deviation) -> Record:
    """Try the example of a known deviation, which is expected to break the law."""
    started = time.perf_counter()
    trial = _Trial(law, subject)
    reason = unavailable(subject) or subject.refuses(deviation.example)
    if reason is not None:
        return trial.record(Outcome.NOT_AVAILABLE, started, reason=reason, link=deviation.link)
    try:
        with tally.counting(trial.count):
            law.check(subject, deviation.example)
    except (Violation, Raised) as error:
        told = describe(law, subject, deviation.example, error)
        told["reason"] = deviation.reason
        return trial.record(Outcome.EXPECTED_FAILURE, started, link=deviation.link, **told)
    reason = f"no longer deviates, so this entry must go: {deviation.reason}"
    return trial.record(Outcome.UNEXPECTED_PASS, started, reason=reason, link=deviation.link)
