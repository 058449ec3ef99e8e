"""Kills: the laws that a mutant (a planted bug) breaks, how soon, and after how many cases."""

import dataclasses
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.memoize import memoize_oracle
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.diagnosis.diagnose import REFUSAL_CLAUSES, why_undecided
from attnspec.conformance.diagnosis.likeness.attention import FEW, similar_mutants
from attnspec.conformance.diagnosis.likeness.models import likely_model_mutants
from attnspec.conformance.diagnosis.likeness.outputs import OutputCache
from attnspec.conformance.diagnosis.stages.search import first_divergence
from attnspec.conformance.evidence.mutation.baselines import BASELINES
from attnspec.conformance.evidence.mutation.sources import is_current
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.law import Law
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.operators.subjects import DECLARATIONS, subject_of_operator
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import (
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)
from attnspec.spec.operator import OperatorImplementation

KILLING_OUTCOMES = (Outcome.FAILED, Outcome.ERRORED, Outcome.FLAKY, Outcome.QUALITY_WARNING)
"""Outcomes of a law that a mutant breaks."""

KINDS = {
    Implementation: SubjectKind.ATTENTION,
    ModelImplementation: SubjectKind.MODEL,
    TokenizerImplementation: SubjectKind.TOKENIZER,
    SamplerImplementation: SubjectKind.SAMPLER,
    **{each: SubjectKind(name) for name, each in DECLARATIONS.items()},
}

MutantIds = tuple[str, ...]
"""Ids of mutants."""

_FIRST = ("first", "effort", "seconds", "examples", "case", "looks_like", "looks_like_others")
"""Fields of `Kills` about the first broken law."""

CORRECT = "correct"
"""The kind of a correct implementation, which is tried to count false alarms."""

# All mutants meet the same pinned cases, so caching expected results is worth more memory here.
_EXPECT = memoize_oracle(expect, kept=4096, largest=2**18)
_EXPECT_GRADIENTS = memoize_oracle(expect_gradients, kept=2048, largest=2**18)

_OUTPUT_CACHE = OutputCache()
"""Outputs of all mutants of attention, cached for the diagnosis of each mutant."""


@dataclass(frozen=True, kw_only=True)
class Kills:
    """The result of all laws on one mutant.

    Attributes:
        mutant: its id.
        kind: attention, model, tokenizer or sampler; `CORRECT` for a correct implementation.
        first: the first law that kills it, in the order of a run; empty for a survivor.
        effort: the effort needed to kill it; empty for a survivor.
        seconds: time from the first case of the first law to the kill, without importing.
        examples: number of cases of the first killing law, up to the one that killed it.
        case: that case.
        pinned: laws whose pinned cases kill it, with the number of the case.
        survived: laws that it passes on their pinned cases.
        silent: laws that neither pass nor fail on it.
        undecided: laws of `pinned` that a run calls not decided, since a stage that they are not
            about is wrong first, or equal calls differ; models only.
        looks_like: the mutants that the diagnosis names for the failure of the first law.
        looks_like_others: the same, with its own entry in the catalogue withheld.
        stage: the first stage of a model that diverges, according to the diagnosis.
        styles: why each baseline rejects it, empty if it accepts; attention only.
    """

    mutant: str
    kind: str
    first: str = ""
    effort: str = ""
    seconds: float = 0.0
    examples: int = 0
    case: str = ""
    pinned: dict[str, int] = field(default_factory=dict)
    survived: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    looks_like: tuple[str, ...] = ()
    looks_like_others: tuple[str, ...] = ()
    stage: str = ""
    styles: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Kills":
        """Parse a line written by `to_json`."""
        data = json.loads(line)
        for name in ("survived", "silent", "undecided", "looks_like", "looks_like_others"):
            data[name] = tuple(data[name])
        return cls(**data)


def kind_of(mutant: Mutant) -> SubjectKind:
    """Return the kind of laws that apply to a mutant."""
    return KINDS[type(mutant.subject)]


