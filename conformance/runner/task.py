"""A task: one law to be tried on one subject, and subjects that are planned but not yet loaded."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.laws.law import Law
from attnspec.conformance.laws.select import select_laws
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import TargetError
from attnspec.conformance.runner.settings import Settings
from attnspec.conformance.runner.targets import LoadedSubject, resolve
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import MaskKind


@dataclass(frozen=True, kw_only=True)
class TypedClaims:
    """Claims about targets as a user types them; see `Claims.read`.

    `masks` is the only kind of masks that a function was found to take; no user types it, and it
    leaves the other claims as they are.
    """

    features: str | None = None
    dtypes: str | None = None
    profile: tuple[str, ...] = ()
    extras: str | None = None
    masks: str | None = None
    operator: str | None = None
    sizes: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> "TypedClaims":
        """Return the claims that the settings of a run hold."""
        names = [each.name for each in dataclasses.fields(cls) if each.name != "masks"]
        return cls(**{name: getattr(settings, name) for name in names})

    def read(self) -> Claims:
        """Read the claims.

        Raises:
            ValueError: for a word that is not one of the choices, naming it.
        """
        claims = Claims.read(
            self.features, self.dtypes, self.profile, self.extras, self.operator, self.sizes
        )
        if self.masks is None:
            return claims
        return dataclasses.replace(claims, masks=MaskKind(self.masks))


@dataclass(frozen=True, kw_only=True)
class PlannedSubject:
    """A subject to be judged, as data that can be sent to a worker; nothing of it is imported.

    Attributes:
        target: the name under which it is found.
        index: its place among the subjects of the target.
        kind: the kind of laws that judge it.
        name: the subject's name.
        claims: its claims, with the storage types filled in that calls have shown.
        device: the device on which cases are drawn.
        deviations: the law of each of its known deviations, in their order.
        broken: the reason why it cannot be judged, or empty.
        remark: a sentence for the user on the profile under which it is judged, or empty.
        allow_foreign_code: whether it may be fetched from the hub and run, if it is a kernel there.
    """

    target: str
    index: int = 0
    kind: SubjectKind = SubjectKind.ATTENTION
    name: str
    claims: TypedClaims
    device: str
    deviations: tuple[str, ...] = ()
    broken: str = ""
    remark: str = ""
    allow_foreign_code: bool = False

    @property
    def group(self) -> str:
        """Subjects of one group share a worker: built-in ones one, each external target its own."""
        return self.target if self.is_external else ""

    @property
    def is_external(self) -> bool:
        """True if its code is not part of this project."""
        from attnspec import implementations

        built_in = ["reference", *implementations.names(), *implementations.model_names()]
        built_in += [*implementations.tokenizer_names(), *implementations.sampler_names()]
        built_in += implementations.operator_names()
        return self.target not in built_in

    def load(self) -> LoadedSubject:
        """Import it.

        Raises:
            TargetError: if that fails.
        """
        subjects = resolve(
            self.target,
            claims=self.claims.read(),
            device=self.device,
            allow_foreign_code=self.allow_foreign_code,
        )
        if self.index >= len(subjects):
            raise TargetError(f"{self.target}: it stands for something else than before")
        return subjects[self.index]

    def to_data(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "PlannedSubject":
        """Read the values that `to_data` returned."""
        words = {name: tuple(data["claims"][name]) for name in ("profile", "sizes")}
        claims = data["claims"] | words
        changed = {
            "claims": TypedClaims(**claims),
            "deviations": tuple(data["deviations"]),
            "kind": SubjectKind(data["kind"]),
        }
        return cls(**data | changed)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One law to be tried on one subject, or one of the subject's known deviations from it.

    Attributes:
        law: the law.
        subject: planned, to be loaded by a worker, or loaded in this process.
        deviation: the number of a known deviation among those from this law; `None` for the law.
    """

    law: Law
    subject: PlannedSubject | LoadedSubject
    deviation: int | None = None

    @property
    def id(self) -> str:
        """Clause, law and subject, as reports and pytest print them."""
        known = "" if self.deviation is None else "/known"
        return f"{self.law.clauses[0]}/{self.law.name}/{self.subject.name}{known}"


def shared(tasks: Sequence[Task], workers: int, *, stops: bool = False) -> list[Task]:
    """Order tasks so that workers end at the same time, and the first finds simple mistakes soon.

    Each worker begins with an equal share, in this order, and then takes from the end of another's
    share. So the long laws are dealt among the shares: at the end of each, behind the simple laws,
    but at the beginning of the last one, whose end the other workers take. A worker with more of
    them than others would try them while those are idle.
    If the first failure stops the run, the long laws come last instead, so that no worker begins
    with one.

    Args:
        tasks: those of a run, in the order of the laws; returned as they are if several groups
            of subjects are among them, since each group has a process of its own.
        workers: how many processes share them.
        stops: whether the first failure stops the run.
    """
    groups = {getattr(task.subject, "group", None) for task in tasks}
    if workers == 1 or len(groups) > 1:
        return list(tasks)
    long = [task for task in tasks if task.law.is_long]
    others = [task for task in tasks if not task.law.is_long]
    if stops:
        return [*others, *long]
    laws = list(dict.fromkeys(task.law for task in long))
    ordered: list[Task] = []
    for share in range(workers):
        count = (len(tasks) - len(ordered)) // (workers - share)
        its = [task for task in long if laws.index(task.law) % workers == share]
        room = max(0, count - len(its))
        simple, others = others[:room], others[room:]
        ordered += [*its, *simple, *others] if share == workers - 1 else [*simple, *its]
    return ordered


def tasks(
    subjects: Sequence[PlannedSubject | LoadedSubject], patterns: Sequence[str] = ()
) -> list[Task]:
    """List every law of a subject's kind on each subject, and its known deviations.

    The tasks of one group follow each other, so that few workers are started. Inside a group they
    go law by law, so that one result of the oracle serves all subjects that make the same call.

    Args:
        subjects: the subjects to judge.
        patterns: shell patterns of law names, clause ids or families; none selects all laws.

    Raises:
        ValueError: for a pattern that matches no law, naming it, and if no law is left to try.
    """
    laws = select_laws(patterns)
    kinds = {subject.kind for subject in subjects}
    if subjects and not any(law.judges in kinds for law in laws):
        message = f"no law of {', '.join(patterns)} judges {', '.join(sorted(kinds))}s"
        raise ValueError(f"{message}, which {', '.join(each.name for each in subjects)} is")
    groups: dict[str, list[PlannedSubject | LoadedSubject]] = {}
    for subject in subjects:
        groups.setdefault(subject.group, []).append(subject)
    return [
        Task(law=law, subject=subject, deviation=deviation)
        for members in groups.values()
        for law in laws
        for subject in members
        if subject.kind is law.judges
        for deviation in (None, *range(subject.deviations.count(law.name)))
    ]
