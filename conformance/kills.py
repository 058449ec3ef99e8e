"""Kills: which laws a mutant breaks, how soon, and after how many cases."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnspec.conformance.answers import Answered
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged, Law, registered
from attnspec.conformance.likeness import FEW, alike
from attnspec.conformance.model_diagnosis import REFUSING
from attnspec.conformance.model_likeness import model_resembles
from attnspec.conformance.model_stage import diverges
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.oracle import expect
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.process import restored
from attnspec.conformance.reach import Attention, Reach
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.sharing import shared
from attnspec.conformance.styles import STYLES, Style, rejects
from attnspec.conformance.subject import Subject
from attnspec.conformance.within_reach import Trials, tried
from attnspec.spec import (
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)

DEAD = (Outcome.FAILED, Outcome.ERRORED, Outcome.FLAKY, Outcome.QUALITY_WARNING)
"""What becomes of a law that a mutant breaks."""

KINDS = {
    Implementation: Judged.ATTENTION,
    ModelImplementation: Judged.MODEL,
    TokenizerImplementation: Judged.TOKENIZER,
    SamplerImplementation: Judged.SAMPLER,
}

Names = tuple[str, ...]
"""Ids of mutants."""

CORRECT = "correct"
"""The kind of what is tried in order to count false alarms."""

# All mutants meet the same pinned cases: their verdicts are worth more memory than those of a run.
_EXPECT = shared(expect, kept=4096, largest=2**18)
_EXPECT_GRADIENTS = shared(expect_gradients, kept=2048, largest=2**18)

_ANSWERED = Answered()
"""Each mutant is compared with all of them."""

_STYLES: Reach[str] = Reach()
"""What the usual styles of testing say: they do not reach much of what a mutant gets wrong."""


@dataclass(frozen=True, kw_only=True)
class Kills:
    """What became of one mutant.

    Attributes:
        mutant: its id.
        kind: what it is: attention, model, tokenizer or sampler.
        first: the law that killed it first, as a run meets them; empty for a survivor.
        effort: the effort that it took, empty for a survivor.
        seconds: until then, from the first case of the first law, importing not counted.
        examples: cases of that law up to the one that killed it.
        case: that case.
        pinned: laws whose pinned cases kill it, with the number of the case.
        survived: laws that it passes on their pinned cases.
        silent: laws that say nothing of it.
        looks_like: the mutants that it is found to look like, by what broke the first law.
        looks_like_others: likewise among all mutants but itself.
        stage: the first stage of a model that is found to diverge.
        styles: why each of the usual styles of testing rejects it, or nothing; attention only.
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
    looks_like: tuple[str, ...] = ()
    looks_like_others: tuple[str, ...] = ()
    stage: str = ""
    styles: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Kills":
        """The opposite of `to_json`."""
        given = json.loads(line)
        for name in ("survived", "silent", "looks_like", "looks_like_others"):
            given[name] = tuple(given[name])
        return cls(**given)


def kind_of(mutant: Mutant) -> Judged:
    """What kind of laws judge a mutant."""
    return KINDS[type(mutant.subject)]


def chosen(pattern: str = "", part: str = "1/1") -> list[Mutant]:
    """The mutants of a catalogue that a run tries.

    Args:
        pattern: what an id contains; all where empty.
        part: "2/7" for the second of seven parts, dealt out one by one.

    Raises:
        ValueError: for a part that does not exist, or a pattern that no id contains.
    """
    import attnspec.conformance.mutants  # noqa: F401  (registers them)

    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"a part is given as 2/7, got {part!r}")
    found = [each for each in planted().values() if pattern.lower() in each.id.lower()]
    if not found:
        raise ValueError(f"no mutant has {pattern!r} in its id")
    return found[int(number) - 1 :: int(of)]


def subject_of(mutant: Mutant, *, remembers: bool = False) -> Any:
    """What the laws are given to judge.

    Args:
        mutant: of any kind.
        remembers: share the verdicts of the oracle with all other mutants.
    """
    if not isinstance(mutant.subject, Implementation):
        return mutant.subject
    if not remembers:
        return Subject(mutant.subject)
    return Subject(mutant.subject, oracle=_EXPECT, oracle_gradients=_EXPECT_GRADIENTS)


