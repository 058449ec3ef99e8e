"""Checking one law on one subject, from the first pinned case to a record."""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis.errors import Flaky

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.lines import Lines
from attnspec.conformance.comparison.violation import (
    NotAvailable,
    NotClaimed,
    QualityWarning,
    Raised,
    Violation,
)
from attnspec.conformance.diagnosis.failure.describe import describe
from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.laws.law import Law, Wide
from attnspec.conformance.models.recording import Recording
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.report.record import DEVIATING, HIDDEN, Outcome, Record
from attnspec.conformance.runner.effort import BUDGETS, Effort
from attnspec.conformance.runner.explore import explore
from attnspec.conformance.runner.growth import grown_cases, grows
from attnspec.conformance.runner.internal_error import is_internal, traceback_of
from attnspec.spec import Case, Deviation

REPEATS = 10
"""How often a failing case is repeated, to tell a deterministic failure from a flaky one."""

REPEATING = 1.0
"""Seconds after which a failing case is not repeated again."""

ENOUGH = 450.0
"""Seconds after which a law starts no further large case, of the ten minutes that it has by
default: large cases take as long as the implementation does."""

COMPILED = 3
"""Cases of a law of cost 1 in a smoke run of a kernel that compiles each shape: each call takes
seconds, and all pinned cases most of an hour."""


@dataclass
class _LawRun:
    """One law being tried on one subject: the state that its record is made from."""

    law: Law
    subject: Any
    count: tally.Tally = field(default_factory=tally.Tally)
    dtypes: dict[str, None] = field(default_factory=dict)
    failing: Any = None
    made: Recording | None = None
    seed: int | None = None
    on_case: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        # a device runs backward passes in threads that no tracer sees
        if getattr(self.subject, "device", "cpu") == "cpu":
            self.count.lines = Lines.of(_function_of(self.subject))

    def attempt(self, case: Any) -> None:
        """Try one case; a case that the subject does not claim is counted as refused."""
        trial = try_case(self.law, self.subject, case, self.count, self.on_case)
        if trial.refusal:
            self.count.add_reason(trial.refusal, missing=trial.is_missing)
        if not trial.was_tried:
            return
        if trial.error is not None:
            self.failing, self.made = getattr(trial.error, "case", None) or case, trial.made
            raise trial.error
        self.count.examples += 1
        if isinstance(case, Case):
            items = case.batch * case.heads
            tally.record_sizes(self.count, case.queries, case.keys, items, backward=case.backward)
        self.dtypes[str(getattr(case, "dtype", "")).removeprefix("torch.")] = None

    def record(self, outcome: Outcome, started: float, **more: Any) -> Record:
        """Make the record of the cases tried so far."""
        return Record(
            subject=self.subject.name,
            law=self.law.name,
            clauses=self.law.clauses,
            outcome=outcome,
            examples=self.count.examples,
            refused=tuple(self.count.reasons),
            missing=tuple(self.count.missing),
            worst=self.count.worst,
            dtypes=tuple(name for name in self.dtypes if name),
            device=getattr(self.subject, "device", "cpu"),
            seconds=self.count.seconds | {"total": time.perf_counter() - started},
            figures=dict(self.count.figures),
            coverage=_coverage(self.count),
            lines=None if self.count.lines is None else self.count.lines.found(),
            seed=self.seed,
            **more,
        )


def _coverage(count: tally.Tally) -> dict[str, Any] | None:
    """Return the field `coverage` of a record; None for a law that is not about regimes."""
    if not count.claimed_pairs:
        return None
    uncovered = count.claimed_pairs - count.covered_pairs
    hidden = uncovered & count.called_pairs
    deviating = (uncovered - hidden) & count.deviating_pairs
    missing = uncovered - hidden - deviating
    unjudged = {HIDDEN: list(hidden), DEVIATING: list(deviating)}
    untried = count.untried_pairs | {reason: pairs for reason, pairs in unjudged.items() if pairs}
    backward = [str(each) == "backward: yes" for pair in count.claimed_pairs for each in pair]
    return {
        "backward": any(backward),
        "claimed": len(count.claimed_pairs - hidden - deviating),
        "called": len(count.claimed_pairs - uncovered),
        "missing": sorted(map(_in_words, missing)),
        "not tried": {reason: sorted(map(_in_words, pairs)) for reason, pairs in untried.items()},
    }


def _in_words(pair: Iterable[Any]) -> str:
    return " with ".join(sorted(map(str, pair)))


def _function_of(subject: Any) -> Any:
    """Return the function of a subject of any kind, or `None`."""
    declared, names = _declared(subject), ("attention", "function", "build")
    return next((getattr(declared, name) for name in names if hasattr(declared, name)), None)


