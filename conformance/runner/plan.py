"""Planning a run: targets are looked up in workers, and become subjects as data."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnspec.conformance.isolation.process import Notes, Process, ProcessLost, SendNote
from attnspec.conformance.laws.select import select_laws
from attnspec.conformance.runner.claims import DTYPES
from attnspec.conformance.runner.declare import BrokenCall, BrokenTarget, TargetError
from attnspec.conformance.runner.first_call import (
    announced_last,
    announcing,
    call_announced_last,
    failed_import,
)
from attnspec.conformance.runner.targets import LoadedSubject, demand_device, every_name, resolve
from attnspec.conformance.runner.task import PlannedSubject, TypedClaims, tasks
from attnspec.conformance.runner.waiting import telling
from attnspec.conformance.subjects.kinds import SubjectKind

LookUp = Callable[[dict[str, Any], SendNote], str]

PATIENCE = 120.0
"""Seconds that importing a target, and a few calls of it, may take at most."""


def plan(
    targets: Sequence[str],
    claims: TypedClaims,
    device: str,
    patterns: Sequence[str] = (),
    *,
    limit: float,
    memory: int | None,
    look_up: LookUp | None = None,
    folder: Path | None = None,
    allow_foreign_code: bool = False,
) -> list[PlannedSubject]:
    """Look targets up, each external one in a process of its own.

    Args:
        targets: as typed; empty for everything that is registered.
        claims: what the user claims about them.
        device: the device on which cases are drawn.
        patterns: of laws, as `tasks` takes them.
        limit: seconds for each target.
        memory: bytes that looking one up may take.
        look_up: replies with the subjects of a target in its process; `None` is
            `look_up_declared`, which finds nothing out about them by experiment.
        folder: the folder of the run, to note there what is waited for; `None` for nowhere.
        allow_foreign_code: whether kernels of the hub may be fetched and run.

    Returns:
        The subjects of the targets. A target that exists but cannot be imported, or
        crashes then, is `broken`, if there are others that can be judged.

    Raises:
        TargetError: for a target that does not exist, and if none can be judged.
        BrokenCall: if the first call of every target fails, which is a verdict.
        ValueError: for a claim that is not one of the choices, for sizes without an attention to
            call at them, or for patterns, as `tasks` does.
    """
    select_laws(patterns)  # before anything is imported for it
    claims.read()
    planned: list[PlannedSubject] = []
    failures: list[str] = []
    processes: dict[str, Process] = {}
    try:
        for target in dict.fromkeys(targets or every_name()):
            subject = PlannedSubject(
                target=target,
                name=target,
                claims=claims,
                device=device,
                allow_foreign_code=allow_foreign_code,
            )
            if subject.group not in processes:
                processes[subject.group] = Process(look_up or look_up_declared, memory)
            request = {"subject": subject.to_data()}
            process = processes[subject.group]
            result = request_of_target(process, target, request, min(limit, PATIENCE), folder)
            if "experiment" in result:  # lost in it, so the target is judged without any
                processes[subject.group] = process = Process(look_up_declared, memory)
                remark = result["experiment"]
                result = request_of_target(process, target, request, min(limit, PATIENCE), folder)
                found = (each | {"remark": remark} for each in result.get("subjects", ()))
                result = result | ({"subjects": list(found)} if "subjects" in result else {})
            if "refused" in result:
                raise TargetError(result["refused"])
            if "broken" in result:
                planned.append(replace(subject, broken=result["broken"]))
            if "failure" in result:
                failures.append(result["failure"])
                if "subjects" not in result:
                    planned.append(replace(subject, broken=result["failure"]))
            if result.get("lost"):
                del processes[subject.group]
            planned += [PlannedSubject.from_data(each) for each in result.get("subjects", ())]
    finally:
        for process in processes.values():
            process.end()
    if failures and len(failures) == len(planned):
        raise BrokenCall("\n".join(failures))
    if planned and all(each.broken for each in planned):
        raise TargetError("\n".join(each.broken for each in planned))
    if targets and claims.sizes and all(each.kind is not SubjectKind.ATTENTION for each in planned):
        names = ", ".join(dict.fromkeys(each.target for each in planned))
        raise ValueError(f"sizes are those of attention, which none is of {names}: omit them")
    tasks(planned, patterns)
    return planned


def look_up_declared(request: dict[str, Any], send_note: SendNote) -> str:
    """Reply with the subjects of a target, inside the process that imports it."""
    planned = PlannedSubject.from_data(request["subject"])

    def find() -> dict[str, Any]:
        return {"subjects": [subject.to_data() for subject, _ in subjects_of(planned)]}

    with announcing(send_note):
        return reply_of_target(planned.target, find)


def subjects_of(planned: PlannedSubject) -> Iterator[tuple[PlannedSubject, LoadedSubject]]:
    """Import a target, and return its subjects as data and loaded.

    Raises:
        TargetError: if it cannot be found or imported, or its device is not there.
    """
    if planned.is_external:
        demand_device(planned.device)
    loaded = resolve(
        planned.target,
        claims=planned.claims.read(),
        device=planned.device,
        allow_foreign_code=planned.allow_foreign_code,
    )
    for index, each in enumerate(loaded):
        yield _completed(planned, index, each), each


def request_of_target(
    process: Process,
    target: str,
    request: dict[str, Any],
    limit: float,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Send a request to the process that imports a target.

    Args:
        process: a process that replies by `reply_of_target`.
        target: its name, for the message.
        request: values that JSON can hold.
        limit: seconds that the reply may take.
        folder: the folder of the run, to note there what is waited for.

    Returns:
        The reply; or with the reason `refused`, for a target that does not exist, `broken`, for
        one that cannot be imported, `failure`, for one whose first call fails, or `experiment`,
        for one that does not survive an experiment; and `lost` if the process has ended.
    """

    def describe(notes: Notes) -> str:
        step = announced_last(notes)
        if step is None:
            return f"the import of {target}"
        call = step.call or call_announced_last(notes).removeprefix(", in the call ")
        name = step.name.removesuffix(" did not end")
        return f"{name} of {target}" + (f": {call}" if call else "")

    try:
        with telling(folder, limit, describe) as on_wait:
            result: dict[str, Any] = json.loads(process.call(request, limit, on_wait))
    except ProcessLost as lost:
        step = announced_last(lost.notes)
        if step is None:
            return {"broken": failed_import(target, str(lost)), "lost": True}
        if step.is_experiment:
            cause = f"{lost}{call_announced_last(lost.notes)}"
            return {"experiment": step.failure(target, cause), "lost": True}
        return {"failure": step.failure(target, str(lost)), "lost": True}
    return result


