"""Isolation: the code of strangers runs in a process of its own, which may end, hang or eat memory.

A time-out of pytest's kind cannot end a loop in C that holds the interpreter's lock, and a worker
of pytest-xdist that dies takes seconds to replace and says nothing of how it died.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from attnspec.conformance.memory import limit_memory

Tell = Callable[[bytes, bytes], None]
"""`tell(tag, body)`: say something before the answer is there; a tag is one byte."""

Answer = Callable[[dict[str, Any], Tell], str]
"""Answers a question inside the process; a function of a module, so that it can be named there."""

GRACE = 5.0
"""Seconds after its limit in which a process may end itself, having written where it hangs."""

TAIL = 16_000
"""Bytes kept of what a process writes: the last ones."""

_ANSWER = b"="


class Lost(Exception):
    """A process that ended or hung before it answered; the message says how.

    Attributes:
        hung: whether it ran out of time.
        wrote: what it wrote last, to its standard output or error.
        notes: what it told before, by tag: the last body of each.
    """

    def __init__(self, reason: str, *, hung: bool, wrote: str, notes: dict[bytes, bytes]) -> None:
        super().__init__(reason)
        self.hung, self.wrote, self.notes = hung, wrote, notes


class Process:
    """A process that answers questions one by one, until it is ended."""

    def __init__(self, answer: Answer, memory: int | None = None, method: str = "") -> None:
        """Start it.

        Args:
            answer: what it does with a question.
            memory: bytes that it may hold; `None` for as many as there are.
            method: how it is started, in the words of `multiprocessing`; by default the fastest
                one that is safe here.
        """
        context: Any = multiprocessing.get_context(method or _method())
        self._connection, theirs = context.Pipe()
        self._output, written = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(theirs, written, answer, memory))
        with warnings.catch_warnings():
            # the only other thread of a worker waits for what the controller sends
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        written.close()
        self._tail = b""
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        atexit.register(self.end)  # or whoever is interrupted waits for it

    def ask(self, question: dict[str, Any], limit: float) -> str:
        """Wait for an answer.

        Args:
            question: what JSON can hold.
            limit: seconds that it may take.

        Raises:
            Lost: where the process ends or the limit is reached; it is ended then.
        """
        self._tail = b""
        started = time.monotonic()
        notes: dict[bytes, bytes] = {}
        try:
            self._connection.send_bytes(json.dumps(question | {"limit": limit}).encode())
            while self._connection.poll(max(0.0, started + limit + GRACE - time.monotonic())):
                message: bytes = self._connection.recv_bytes()
                if message[:1] == _ANSWER:
                    return message[1:].decode("utf-8", "surrogatepass")
                notes[message[:1]] = message[1:]
        except (EOFError, OSError):
            self._process.join(GRACE)
        status = self._process.exitcode
        spent = time.monotonic() - started
        self.end()
        hung = status is None or (status == 1 and spent >= limit)
        reason = f"timed out after {limit:g} s" if hung else _ended(status, self._wrote)
        raise Lost(reason, hung=hung, wrote=self._wrote, notes=notes)

    def end(self) -> None:
        """End it at once, and whatever it has started."""
        atexit.unregister(self.end)
        if self._process.pid is not None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._reader.join(1)
        self._connection.close()

    @property
    def _wrote(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _drain(self) -> None:
        """Read all that it writes, be it megabytes, and keep the end."""
        while True:
            try:
                part = os.read(self._output.fileno(), 2**16)
            except OSError:
                return
            if not part:
                return
            self._tail = (self._tail + part)[-TAIL:]


def _method() -> str:
    """A fork starts in milliseconds, and is safe where no device and no thread is in use yet."""
    can_fork = sys.platform == "linux" and not torch.cuda.is_initialized()
    return "fork" if can_fork else "spawn"


def _ended(status: int, wrote: str) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"it ended its process, with exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if -status == signal.SIGABRT and "bad_alloc" in wrote:
        return f"out of memory: its process died by {name}"
    killed = ", as by a system that is out of memory" if name == "SIGKILL" else ""
    return f"its process died by {name}{killed}"


def _serve(connection: Connection, output: Connection, answer: Answer, memory: int | None) -> None:
    """Answer until nobody asks any more: what the process does."""
    _settle(output, memory)
    gc.freeze()  # what came with the fork is never thrown away: nobody need look at it again

    def tell(tag: bytes, body: bytes) -> None:
        connection.send_bytes(tag + body)

    while True:
        try:
            question = json.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        # from a thread that needs no lock of the interpreter, so that a loop in C ends as well
        faulthandler.dump_traceback_later(question.pop("limit"), exit=True, file=2)
        found = answer(question, tell)
        faulthandler.cancel_dump_traceback_later()
        tell(_ANSWER, found.encode("utf-8", "surrogatepass"))


def _settle(output: Connection, memory: int | None) -> None:
    """Leave terminal, streams and session of the process that asks; end when it ends."""
    with contextlib.suppress(AttributeError, OSError):
        os.setsid()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, output.fileno(), output.fileno())):
        os.dup2(source, number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", errors="backslashreplace", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1, closefd=False)
    faulthandler.enable(file=2)
    limit_memory(memory)
