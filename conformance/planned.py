"""What a run is going to judge, as data: targets are looked up in a process of their own first."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnspec.conformance.check import deviations
from attnspec.conformance.claims import DTYPES, Claims
from attnspec.conformance.isolation import Lost, Process, Tell
from attnspec.conformance.law import Judged, Law
from attnspec.conformance.targets import (
    BrokenTarget,
    Judgeable,
    TargetError,
    demand_device,
    every_name,
    resolve,
)
from attnspec.conformance.trials import chosen

PATIENCE = 120.0
"""Seconds that importing a target, and a few calls of it, may take at most."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is said of targets, as typed: see `Claims.read`."""

    features: str | None = None
    dtypes: str | None = None
    profile: tuple[str, ...] = ()

    def claims(self) -> Claims:
        """What the words mean.

        Raises:
            ValueError: for one that means nothing, naming it.
        """
        return Claims.read(self.features, self.dtypes, self.profile)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A subject that is going to be judged; nothing of it is imported.

    Attributes:
        target: the name under which it is found.
        place: which of the subjects that the target stands for.
        kind: what kind of laws judge it.
        name: the subject's name.
        words: what is claimed of it, settled.
        device: where cases are drawn.
        known: the laws from which it has known deviations, in their order.
        broken: why it cannot be judged, where it cannot.
    """

    target: str
    place: int = 0
    kind: Judged = Judged.ATTENTION
    name: str
    words: Words
    device: str
    known: tuple[str, ...] = ()
    broken: str = ""

    @property
    def home(self) -> str:
        """Subjects of one home share a process: the project's own do, and nobody else."""
        return self.target if self.is_strange else ""

    @property
    def is_strange(self) -> bool:
        """True where the code is not the project's own."""
        from attnspec import implementations

        ours = ["reference", *implementations.names(), *implementations.model_names()]
        ours += [*implementations.tokenizer_names(), *implementations.sampler_names()]
        return self.target not in ours

    def load(self) -> Judgeable:
        """Import it.

        Raises:
            TargetError: where that fails.
        """
        found = resolve(self.target, claims=self.words.claims(), device=self.device)
        if self.place >= len(found):
            raise TargetError(f"{self.target}: it stands for something else than before")
        return found[self.place]

    def to_data(self) -> dict[str, Any]:
        """What JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Planned":
        """Read what `to_data` gave."""
        words = data["words"]
        said = Words(**words | {"profile": tuple(words["profile"])})
        known = tuple(data["known"])
        return cls(**data | {"words": said, "known": known, "kind": Judged(data["kind"])})


@dataclass(frozen=True, kw_only=True)
class Errand:
    """One law to be tried on one planned subject, or one of its known deviations."""

    law: Law
    planned: Planned
    known: int | None = None

    @property
    def id(self) -> str:
        """As reports and pytest print it: clause, law, subject."""
        known = "" if self.known is None else "/known"
        return f"{self.law.clauses[0]}/{self.law.name}/{self.planned.name}{known}"


def errands(planned: Sequence[Planned], patterns: Sequence[str] = ()) -> list[Errand]:
    """Every law of a subject's kind on each subject, and its known deviations.

    Those of one home follow each other, so that few processes are started; among them it goes law
    by law, so that one verdict of the oracle serves all subjects that make the same call.

    Raises:
        ValueError: for a pattern that matches no law, naming it, and where none is left to try.
    """
    laws = chosen(patterns)
    kinds = {each.kind for each in planned}
    if planned and not any(law.judges in kinds for law in laws):
        told = f"no law of {', '.join(patterns)} judges {', '.join(sorted(kinds))}s"
        raise ValueError(f"{told}, which {', '.join(each.name for each in planned)} is")
    homes: dict[str, list[Planned]] = {}
    for each in planned:
        homes.setdefault(each.home, []).append(each)
    return [
        errand
        for residents in homes.values()
        for law in laws
        for each in residents
        if each.kind is law.judges
        for errand in _errands(law, each)
    ]


def _errands(law: Law, planned: Planned) -> Iterator[Errand]:
    yield Errand(law=law, planned=planned)
    for number in range(planned.known.count(law.name)):
        yield Errand(law=law, planned=planned, known=number)


def plan(
    targets: Sequence[str],
    words: Words,
    device: str,
    patterns: Sequence[str] = (),
    *,
    limit: float,
    memory: int | None,
) -> list[Planned]:
    """Look targets up, each stranger in a process of its own.

    Args:
        targets: as typed; none is everything that is registered.
        words: what is said of them.
        device: where cases are drawn.
        patterns: of laws, as `errands` takes them.
        limit: seconds for each.
        memory: bytes that looking one up may take.

    Returns:
        What they stand for. One that is there and cannot be imported, or crashes when it is,
        is broken, if there are others that can be judged.

    Raises:
        TargetError: for one that is not there, and where none can be judged.
        ValueError: for a claim that means nothing, or patterns as of `errands`.
    """
    chosen(patterns)  # before anything is imported for it
    words.claims()
    found: list[Planned] = []
    homes: dict[str, Process] = {}
    try:
        for target in dict.fromkeys(targets or every_name()):
            subject = Planned(target=target, name=target, words=words, device=device)
            if subject.home not in homes:
                homes[subject.home] = Process(look_up, memory)
            question = {"planned": subject.to_data()}
            told = asked(homes[subject.home], target, question, min(limit, PATIENCE))
            if "refused" in told:
                raise TargetError(told["refused"])
            if "broken" in told:
                found.append(replace(subject, broken=told["broken"]))
            if told.get("lost"):
                del homes[subject.home]
            found += [Planned.from_data(each) for each in told.get("found", ())]
    finally:
        for process in homes.values():
            process.end()
    if found and all(each.broken for each in found):
        raise TargetError("\n".join(each.broken for each in found))
    errands(found, patterns)
    return found


def look_up(question: dict[str, Any], tell: Tell) -> str:
    """Answer what a target stands for, inside the process that imports it."""
    subject = Planned.from_data(question["planned"])

    def find() -> dict[str, Any]:
        if subject.is_strange:
            demand_device(subject.device)
        judged = resolve(subject.target, claims=subject.words.claims(), device=subject.device)
        found = (_settled(subject, place, each) for place, each in enumerate(judged))
        return {"found": [each.to_data() for each in found]}

    return answered(subject.target, find)


def asked(process: Process, target: str, question: dict[str, Any], limit: float) -> dict[str, Any]:
    """Ask a process about the target that it imports.

    Args:
        process: whose answer is made by `answered`.
        target: for the message.
        question: what JSON can hold.
        limit: seconds that it may take.

    Returns:
        What was found; or `refused`, for a target that is not there, or `broken`, for one that
        cannot be imported, with the reason; and `lost` where that has ended the process.
    """
    try:
        told: dict[str, Any] = json.loads(process.ask(question, limit))
    except Lost as lost:
        return {"broken": f"{target}: importing it failed: {lost}", "lost": True}
    return told


def answered(target: str, find: Callable[[], dict[str, Any]]) -> str:
    """Answer `asked`, inside the process that imports a target."""
    try:
        return json.dumps(find())
    except BrokenTarget as error:
        return json.dumps({"broken": str(error)})
    except (TargetError, ValueError) as error:
        return json.dumps({"refused": str(error)})
    except BaseException as error:
        told = f"{target}: importing it failed: {type(error).__name__}: {error}"
        return json.dumps({"broken": told})


def _settled(asked: Planned, place: int, judged: Judgeable) -> Planned:
    """What a subject is found to be; a bare callable need not be called again to find it out.

    Its features are not among what is settled: it matters whether somebody has said them.
    """
    subject, words = judged.subject, asked.words
    implementation = getattr(subject, "implementation", None)
    if asked.is_strange and implementation is not None:
        names = {dtype: name for name, dtype in DTYPES.items()}
        if all(each in names for each in implementation.dtypes):
            words = replace(
                words,
                dtypes=",".join(names[each] for each in implementation.dtypes),
            )
    from attnspec.conformance.law import registered

    known = [law.name for law in registered().values() for _ in deviations(law, subject)]
    return replace(
        asked, place=place, kind=judged.kind, name=subject.name, words=words, known=tuple(known)
    )
