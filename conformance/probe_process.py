"""The probe in a process of its own: one that hangs or dies costs one experiment, and no more."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from attnspec.conformance.claims import Claims
from attnspec.conformance.isolation import Lost, Process, Tell
from attnspec.conformance.planned import answered, asked
from attnspec.conformance.probe import UNKNOWN, Finding, answer, experiments, rig_of
from attnspec.conformance.probe_rig import Rig
from attnspec.conformance.probe_target import target_of
from attnspec.conformance.targets import TargetError


def probe_apart(
    target: str,
    questions: Iterable[str],
    *,
    dtypes: str | None = None,
    device: str = "cpu",
    timeout: float = 60.0,
    memory: int | None = None,
) -> Iterator[Finding]:
    """Answer questions about a target in another process, which is replaced where it ends.

    Args:
        target: as on the command line.
        questions: of experiments.
        dtypes: the storage types to try, as on the command line.
        device: where tensors are made.
        timeout: seconds for one experiment.
        memory: bytes that the process may hold; `None` for as many as there are.

    Yields:
        One finding per question, in their order.
    """
    process: Process | None = None
    given = {"target": target, "dtypes": dtypes, "device": device}
    try:
        for question in questions:
            process = process or Process(_one, memory)
            try:
                yield Finding.from_json(process.ask(given | {"question": question}, timeout))
            except Lost as lost:
                process = None
                ended = f"during this experiment {lost}"
                yield _lost(question, f"no answer within {timeout:g} s" if lost.hung else ended)
    finally:
        if process is not None:
            process.end()


def importing_apart(target: str, device: str, *, timeout: float, memory: int | None) -> str:
    """The code that makes the name `attention` known, found by importing it in another process.

    Raises:
        TargetError: where it cannot be found or imported, is no attention, hangs or dies.
    """
    process = Process(_found, memory)
    try:
        told = asked(process, target, {"target": target, "device": device}, timeout)
    finally:
        process.end()
    if "importing" not in told:
        raise TargetError(told.get("refused") or told["broken"])
    return str(told["importing"])


def _found(question: dict[str, Any], tell: Tell) -> str:
    """Answer what a target is, inside the process that imports it."""
    target, device = question["target"], question["device"]
    return answered(target, lambda: {"importing": target_of(target, device).importing})


def _one(given: dict[str, Any], tell: Tell) -> str:
    """Run one experiment, inside the process that has imported the target."""
    question = given["question"]
    (chosen,) = (each for each in experiments() if each.question == question)
    try:
        rig = _rig(given["target"], given["dtypes"], given["device"])
        return answer(chosen, rig).to_json()
    except Exception as error:
        return _lost(question, f"{type(error).__name__}: {error}").to_json()


@functools.cache
def _rig(target: str, dtypes: str | None, device: str) -> Rig:
    """The rig of a target, made once in each process."""
    found = target_of(target, device).attention
    return rig_of(found, Claims.read(dtypes=dtypes).dtypes, device)


def _lost(question: str, why: str) -> Finding:
    return Finding(question=question, answer=UNKNOWN, evidence=(why,))