def _declared(subject: Any) -> Any:
    """Return the declaration of a subject of any kind, which may be one itself."""
    return getattr(subject, "implementation", subject)


def claims(subject: Any) -> Iterable[str]:
    """List the features and extras that a subject of any kind declares."""
    claimed = _declared(subject)
    return (*getattr(claimed, "features", ()), *getattr(claimed, "extras", ()))


def unavailable(subject: Any) -> str | None:
    """Return the reason why a subject of any kind cannot run here, or `None`."""
    reason = getattr(_declared(subject), "unavailable", None)
    return None if reason is None else reason()


def check(
    law: Law,
    subject: Any,
    effort: Effort | None = Effort.STANDARD,
    seed: int | None = None,
    on_case: Callable[[Any], None] | None = None,
    repeats: int = REPEATS,
) -> Record:
    """Try a law on a subject: pinned cases in their order, wide and grown ones, then drawn ones.

    Args:
        law: from `attnspec.conformance.laws.load()`.
        subject: a `Subject` for laws of attention, else the record of the implementation.
        effort: selects the cases beside the pinned ones; `None` for none.
        seed: of the cases that differ from run to run; by default a random one.
        on_case: called with each case before it is tried.
        repeats: how often a failing case is tried again, to tell whether it always fails.

    Returns:
        The record. An error of the subject becomes its outcome and is not raised.
    """
    started = time.perf_counter()
    run = _LawRun(law, subject, on_case=on_case)
    reason = unavailable(subject)
    if reason is not None:
        run.count.add_reason(reason, missing=True)
        return run.record(Outcome.NOT_AVAILABLE, started, reason=reason)
    unclaimed = sorted(law.needs.difference(claims(subject)))
    if unclaimed:
        reason = f"feature not claimed: {', '.join(unclaimed)}"
        return run.record(Outcome.NOT_CLAIMED, started, reason=reason)
    try:
        pinned = _fitted(subject, law.pinned)
        is_short = effort is Effort.SMOKE and _compiles_each_shape(subject)
        enough = max(1, round(COMPILED / law.cost)) if is_short else len(pinned)
        for case in _spread(pinned, enough):
            if run.count.examples >= enough:
                break
            run.attempt(case)
        known = set(pinned)
        is_fresh = effort is not None and (law.fresh or not BUDGETS[effort].derandomised)
        seed = secrets.randbelow(2**32) if seed is None else seed
        run.seed = seed if is_fresh else None
        if isinstance(subject, Subject):
            subject.seed = seed
        with tally.counting(run.count):
            chosen = law.design(subject) if law.design else ()
        given = set(chosen) if getattr(subject, "sizes", ()) else ()
        wide = _chosen(run, law.wide) if effort in (Effort.STANDARD, Effort.THOROUGH) else ()
        large = _chosen(run, law.large) if effort is Effort.THOROUGH else ()
        for case in (*chosen, *dict.fromkeys((*wide, *large))):
            if time.perf_counter() - started > ENOUGH:
                reason = f"time for more large cases, which a law tries for {ENOUGH:g} s"
                run.count.add_reason(reason, missing=True)
                break
            if case not in known:
                run.attempt(case)
            if case in given:
                _count_given(run, case)
        grown: Sequence[Any] = ()
        if effort is not None and grows(law, subject, effort):
            grown = grown_cases(law, subject, effort, seed)
        run.seed = seed if is_fresh or grown else None
        for case in grown:
            run.attempt(case)
        run.seed = seed if is_fresh else None
        is_enough = effort is None or (is_short and run.count.examples > 0)
        source = None if law.explore is None or is_enough else law.explore(subject)
        if source is not None and effort is not None:
            name = f"{law.name} on {subject.name}"
            explore(run.attempt, source, BUDGETS[effort], law.cost, run.seed, name)
    except NotClaimed as refusal:  # by the choice of cases
        run.count.add_reason(str(refusal), missing=isinstance(refusal, NotAvailable))
    except Flaky as error:
        return _flaky(run, error, started, repeats)
    except (Violation, Exception) as error:
        return _broken(run, error, started, repeats)
    if run.count.examples == 0:
        reasons = (*run.count.missing, *run.count.reasons, "no case to try")
        outcome = Outcome.NOT_AVAILABLE if run.count.missing else Outcome.NOT_CLAIMED
        return run.record(outcome, started, reason=reasons[0])
    run.seed = seed if is_fresh or grown else None
    return run.record(Outcome.PASSED, started)


def _count_given(run: _LawRun, case: Case) -> None:
    """Count a call at each of the sizes that a user gave for the law, if it is claimed."""
    for sizes in run.subject.sizes:
        if sizes.holds(case) and run.subject.refuses(case) is None:
            tally.record_given(run.count, str(sizes), 1, backward=case.backward)