def reply_of_target(target: str, find: Callable[[], dict[str, Any]]) -> str:
    """Reply to `request_of_target`, inside the process that imports a target."""
    try:
        return json.dumps(find())
    except BrokenCall as error:
        return json.dumps({"failure": str(error)})
    except BrokenTarget as error:
        return json.dumps({"broken": str(error)})
    except (TargetError, ValueError) as error:
        return json.dumps({"refused": str(error)})
    except BaseException as error:
        message = failed_import(target, f"{type(error).__name__}: {error}")
        return json.dumps({"broken": message})


def _completed(planned: PlannedSubject, index: int, loaded: LoadedSubject) -> PlannedSubject:
    """A planned subject with the data that loading it has shown.

    The storage types of a bare callable are filled in, so that it need not be called again to find
    them. Its features are not: reports tell features that the user claims from those read from its
    parameters.
    """
    claims = planned.claims
    implementation = getattr(loaded.subject, "implementation", None)
    if planned.is_external and implementation is not None:
        names = {dtype: name for name, dtype in DTYPES.items()}
        if all(dtype in names for dtype in implementation.dtypes):
            dtypes = ",".join(names[dtype] for dtype in implementation.dtypes)
            claims = replace(claims, dtypes=dtypes)
    return replace(
        planned,
        index=index,
        kind=loaded.kind,
        name=loaded.name,
        claims=claims,
        deviations=loaded.deviations,
    )
