"""The worker's side of a task: code that runs inside the process of a subject."""

import base64
import contextlib
import functools
import json
import pickle
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Raised
from attnspec.conformance.diagnosis.failure.describe import describe
from attnspec.conformance.isolation.memory import GIBIBYTE, is_exhausted
from attnspec.conformance.isolation.process import SendNote, shorten_limit
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.models.case import ModelCase
from attnspec.conformance.models.recording import Recording, recording_of
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.first_call import announcing
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.internal_error import internal_error, traceback_of
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import PlannedSubject, Task

LOADED, CASE, STORED, SO_FAR = b"l", b"c", b"p", b"s"
"""The notes that a worker leaves before its record: subject loaded, case, pickled case, record."""

EXPLAINING = 60.0
"""Seconds after a record in which it may be explained; a call that hangs ends the process."""


def reply(request: dict[str, Any], send_note: SendNote) -> str:
    """Try a law, or describe a case of one, and return the result as JSON."""
    try:
        return _reply(request, send_note)
    except Exception as error:  # of attnspec: those of the subject have become records
        return json.dumps({"internal_error": traceback_of(error)})


def _reply(request: dict[str, Any], send_note: SendNote) -> str:
    torch.set_num_threads(1)
    planned = PlannedSubject.from_data(request["subject"])
    try:
        with restored_state(), announcing(send_note):
            subject = _loaded(planned)
    except BaseException as error:
        message = str(error)
        if not message.startswith(planned.target):
            message = f"{planned.target}: importing it failed: {type(error).__name__}: {error}"
        return json.dumps({"load_error": message})
    if "stored" in request:
        return json.dumps({"described": _describe(subject, request)})
    send_note(LOADED, b"")
    record = _run(subject, request, send_note)
    exhausted = record.outcome is Outcome.ERRORED and is_exhausted(record.reason)
    if exhausted:
        most = request["memory"]
        limit = "" if most is None else f" (limit {most / GIBIBYTE:.3g} GiB)"
        reason = f"out of memory{limit}: {record.reason}"
        message = record.message.replace(record.reason, reason, 1)
        record = replace(record, reason=reason, message=message)
    return json.dumps({"record": record.to_json(), "exhausted": exhausted})


@functools.cache
def _loaded(planned: PlannedSubject) -> LoadedSubject:
    return planned.load()


def _run(loaded: LoadedSubject, request: dict[str, Any], send_note: SendNote) -> Record:
    law = laws.load()[request["law"]]
    task = Task(law=law, subject=loaded, deviation=request["deviation"])
    last: list[Any] = [None]
    so_far: list[Record] = []

    def on_case(case: Any) -> None:
        last[0] = case
        send_note(CASE, str(case).encode("utf-8", "surrogatepass"))
        stored = b""
        with contextlib.suppress(Exception):
            stored = pickle.dumps(case)
        send_note(STORED, stored)

    def on_record(record: Record) -> None:
        so_far[:] = [record]
        send_note(SO_FAR, record.to_json().encode("utf-8", "surrogatepass"))
        # where torch alone broke the law, the whole law is tried once more
        again = 3 * record.seconds.get("total", 0.0) if record.torch_bug else 0.0
        shorten_limit(max(EXPLAINING, again))

    try:
        return run_in_process(task, Effort(request["effort"]), request["seed"], on_case, on_record)
    except BaseException as error:
        if isinstance(error, Exception) and not is_exhausted(f"{type(error).__name__}: {error}"):
            return _with_internal_error(task, so_far, last[0], error)
        # no law catches these: the subject leaves the process, or memory runs out elsewhere
        reason = Raised(f"{type(error).__name__}: {error}")
        fields = describe(law, loaded.subject, last[0], reason)
        return Record(
            subject=loaded.name,
            law=law.name,
            clauses=law.clauses,
            outcome=Outcome.ERRORED,
            device=getattr(loaded.subject, "device", "cpu"),
            **fields,
        )


def _with_internal_error(task: Task, so_far: list[Record], case: Any, error: Exception) -> Record:
    """Return the record of a law whose judgement or explanation raised an exception of attnspec."""
    trace = traceback_of(error)
    if so_far and so_far[-1].outcome is not Outcome.NOT_CLAIMED:
        # the outcome was known, and its explanation failed
        message = f"{so_far[-1].message}\n\nThen attnspec itself failed:\n{trace}"
        return replace(so_far[-1], message=message)
    return internal_error(task, trace, "" if case is None else str(case))


def _describe(loaded: LoadedSubject, request: dict[str, Any]) -> dict[str, Any]:
    """Describe a failure of which only the case is left."""
    law, subject = laws.load()[request["law"]], loaded.subject
    case = pickle.loads(base64.b64decode(request["stored"]))
    made = Recording()
    with contextlib.suppress(Exception):
        if isinstance(subject, Subject):
            subject.last_call, subject.last_grad = draw(case), None
        elif isinstance(case, ModelCase):
            made = recording_of(case)
    return describe(law, subject, case, Raised(request["reason"]), made=made)
