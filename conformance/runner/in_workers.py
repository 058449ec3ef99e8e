"""Running tasks in worker processes: whatever untrusted code does, every task gets a record."""

import base64
import functools
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import Raised
from attnspec.conformance.diagnosis.failure.describe import describe
from attnspec.conformance.isolation.process import Notes, Process, ProcessLost
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.first_call import announced_last
from attnspec.conformance.runner.internal_error import internal_error
from attnspec.conformance.runner.task import PlannedSubject, Task
from attnspec.conformance.runner.waiting import telling
from attnspec.conformance.runner.worker import CASE, LOADED, SO_FAR, STORED, reply

LOADS = 2
"""Failed imports of a subject after which its remaining laws are not tried."""

HANGS = 2
"""Time-outs of a subject after which each further one halves its limit."""

SHORTEST = 5.0
"""Seconds below which the limit is not halved."""

LINES = 12
"""Lines that are quoted of a worker's last output, and of its stack when it ended."""

WIDTH = 200
"""Characters that are quoted of such a line, counted from its end."""


@dataclass
class TaskRunner:
    """Runs tasks in worker processes, one at a time: that of the last subject's group.

    Attributes:
        effort: how many cases to try.
        seed: of the cases that differ from run to run.
        limit: seconds for one law.
        memory: bytes that a worker may hold; `None` for no limit.
        method: how workers are started; empty lets `Process` choose.
        folder: the folder of the run, to note there what is waited for; None for nowhere.
    """

    effort: Effort
    seed: int | None
    limit: float
    memory: int | None = None
    method: str = ""
    folder: Path | None = None
    _group: str | None = field(default=None, init=False)
    _process: Process | None = field(default=None, init=False)
    _hangs: Counter[str] = field(default_factory=Counter, init=False)
    _load_errors: dict[str, list[str]] = field(default_factory=dict, init=False)
    _has_failed: bool = field(default=False, init=False)

    def run(self, task: Task) -> Record:
        """Run one task; nothing that the subject does raises here or affects the next task."""
        subject = _planned(task)
        errors = self._load_errors.get(subject.name, [])
        if subject.broken or len(errors) >= LOADS:
            return _not_loaded(task, subject.broken or f"{errors[-1]} (not tried again)")
        limit = self._limit(subject.name)
        request = {
            "subject": subject.to_data(),
            "law": task.law.name,
            "deviation": task.deviation,
            "effort": str(self.effort),
            "seed": self.seed,
            "memory": self.memory,
        }
        try:
            with telling(self.folder, limit, partial(_in_words, task)) as on_wait:
                result = json.loads(self._worker(subject.group).call(request, limit, on_wait))
        except ProcessLost as lost:
            self._process = None
            return self._lost(task, lost, limit)
        if "internal_error" in result:
            return internal_error(task, result["internal_error"])
        if "load_error" in result:
            self._load_errors.setdefault(subject.name, []).append(result["load_error"])
            self.end()
            return _not_loaded(task, result["load_error"])
        record = Record.from_json(result["record"])
        self._has_failed |= record.outcome is Outcome.FAILED
        if result["exhausted"]:
            self.end()  # frees the memory that it still holds before the next law
        return record

    def end(self) -> None:
        """End the current worker, if there is one."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _worker(self, group: str) -> Process:
        if self._process is None or self._group != group:
            self.end()
            if self._has_failed:
                import torch.fx.experimental.symbolic_shapes  # noqa: F401  (by gradients of torch)

                import_diagnosis()
            self._process, self._group = Process(reply, self.memory, self.method), group
        return self._process

    def _limit(self, name: str) -> float:
        halvings = max(0, self._hangs[name] - HANGS + 1)
        return max(min(self.limit, SHORTEST), math.ldexp(self.limit, -halvings))

    def _lost(self, task: Task, lost: ProcessLost, limit: float) -> Record:
        """Make the record of a law during which the worker ended or hung."""
        subject, reason, notes = _planned(task), str(lost), lost.notes
        if lost.hung:
            self._hangs[subject.name] += 1
            shrunk = limit < self.limit
            reason += " (less than at first, after others)" if shrunk else ""
        if LOADED not in notes:
            step = announced_last(notes)
            error = f"{subject.target}: importing it failed: {reason}"
            error = error if step is None else step.failure(subject.target, reason)
            self._load_errors.setdefault(subject.name, []).append(error)
            return _not_loaded(task, error, lost.output)
        if SO_FAR in notes:
            record = Record.from_json(notes[SO_FAR].decode("utf-8", "surrogatepass"))
            if record.outcome in (Outcome.FAILED, Outcome.ERRORED):
                # the search for its explanation made further calls
                return replace(
                    record, message=f"{record.message}\n\nThen, on another call, {reason}"
                )
            more = f"{record.undeclared}: accepted, and then {reason}" if record.undeclared else ""
            return replace(record, undeclared=more)
        case = notes.get(CASE, b"").decode("utf-8", "surrogatepass")
        fields = describe(task.law, SimpleNamespace(name=subject.name), case, Raised(reason))
        fields |= self._described(task, notes, reason)
        fields["message"] += _last_output(lost.output)
        spent = {"total": limit if lost.hung else 0.0}
        return _errored(task, seconds=spent, **fields)

    def _described(self, task: Task, notes: dict[bytes, bytes], reason: str) -> dict[str, Any]:
        """Let a fresh worker describe the last case, with code that reproduces it."""
        if not notes.get(STORED):
            return {}
        subject = _planned(task)
        request = {
            "subject": subject.to_data(),
            "law": task.law.name,
            "stored": base64.b64encode(notes[STORED]).decode(),
            "reason": reason,
        }
        try:
            result = json.loads(self._worker(subject.group).call(request, self.limit))
        except ProcessLost:
            self._process = None
            return {}
        fields: dict[str, Any] = result.get("described", {})
        return fields


def _in_words(task: Task, notes: Notes) -> str:
    """Return the law and the case that are waited for."""
    case = notes.get(CASE, b"").decode("utf-8", "replace")
    clause = task.law.clauses[0] if task.law.clauses else ""
    words = f"{clause} {task.law.name} on {task.subject.name}"
    return f"{words}: {case}" if case else words


def _planned(task: Task) -> PlannedSubject:
    """The subject of a task that goes to a worker.

    Raises:
        TypeError: if it is loaded in this process already.
    """
    if not isinstance(task.subject, PlannedSubject):
        raise TypeError(f"{task.id}: its subject is loaded in this process")
    return task.subject


def _errored(task: Task, **fields: Any) -> Record:
    law, subject = task.law, _planned(task)
    return Record(
        subject=subject.name,
        law=law.name,
        clauses=law.clauses,
        outcome=Outcome.ERRORED,
        device=subject.device,
        **fields,
    )


def _not_loaded(task: Task, reason: str, output: str = "") -> Record:
    message = f"Law      {task.law.name}\nSubject  {task.subject.name}\nFound    {reason}"
    return _errored(task, reason=reason, message=message + _last_output(output))


def import_laws() -> None:
    """Import all laws, for the planning of a run and for all workers."""
    laws.load()


@functools.cache
def import_diagnosis() -> None:
    """Import the diagnosis and the catalogue once, for all workers that are forked from here on."""
    import attnspec.conformance.diagnosis.diagnose  # noqa: F401
    from attnspec.conformance import mutants

    mutants.load()


def _last_output(text: str) -> str:
    """Quote the last lines; of a trace, which begins with the innermost call, the first ones."""
    lines = text.splitlines()
    traces = ("Timeout (", "Fatal Python error")
    (start, *_) = [n for n, line in enumerate(lines) if line.startswith(traces)] or [len(lines)]
    lines = [f"    {line[-WIDTH:]}" for line in lines[max(0, start - LINES) : start + LINES]]
    return "\n".join(["\n\nIt wrote last:", *lines]) if lines else ""