def _compiles_each_shape(subject: Any) -> bool:
    return bool(getattr(_declared(subject), "compiles_each_shape", False))


def _spread(cases: Sequence[Any], number: int) -> list[Any]:
    """Return first that many cases from the whole of a sequence, then those between them."""
    step = max(1, math.ceil(len(cases) / max(1, number)))
    return [case for start in range(step) for case in cases[start::step]]


def _chosen(run: _LawRun, cases: Wide) -> Sequence[Any]:
    """Return the wide or large cases of a law, fitted to the claims of a subject.

    A law may choose cases for its claims. Those for a kernel that compiles each shape have few
    shapes already, and other ones than fitted pinned cases.
    """
    if not callable(cases):
        return _fitted(run.subject, cases)
    with tally.counting(run.count):
        chosen = cases(run.subject, run.seed or 0)
    return chosen if isinstance(run.subject, Subject) else _fitted(run.subject, chosen)


def _fitted(subject: Any, cases: Iterable[Any]) -> list[Any]:
    """Change cases as little as a subject's claims require, and drop those that become equal."""
    if isinstance(subject, OperatorSubject):
        return list(dict.fromkeys(map(subject.fit, cases)))
    if not isinstance(subject, Subject):
        return list(cases)
    return list(
        dict.fromkeys(subject.fit(each) if isinstance(each, Case) else each for each in cases)
    )


def _broken(run: _LawRun, error: Exception, started: float, repeats: int) -> Record:
    """Make the record of a broken law, of a subject that raised, or of a flaky one."""
    fields = describe(run.law, run.subject, run.failing, error, made=run.made)
    if run.seed is not None:
        fields["message"] += f"\n\nDrawn with --seed {run.seed}"
    if isinstance(error, QualityWarning):
        return run.record(Outcome.QUALITY_WARNING, started, **fields)
    if is_internal(run.law, run.subject, run.failing, error):
        fields["message"] += f"\n\n{traceback_of(error)}"
        return run.record(Outcome.INTERNAL_ERROR, started, **fields)
    failed, passed = _again(run, repeats)
    if passed:
        _add_flaky(fields, failed + 1, passed)
        return run.record(Outcome.FLAKY, started, **fields)
    outcome = Outcome.ERRORED if not isinstance(error, Violation) else Outcome.FAILED
    return run.record(outcome, started, **fields)


def _again(run: _LawRun, repeats: int) -> tuple[int, int]:
    """Repeat the failing case, and count how often it failed and passed."""
    started, failed, passed = time.perf_counter(), 0, 0
    while failed + passed < repeats:
        try:
            run.attempt(run.failing)
        except Exception:
            failed += 1
        else:
            passed += 1
        if time.perf_counter() - started > REPEATING:
            break
    return failed, passed


def _flaky(run: _LawRun, error: Flaky, started: float, repeats: int) -> Record:
    """Make the record of a case that Hypothesis saw fail and pass."""
    causes = [each for each in getattr(error, "exceptions", ()) if isinstance(each, Exception)]
    cause = causes[0] if causes else error
    fields = describe(run.law, run.subject, run.failing, cause, made=run.made)
    failed, passed = _again(run, repeats)
    # it was seen to fail and to pass before it was repeated
    _add_flaky(fields, failed + 1, passed + 1)
    return run.record(Outcome.FLAKY, started, **fields)


def _add_flaky(fields: dict[str, Any], failed: int, passed: int) -> None:
    """Add both results of the same case to the fields of a record."""
    reason = (
        f"the same case failed and passed: {failed} of {failed + passed} times it failed, "
        f"the others it passed. Where it failed: {fields['reason']}"
    )
    fields["message"] += f"\n\nFlaky    {reason}"
    fields["reason"] = reason


def check_deviation(law: Law, subject: Subject, deviation: Deviation) -> Record:
    """Try the example of a known deviation, which is expected to break the law."""
    started = time.perf_counter()
    run = _LawRun(law, subject)
    reason = unavailable(subject) or deviation.unavailable() or subject.refuses(deviation.example)
    if reason is not None:
        return run.record(Outcome.NOT_AVAILABLE, started, reason=reason, link=deviation.link)
    try:
        with tally.counting(run.count):
            law.check(subject, deviation.example)
    except (Violation, Raised) as error:
        fields = describe(law, subject, deviation.example, error)
        fields["reason"] = deviation.reason
        return run.record(Outcome.EXPECTED_FAILURE, started, link=deviation.link, **fields)
    reason = f"no longer deviates, so this entry must go: {deviation.reason}"
    return run.record(Outcome.UNEXPECTED_PASS, started, reason=reason, link=deviation.link)