def kills(mutant: Mutant) -> Kills:
    """Try the pinned cases of all laws on a mutant, and what survives them on drawn ones."""
    laws = [law for law in _laws().values() if law.judges is kind_of(mutant)]
    trials = Trials(subject_of(mutant, remembers=True))
    told: dict[str, Any] = {}
    pinned, survived, silent = {}, [], []
    looks_like: Names = ()
    others: Names = ()
    seconds = 0.0
    for law in laws:
        record, spent = trials.on(law)
        seconds += spent
        if record.outcome in DEAD:
            pinned[law.name] = record.examples + 1
            if not told:
                told = _first(law, record, None, seconds)
                looks_like, others = _likeness(mutant, trials.subject, law, record)
        elif record.outcome is Outcome.PASSED:
            survived.append(law.name)
        else:
            silent.append(law.name)
    told = told or first_kill(mutant, laws, Effort.SMOKE)
    told = told or first_kill(mutant, laws, Effort.STANDARD)
    return Kills(
        mutant=mutant.id,
        kind=str(kind_of(mutant)),
        pinned=pinned,
        survived=tuple(survived),
        silent=tuple(silent),
        looks_like=looks_like,
        looks_like_others=others,
        stage=_stage(mutant) if pinned else "",
        styles=_styles(mutant.subject),
        **told,
    )


def _likeness(mutant: Mutant, subject: Any, law: Law, record: Record) -> tuple[Names, Names]:
    """What the diagnosis says of a mutant, with its own entry in the catalogue and without.

    Args:
        mutant: of any kind.
        subject: what was judged; of attention, its last call is the one that broke the law.
        law: the first that is broken.
        record: how.
    """
    if isinstance(subject, ModelImplementation):
        about = bool(REFUSING.intersection(law.clauses))
        bugs = model_resembles(subject, refusals=about)
        rest = model_resembles(subject, refusals=about, without=frozenset({mutant.id}))
        return tuple(each.id for each in bugs), tuple(each.id for each in rest)
    if record.outcome is not Outcome.FAILED or not isinstance(subject, Subject):
        return (), ()
    # by itself it is known in the catalogue
    plain = subject_of(mutant, remembers=True)
    plain.last_call, plain.last_grad = subject.last_call, subject.last_grad
    found = tuple(each.id for each in alike(plain, answered=_ANSWERED))
    others = tuple(each for each in found if each != mutant.id)
    return found if len(found) <= FEW else (), others if len(others) <= FEW else ()


def _stage(mutant: Mutant) -> str:
    """The first stage of a model that diverges; of anything else nothing."""
    if not isinstance(mutant.subject, ModelImplementation):
        return ""
    found = diverges(mutant.subject)
    return "" if found is None else found.place


def false_alarms(name: str, subject: Implementation) -> Kills:
    """Try what kills mutants, and the usual styles, on an implementation that is right.

    Drawn cases, on which no verdict of the oracle is shared, are left to a run of the suite.

    Args:
        name: how it is called in the table.
        subject: right under the profile that it declares.
    """
    laws = [law for law in _laws().values() if law.judges is Judged.ATTENTION]
    mutant = Mutant(id=name, title="", subject=subject, kills=())
    trials = Trials(subject_of(mutant, remembers=True))
    told = _first_of(laws, trials.on, None)
    return Kills(mutant=name, kind=CORRECT, styles=_styles(subject), **told)


def _styles(subject: Any) -> dict[str, str]:
    if not isinstance(subject, Implementation):
        return {}
    about = subject.features, subject.dtypes, subject.profile
    return {
        style.name: _STYLES.find(
            (style.name, *about), subject.attention, functools.partial(_rejects, style, subject)
        )
        for style in STYLES
    }


def _rejects(style: Style, subject: Implementation, attention: Attention) -> str:
    with restored():
        return rejects(style, replace(subject, attention=attention))


def first_kill(mutant: Mutant, laws: Sequence[Law], effort: Effort) -> dict[str, Any]:
    """Try laws as a run does, until one is broken: which, when and by which case; or nothing.

    Args:
        mutant: of any kind.
        laws: in their order.
        effort: how hard to look.
    """
    subject = subject_of(mutant)
    return _first_of(laws, lambda law: tried(law, subject, effort), effort)


def _first_of(
    laws: Sequence[Law], on: Callable[[Law], tuple[Record, float]], effort: Effort | None
) -> dict[str, Any]:
    """The first of some laws that is broken, as `first_kill` tells it."""
    seconds = 0.0
    for law in laws:
        record, spent = on(law)
        seconds += spent
        if record.outcome in DEAD:
            return _first(law, record, effort, seconds)
    return {}


def _first(law: Law, record: Record, effort: Effort | None, seconds: float) -> dict[str, Any]:
    return {
        "first": law.name,
        "effort": str(effort or Effort.SMOKE),  # which tries the pinned cases first
        "seconds": seconds,
        "examples": record.examples + 1,
        "case": record.case,
    }


@functools.cache
def _laws() -> dict[str, Law]:
    import attnspec.conformance.laws  # noqa: F401  (registers them)

    return registered()
