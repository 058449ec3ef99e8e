"""The first call of a target: which step is being made, and a verdict if it fails.

Looking a target up imports it and calls it once, in a process that may not survive either. Each
step is announced before it is made, so that the end of the process can be explained by its step.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from attnspec.conformance.isolation.memory import GIBIBYTE, is_exhausted, memory_limit
from attnspec.conformance.isolation.process import SendNote

STEP = b"t"
"""The tag of the note by which a process announces a step."""

CALL = b"k"
"""The tag of the note by which an experiment announces each of its calls."""

_SENDER: ContextVar[SendNote | None] = ContextVar("sender", default=None)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of looking a target up.

    Attributes:
        name: the step, as the subject of "… fails: its process died by SIGSEGV".
        call: the code of the call, or empty.
        advice: what the user can do if the step fails.
        is_experiment: whether the target can be judged without this step.
    """

    name: str
    call: str = ""
    advice: str = ""
    is_experiment: bool = False

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Step":
        """Parse a line written by `to_json`."""
        return cls(**json.loads(line))

    def failure(self, target: str, cause: str) -> str:
        """Return the verdict on a target if this step fails, or a remark for an experiment."""
        if self.is_experiment:
            return f"{target} is judged under the default profile: {self.name}: {_one_line(cause)}"
        lines = [f"{target}: NOT conforming: {self.name} fails: {_one_line(cause)}"]
        return "\n".join([*lines, f"  Call    {self.call}", f"  To do   {self.advice}"])


def experiment(question: str) -> Step:
    """Return the step that makes one experiment of the probe."""
    return Step(name=f"the experiment on {question} did not end", is_experiment=True)


def call_of_attention(dtype: torch.dtype) -> Step:
    """Return the step that calls an attention on ones of a dtype."""
    name = str(dtype).removeprefix("torch.")
    return Step(
        name="its first call",
        call=f"attention(*[torch.ones(1, 1, 2, 4, dtype=torch.{name})] * 3)",
        advice=f"make this call return a tensor of shape (1, 1, 2, 4) and dtype {name}; "
        f"if {name} is not claimed, pass --dtypes without it; "
        "if the kernel takes other sizes only, write a declaration whose supports says so",
    )


def call_of_model(dtype: torch.dtype, config: str) -> Step:
    """Return the step that builds a small GPT-2 of a dtype, and calls it."""
    name = str(dtype).removeprefix("torch.")
    return Step(
        name="its first call",
        call=f"build({config}, state_dict of {name})(input_ids of shape (1, 3))",
        advice=f"make this call return the logits alone, of shape (1, 3, vocab_size) and dtype "
        f"{name}",
    )


def differing_answers(target: str) -> str:
    """Return the verdict on a GPT-2 that gives other logits for equal tokens."""
    return (
        f"{target}: NOT conforming (GPT-20): answers differ from call to call: is dropout on?\n"
        "  Call    model(input_ids), three times with the same ids\n"
        "  To do   call model.eval() in build; no other law is tried until equal calls agree"
    )


@contextlib.contextmanager
def announcing(send_note: SendNote) -> Iterator[None]:
    """Send each step that is announced inside of this context as a note."""
    token = _SENDER.set(send_note)
    try:
        yield
    finally:
        _SENDER.reset(token)


def announce(step: Step | None) -> None:
    """Announce the step that is made next; None at its end."""
    send_note = _SENDER.get()
    if send_note is not None:
        send_note(STEP, b"" if step is None else step.to_json().encode())


def announce_call(describe: Callable[[], str]) -> None:
    """Announce a call of an experiment, described only if anybody listens."""
    send_note = _SENDER.get()
    if send_note is not None:
        send_note(CALL, describe().encode())


def call_announced_last(notes: dict[bytes, bytes]) -> str:
    """Return a clause that names the call in which a process ended, or an empty string."""
    call = notes.get(CALL, b"").decode()
    return f", in the call {call}" if call else ""


def cause_of(error: BaseException) -> str:
    """Return the cause of a failed step: the exception, and whether memory ran out."""
    cause = f"{type(error).__name__}: {error}"
    if not is_exhausted(cause):
        return cause
    limit = memory_limit()
    most = "" if limit is None else f" (limit {limit / GIBIBYTE:.3g} GiB)"
    return f"out of memory{most}: {cause}"


def failed_import(target: str, cause: str) -> str:
    """Return the message about a target that cannot be imported: the cause, and what to do."""
    module = target.rpartition(":")[0]
    path = Path(module)
    name = path.stem if module.endswith(".py") else module
    folder = f" in {path.parent}" if module.endswith(".py") and path.parent != Path() else ""
    return (
        f"{target}: importing it failed: {_one_line(cause)}\n"
        f'  To do   run python -c "import {name}"{folder}, and mend what it shows'
    )


def announced_last(notes: dict[bytes, bytes]) -> Step | None:
    """Return the step in which a process ended, by its notes; None if it announced none."""
    note = notes.get(STEP)
    return Step.from_json(note.decode()) if note else None


def _one_line(cause: str) -> str:
    """Return the first line of a cause, shortened."""
    line = (cause.strip().splitlines() or [""])[0]
    return line if len(line) <= 300 else f"{line[:297]}..."
