"""Errands: each law is tried in the process of its subject, and whatever happens is a record."""

import base64
import contextlib
import functools
import json
import math
import pickle
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from attnspec.conformance.check import deviations
from attnspec.conformance.effort import Effort
from attnspec.conformance.failure import describe
from attnspec.conformance.inputs import draw
from attnspec.conformance.isolation import Lost, Process, Tell
from attnspec.conformance.law import registered
from attnspec.conformance.memory import GIBIBYTE, is_exhausted
from attnspec.conformance.planned import Errand, Planned
from attnspec.conformance.process import restored
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.targets import Judgeable
from attnspec.conformance.trials import Trial

LOADS = 2
"""How often importing a subject is tried in vain, before its laws are no longer waited for."""

HANGS = 2
"""Time-outs of a subject after which its limit is halved, each time."""

SHORTEST = 5.0
"""Seconds to which the limit shrinks at most."""

LINES = 12
"""Lines that are told of what a process wrote, and of where it was when it ended."""

WIDTH = 200
"""Letters of such a line, the last ones."""

LOADED, CASE, STORED, SO_FAR = b"l", b"c", b"p", b"s"
"""What a process tells of a law before its record is there."""


@dataclass
class ErrandRunner:
    """Tries laws in processes; at most one is there at a time, that of the last subject's home.

    Attributes:
        effort: how hard to look.
        seed: of cases that differ from run to run.
        limit: seconds for one law.
        memory: bytes that a process may hold; `None` for as many as there are.
        method: how processes are started, where that is not to be chosen here.
    """

    effort: Effort
    seed: int | None
    limit: float
    memory: int | None = None
    method: str = ""
    _home: str | None = field(default=None, init=False)
    _process: Process | None = field(default=None, init=False)
    _hangs: Counter[str] = field(default_factory=Counter, init=False)
    _unloaded: dict[str, list[str]] = field(default_factory=dict, init=False)

    def run(self, errand: Errand) -> Record:
        """Try a law. Nothing that the subject does raises here, or is felt by the next one."""
        planned = errand.planned
        in_vain = self._unloaded.get(planned.name, [])
        if planned.broken or len(in_vain) >= LOADS:
            return _unloaded(errand, planned.broken or f"{in_vain[-1]} (not tried again)")
        limit = self._limit(planned.name)
        question = {
            "planned": planned.to_data(),
            "law": errand.law.name,
            "known": errand.known,
            "effort": str(self.effort),
            "seed": self.seed,
            "memory": self.memory,
        }
        try:
            told = json.loads(self._at(planned.home).ask(question, limit))
        except Lost as lost:
            self._process = None
            return self._lost(errand, lost, limit)
        if "unloaded" in told:
            self._unloaded.setdefault(planned.name, []).append(told["unloaded"])
            self.end()
            return _unloaded(errand, told["unloaded"])
        record = Record.from_json(told["record"])
        if record.outcome is Outcome.FAILED:
            _prepare()
        if told["exhausted"]:
            self.end()  # what it still holds is not for the next law to miss
        return record

    def end(self) -> None:
        """End the process that is there."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def _at(self, home: str) -> Process:
        if self._process is None or self._home != home:
            self.end()
            self._process, self._home = Process(answer, self.memory, self.method), home
        return self._process

    def _limit(self, name: str) -> float:
        halvings = max(0, self._hangs[name] - HANGS + 1)
        return max(min(self.limit, SHORTEST), math.ldexp(self.limit, -halvings))

    def _lost(self, errand: Errand, lost: Lost, limit: float) -> Record:
        """The record of a law during which the process ended or hung."""
        name, reason, notes = errand.planned.name, str(lost), lost.notes
        if lost.hung:
            self._hangs[name] += 1
            shrunk = limit < self.limit
            reason += " (less than at first, after others)" if shrunk else ""
        if LOADED not in notes:
            told = f"{errand.planned.target}: importing it failed: {reason}"
            self._unloaded.setdefault(name, []).append(told)
            return _unloaded(errand, told, lost.wrote)
        if SO_FAR in notes:
            record = Record.from_json(notes[SO_FAR].decode("utf-8", "surrogatepass"))
            more = f"{record.undeclared}: accepted, and then {reason}" if record.undeclared else ""
            return replace(record, undeclared=more)
        case = notes.get(CASE, b"").decode("utf-8", "surrogatepass")
        found = _told(errand, case, reason) | self._described(errand, notes, reason)
        found["message"] += _wrote(lost.wrote)
        spent = {"total": limit if lost.hung else 0.0}
        return _record(errand, Outcome.ERRORED, seconds=spent, **found)

    def _described(self, errand: Errand, notes: dict[bytes, bytes], reason: str) -> dict[str, Any]:
        """What a fresh process tells of the case, with code that repeats it."""
        if not notes.get(STORED):
            return {}
        question = {
            "planned": errand.planned.to_data(),
            "law": errand.law.name,
            "stored": base64.b64encode(notes[STORED]).decode(),
            "reason": reason,
        }
        try:
            answered = self._at(errand.planned.home).ask(question, self.limit)
        except Lost:
            self._process = None
            return {}
        found: dict[str, Any] = json.loads(answered).get("described", {})
        return found


def _record(errand: Errand, outcome: Outcome, **told: Any) -> Record:
    law, planned = errand.law, errand.planned
    return Record(
        subject=planned.name,
        law=law.name,
        clauses=law.clauses,
        outcome=outcome,
        device=planned.device,
        **told,
    )


def _unloaded(errand: Errand, reason: str, wrote: str = "") -> Record:
    message = f"Law      {errand.law.name}\nSubject  {errand.planned.name}\nFound    {reason}"
    return _record(errand, Outcome.ERRORED, reason=reason, message=message + _wrote(wrote))


def _told(errand: Errand, case: str, reason: str) -> dict[str, Any]:
    subject = SimpleNamespace(name=errand.planned.name)
    return describe(errand.law, subject, case, Raised(reason))


@functools.cache
def _prepare() -> None:
    """Import what tells a failure, once for all processes that are forked from here on."""
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (by functions of torch itself)

    import attnspec.conformance.diagnosis
    import attnspec.conformance.mutants  # noqa: F401


def _wrote(text: str) -> str:
    """The last lines; of a trace, in which the innermost call comes first, the first ones."""
    lines = text.splitlines()
    traces = ("Timeout (", "Fatal Python error")
    (start, *_) = [n for n, line in enumerate(lines) if line.startswith(traces)] or [len(lines)]
    lines = [f"    {line[-WIDTH:]}" for line in lines[max(0, start - LINES) : start + LINES]]
    return "\n".join(["\n\nIt wrote last:", *lines]) if lines else ""


def answer(question: dict[str, Any], tell: Tell) -> str:
    """Try a law, or describe a case of one, inside the process of the subject."""
    import attnspec.conformance.laws  # noqa: F401  (registers them)

    torch.set_num_threads(1)
    planned = Planned.from_data(question["planned"])
    try:
        with restored():
            judged = _loaded(planned)
    except BaseException as error:
        told = (
            str(error)
            if str(error).startswith(planned.target)
            else (f"{planned.target}: importing it failed: {type(error).__name__}: {error}")
        )
        return json.dumps({"unloaded": told})
    if "stored" in question:
        return json.dumps({"described": _describe(judged, question)})
    tell(LOADED, b"")
    record = _tried(judged, question, tell)
    exhausted = record.outcome is Outcome.ERRORED and is_exhausted(record.reason)
    if exhausted:
        most = question["memory"]
        limit = "" if most is None else f" (limit {most / GIBIBYTE:.3g} GiB)"
        reason = f"out of memory{limit}: {record.reason}"
        message = record.message.replace(record.reason, reason, 1)
        record = replace(record, reason=reason, message=message)
    return json.dumps({"record": record.to_json(), "exhausted": exhausted})


@functools.cache
def _loaded(planned: Planned) -> Judgeable:
    return planned.load()


def _tried(judged: Judgeable, question: dict[str, Any], tell: Tell) -> Record:
    law, known = registered()[question["law"]], question["known"]
    subject = judged.subject
    deviation = None if known is None else deviations(law, subject)[known]
    trial = Trial(law=law, judged=judged, deviation=deviation)
    last: list[Any] = [None]

    def told(case: Any) -> None:
        last[0] = case
        tell(CASE, str(case).encode("utf-8", "surrogatepass"))
        stored = b""
        with contextlib.suppress(Exception):
            stored = pickle.dumps(case)
        tell(STORED, stored)

    def so_far(record: Record) -> None:
        tell(SO_FAR, record.to_json().encode("utf-8", "surrogatepass"))

    try:
        return trial.run(Effort(question["effort"]), question["seed"], told, so_far)
    except BaseException as error:
        # what no law catches: it asks to leave the process, or memory is up where nobody expects it
        reason = Raised(f"{type(error).__name__}: {error}")
        described = describe(law, subject, last[0], reason)
        return Record(
            subject=subject.name,
            law=law.name,
            clauses=law.clauses,
            outcome=Outcome.ERRORED,
            device=getattr(subject, "device", "cpu"),
            **described,
        )


def _describe(judged: Judgeable, question: dict[str, Any]) -> dict[str, Any]:
    """A failure of which nothing but the case is left."""
    law, subject = registered()[question["law"]], judged.subject
    case = pickle.loads(base64.b64decode(question["stored"]))
    if isinstance(subject, Subject):
        with contextlib.suppress(Exception):
            subject.last_call, subject.last_grad = draw(case), None
    return describe(law, subject, case, Raised(question["reason"]))