def select_mutants(
    pattern: str = "",
    part: str = "1/1",
    stored: Mapping[str, str] | None = None,
    tried: Collection[str] | None = None,
) -> list[Mutant]:
    """Return the mutants of the catalogue that a run tries.

    Args:
        pattern: a part of an id; an empty pattern selects all.
        part: "2/7" for the second of seven parts, dealt out one by one.
        stored: the digests of sources of a stored run: mutants whose results in it are current are
            left out. None leaves none out.
        tried: the mutants that have results in it: an interrupted run has stored some. None means
            that all have.

    Raises:
        ValueError: if the part does not exist, or no id contains the pattern.
    """
    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"a part has the form 2/7, got {part!r}")
    matches = [mutant for mutant in mutants.load().values() if pattern.lower() in mutant.id.lower()]
    if not matches:
        raise ValueError(f"no mutant has {pattern!r} in its id")
    if stored is not None:
        matches = [
            each
            for each in matches
            if (tried is not None and each.id not in tried)
            or not is_current(each.id, kind_of(each), stored)
        ]
    return matches[int(number) - 1 :: int(of)]


def subject_of(mutant: Mutant, *, shares_oracle: bool = False) -> Any:
    """Return the subject that laws judge.

    Args:
        mutant: a mutant of any kind.
        shares_oracle: use the oracle that is cached across all mutants.
    """
    if isinstance(mutant.subject, OperatorImplementation):
        return subject_of_operator(mutant.subject)
    if not isinstance(mutant.subject, Implementation):
        return mutant.subject
    if not shares_oracle:
        return Subject(mutant.subject)
    return Subject(mutant.subject, oracle=_EXPECT, oracle_gradients=_EXPECT_GRADIENTS)


def kills(mutant: Mutant, stored: Kills | None = None, changed: Collection[str] = ()) -> Kills:
    """Run the pinned cases of all laws on a mutant, and drawn cases if it survives them.

    Args:
        mutant: a mutant of any kind.
        stored: its result in an earlier run; None if there is none.
        changed: the names of the laws to run again; the outcome of any other is the stored one.
    """
    applicable = [law for law in laws.load().values() if law.judges is kind_of(mutant)]
    kept = _kept(stored, applicable, changed)
    subject = subject_of(mutant, shares_oracle=True)
    first: dict[str, Any] = {}
    pinned, survived, silent, undecided = {}, [], [], []
    seconds = 0.0
    for law in applicable:
        if law.name in kept.survived:
            survived.append(law.name)
        elif law.name in kept.silent:
            silent.append(law.name)
        elif law.name in kept.pinned and (first or law.name == kept.first):
            pinned[law.name] = kept.pinned[law.name]
            undecided += [law.name] if law.name in kept.undecided else []
            first = first or _first_as_stored(kept)
        else:
            record, spent = run_law(law, subject, None)
            seconds += spent
            if record.outcome in KILLING_OUTCOMES:
                pinned[law.name] = record.examples + 1
                if is_undecided(record, subject):
                    undecided.append(law.name)
                if not first:
                    likely, others = likely_ids(mutant, subject, law, record)
                    first = _first(law, record, None, seconds)
                    first |= {"looks_like": likely, "looks_like_others": others}
            elif record.outcome is Outcome.PASSED:
                survived.append(law.name)
            else:
                silent.append(law.name)
    if not first and kept.first and kept.first not in kept.pinned:
        first = _first_as_stored(kept)
    first = first or first_kill(mutant, applicable, Effort.SMOKE)
    first = first or first_kill(mutant, applicable, Effort.STANDARD)
    return Kills(
        mutant=mutant.id,
        kind=str(kind_of(mutant)),
        pinned=pinned,
        survived=tuple(survived),
        silent=tuple(silent),
        undecided=tuple(undecided),
        stage=stored.stage if stored else stage_of(mutant) if pinned else "",
        styles=stored.styles if stored else _rejections(mutant.subject),
        **first,
    )


def _kept(stored: Kills | None, applicable: Sequence[Law], changed: Collection[str]) -> Kills:
    """Return a stored result without the laws that have changed, or that are gone."""
    if stored is None:
        return Kills(mutant="", kind="")
    names = {law.name for law in applicable}.difference(changed)
    return dataclasses.replace(
        stored,
        first=stored.first if stored.first in names else "",
        pinned={name: number for name, number in stored.pinned.items() if name in names},
        survived=tuple(name for name in stored.survived if name in names),
        silent=tuple(name for name in stored.silent if name in names),
    )


def _first_as_stored(stored: Kills) -> dict[str, Any]:
    """Return the fields of `Kills` about the first broken law, as an earlier run gave them."""
    return {name: getattr(stored, name) for name in _FIRST}


