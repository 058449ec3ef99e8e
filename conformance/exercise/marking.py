"""Mark a learner's work, step by step, in a subprocess: it may hang, crash or exit."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.exercise.english import judge_english
from attnspec.conformance.exercise.judge import Finding, judge
from attnspec.conformance.exercise.learner import Learner, NoExercise, files_of, read_learner
from attnspec.conformance.exercise.small_model import cached
from attnspec.conformance.exercise.steps import ENGLISH, STEPS, Step
from attnspec.conformance.isolation.process import Process, ProcessLost, SendNote
from attnspec.reference.weights import WeightsError, locate


class Mark(StrEnum):
    """The state of a step."""

    DONE = "done"
    NEXT = "next"
    NOT_REACHED = "not reached"
    OPTIONAL = "optional"


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A step with its mark.

    Attributes:
        number: counted from 1.
        step: the step.
        mark: its state.
        finding: what was found, for a step that was judged.
    """

    number: int
    step: Step
    mark: Mark
    finding: Finding | None = None


def mark(
    target: str,
    *,
    weights: str | None = None,
    limit: float = 120.0,
    memory: int | None = None,
    on_training: Callable[[], None] = lambda: None,
) -> Iterator[Marked]:
    """Mark each step: all before the first that does not hold are done, none after it is reached.

    Args:
        target: a file of Python, or a folder of such files.
        weights: the checkpoint of the last step: a folder, a file or a name; None for a small
            model, which is trained on first use and kept.
        limit: seconds for one step.
        memory: bytes that the process of the learner's code may hold; None for no limit.
        on_training: called before the small model is trained.

    Raises:
        NoExercise: if there is no such target, or no such checkpoint.
    """
    files_of(target)
    if weights is not None:
        _located(weights)
    process = Process(_handle, memory)
    is_reached = True
    try:
        for number, step in enumerate(STEPS, 1):
            if not is_reached:
                yield Marked(number=number, step=step, mark=Mark.NOT_REACHED)
                continue
            request: dict[str, Any] = {"target": target, "step": number - 1}
            if step.function == ENGLISH:
                request["weights"] = str(
                    cached(on_training) if weights is None else _located(weights)
                )
            try:
                finding = Finding.from_json(process.call(request, limit))
            except ProcessLost as error:
                finding = Finding(
                    holds=False,
                    sentence=f"The process of your code ended: {error}.",
                    details=(("Output", error.output[-300:]),) if error.output else (),
                )
                is_reached = False
            if step.is_optional and not finding.is_written:
                yield Marked(number=number, step=step, mark=Mark.OPTIONAL, finding=finding)
                continue
            is_reached = finding.holds
            done = Mark.DONE if finding.holds else Mark.NEXT
            yield Marked(number=number, step=step, mark=done, finding=finding)
    finally:
        process.end()


def _located(weights: str) -> Path:
    """Return the file of a checkpoint.

    Raises:
        NoExercise: if there is none.
    """
    try:
        return locate(weights)
    except WeightsError as error:
        raise NoExercise(str(error)) from None


_read = functools.lru_cache(maxsize=1)(read_learner)


def _handle(request: dict[str, Any], send_note: SendNote) -> str:
    """Judge one step in the subprocess."""
    torch.set_num_threads(1)
    learner: Learner = _read(request["target"])
    step = STEPS[request["step"]]
    if step.function != ENGLISH:
        return judge(step, learner).to_json()
    try:
        return judge_english(learner, Path(request["weights"])).to_json()
    except (NotAvailable, WeightsError) as error:
        return Finding(holds=False, sentence=str(error)).to_json()