def likely_ids(
    mutant: Mutant, subject: Any, law: Law, record: Record
) -> tuple[MutantIds, MutantIds]:
    """Return the mutants that the diagnosis names, with and without the mutant's own entry.

    Args:
        mutant: a mutant of any kind.
        subject: the subject of the law; for attention, its last call is the failing one.
        law: the first broken law.
        record: the record of that law.
    """
    if isinstance(subject, ModelImplementation):
        refusals = bool(REFUSAL_CLAUSES.intersection(law.clauses))
        matches = likely_model_mutants(subject, refusals=refusals)
        others = likely_model_mutants(subject, refusals=refusals, without=frozenset({mutant.id}))
        return tuple(match.id for match in matches), tuple(match.id for match in others)
    if record.outcome is not Outcome.FAILED or not isinstance(subject, Subject):
        return (), ()
    ids = tuple(match.id for match in similar_mutants(subject, cache=_OUTPUT_CACHE))
    other_ids = tuple(id for id in ids if id != mutant.id)
    return ids if len(ids) <= FEW else (), other_ids if len(other_ids) <= FEW else ()


def is_undecided(record: Record, subject: Any) -> bool:
    """Return whether a run calls a broken law of a model not decided."""
    if not isinstance(subject, ModelImplementation):
        return False
    is_explained = record.outcome is Outcome.FAILED and REFUSAL_CLAUSES.isdisjoint(record.clauses)
    divergence = first_divergence(subject) if is_explained else None
    return bool(why_undecided(record, subject, divergence))


def stage_of(mutant: Mutant) -> str:
    """Return the first stage of a model that diverges; an empty string for other kinds."""
    if not isinstance(mutant.subject, ModelImplementation):
        return ""
    divergence = first_divergence(mutant.subject)
    return "" if divergence is None else divergence.place


def false_alarms(
    name: str,
    subject: Implementation,
    stored: Kills | None = None,
    changed: Collection[str] = (),
) -> Kills:
    """Run the pinned cases of all laws, and the baselines, on a correct implementation.

    Drawn cases, for which no expected result is cached, are left to a run of the suite.

    Args:
        name: its name in the table.
        subject: an implementation that is correct under the profile that it declares.
        stored: its result in an earlier run; None if there is none.
        changed: the names of the laws to run again, if no law rejected it in that run.
    """
    applicable = [law for law in laws.load().values() if law.judges is SubjectKind.ATTENTION]
    if stored is not None and not stored.first:
        applicable = [law for law in applicable if law.name in changed]
    mutant = Mutant(id=name, title="", subject=subject, killed_by="")
    first = _first_of(applicable, subject_of(mutant, shares_oracle=True), None)
    styles = _rejections(subject) if stored is None else stored.styles
    return Kills(mutant=name, kind=CORRECT, styles=styles, **first)


def _rejections(subject: Any) -> dict[str, str]:
    """Return each baseline's reason to reject an attention; no entries for other subjects."""
    if not isinstance(subject, Implementation):
        return {}
    reasons = {}
    for baseline in BASELINES:
        with restored_state():
            reasons[baseline.name] = baseline.rejects(subject)
    return reasons


def first_kill(mutant: Mutant, laws: Sequence[Law], effort: Effort) -> dict[str, Any]:
    """Run laws, as a run of the suite does, until one is broken.

    Args:
        mutant: a mutant of any kind.
        laws: the laws in their order.
        effort: the effort of the run.

    Returns:
        Fields of `Kills` about the first broken law; empty if none is broken.
    """
    return _first_of(laws, subject_of(mutant), effort)


def _first_of(laws: Sequence[Law], subject: Any, effort: Effort | None) -> dict[str, Any]:
    """Run laws until one is broken, and return the same as `first_kill`."""
    seconds = 0.0
    for law in laws:
        record, spent = run_law(law, subject, effort)
        seconds += spent
        if record.outcome in KILLING_OUTCOMES:
            return _first(law, record, effort, seconds)
    return {}


def run_law(law: Law, subject: Any, effort: Effort | None) -> tuple[Record, float]:
    """Run a law once, and return its record and its seconds.

    A failing case is not repeated: a flaky failure kills a mutant too.
    """
    started = time.perf_counter()
    with restored_state():
        record = check(law, subject, effort, seed=0, repeats=0)
    return record, time.perf_counter() - started


def _first(law: Law, record: Record, effort: Effort | None, seconds: float) -> dict[str, Any]:
    """Return the fields of `Kills` about the first broken law."""
    return {
        "first": law.name,
        "effort": str(effort or Effort.SMOKE),  # effort smoke tries the pinned cases first
        "seconds": seconds,
        "examples": record.examples + 1,
        "case": record.case,
    }
