"""Run untrusted code in a subprocess, which may crash, hang or exhaust its memory.

A timeout like pytest-timeout's cannot interrupt a C loop that holds the GIL. A pytest-xdist worker
that crashes takes seconds to replace, and its exit status is lost.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch

from attnspec.conformance.isolation.memory import limit_memory

SendNote = Callable[[bytes, bytes], None]
"""`send_note(tag, body)`: send a note before the reply; a tag is one byte."""

Notes = dict[bytes, bytes]
"""The last note of each tag."""

Handler = Callable[[dict[str, Any], SendNote], str]
"""Turns a request into a reply inside the process; a module's function, so that it pickles."""

GRACE = 5.0
"""Seconds after its limit in which a process may write its stack trace and end itself."""

WAITING = 2.0
"""Seconds without a reply or a note after which, and between which, a waiting caller is told."""

TAIL = 16_000
"""Bytes kept of a process's output: the last ones."""

_REPLY = b"="


class ProcessLost(Exception):
    """The loss of a process that ended or hung before its reply; the message names the cause.

    Attributes:
        hung: whether it ran out of time.
        output: the end of its standard output and error.
        notes: by tag, the body of the last note that it sent.
    """

    def __init__(self, reason: str, *, hung: bool, output: str, notes: dict[bytes, bytes]) -> None:
        super().__init__(reason)
        self.hung, self.output, self.notes = hung, output, notes


class Process:
    """A subprocess that handles requests one by one until it is ended."""

    def __init__(self, handler: Handler, memory: int | None = None, method: str = "") -> None:
        """Start the process.

        Args:
            handler: turns a request into a reply.
            memory: bytes that it may hold; None for no limit.
            method: the start method of `multiprocessing`; by default the fastest that is safe
                here.
        """
        context: Any = multiprocessing.get_context(method or start_method())
        self._connection, remote_connection = context.Pipe()
        self._output, remote_output = context.Pipe(duplex=False)
        arguments = (remote_connection, remote_output, handler, memory)
        self._process = context.Process(target=_serve, args=arguments)
        with warnings.catch_warnings():
            # a worker has one other thread, which waits for messages of the controller
            warnings.simplefilter("ignore", DeprecationWarning)
            with _Watchdog.stopped():
                self._process.start()
        remote_connection.close()
        remote_output.close()
        self._tail = b""
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        atexit.register(self.end)  # else an interrupted interpreter waits for the process

    def call(
        self,
        request: dict[str, Any],
        limit: float,
        on_wait: Callable[[Notes, float], None] | None = None,
    ) -> str:
        """Send a request and wait for the reply.

        Args:
            request: data that JSON can hold.
            limit: seconds that the reply may take.
            on_wait: called with the last notes while nothing comes, and for how many seconds.

        Raises:
            ProcessLost: if the process ends or exceeds the limit; it is then ended.
        """
        self._tail = b""
        started = time.monotonic()
        notes: Notes = {}
        last = started
        try:
            self._connection.send_bytes(json.dumps(request | {"limit": limit}).encode())
            while (left := started + limit + GRACE - time.monotonic()) > 0:
                if not self._connection.poll(min(left, WAITING)):
                    if on_wait is not None:
                        on_wait(notes, time.monotonic() - last)
                    continue
                message: bytes = self._connection.recv_bytes()
                last = time.monotonic()
                if message[:1] == _REPLY:
                    return message[1:].decode("utf-8", "surrogatepass")
                notes[message[:1]] = message[1:]
        except (EOFError, OSError):
            self._process.join(GRACE)
        status = self._process.exitcode
        spent = time.monotonic() - started
        self.end()
        is_shortened = "Timeout (" in self._last_output  # see `shorten_limit`
        hung = status is None or (status == 1 and (spent >= limit or is_shortened))
        reason = (
            f"timed out after {min(spent, limit):.3g} s"
            if hung
            else _cause(status, self._last_output)
        )
        raise ProcessLost(reason, hung=hung, output=self._last_output, notes=notes)

    def end(self) -> None:
        """End the process and its children at once."""
        atexit.unregister(self.end)
        if self._process.pid is not None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._reader.join(1)
        self._connection.close()

    @property
    def _last_output(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _drain(self) -> None:
        """Read all output of the process, even megabytes, and keep the end."""
        while True:
            try:
                chunk = os.read(self._output.fileno(), 2**16)
            except OSError:
                return
            if not chunk:
                return
            self._tail = (self._tail + chunk)[-TAIL:]


def shorten_limit(seconds: float) -> None:
    """Give the rest of the current request at most these seconds; call it inside the process."""
    _Watchdog.start(seconds)


class _Watchdog:
    """The thread of faulthandler that ends this process once a request has taken too long."""

    until: float | None = None
    """The time at which it ends the process; None while it does not run."""

    @classmethod
    def start(cls, seconds: float) -> None:
        cls.until = time.monotonic() + seconds
        # a thread that needs no lock of the interpreter, so that it ends a loop in C as well; it
        # blocks signals a moment after it began
        blocked = _block_signals()
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        _set_mask(blocked)

    @classmethod
    def stop(cls) -> None:
        cls.until = None
        faulthandler.cancel_dump_traceback_later()

    @classmethod
    @contextlib.contextmanager
    def stopped(cls) -> Iterator[None]:
        """Stop it in a block that forks: a copy without the thread would wait for its end."""
        until = cls.until
        if until is None:
            yield
            return
        cls.stop()
        try:
            yield
        finally:
            cls.start(max(until - time.monotonic(), 0.001))


def start_method() -> str:
    """Return the start method: fork, which takes milliseconds, if no device is in use yet."""
    can_fork = sys.platform == "linux" and not torch.cuda.is_initialized()
    return "fork" if can_fork else "spawn"


def _cause(status: int, output: str) -> str:
    """Return the cause of a process's end, in words."""
    if status >= 0:
        return f"it ended its process, with exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if -status == signal.SIGABRT and "bad_alloc" in output:
        return f"out of memory: its process died by {name}"
    killed = ", as by a system that is out of memory" if name == "SIGKILL" else ""
    return f"its process died by {name}{killed}"


def _serve(
    connection: Connection, output: Connection, handler: Handler, memory: int | None
) -> None:
    """Handle requests in the process until the connection closes."""
    _detach(output)
    gc.freeze()  # objects inherited by the fork are never freed: the collector can skip them
    gc.enable()
    # OpenMP keeps a team for each thread that called it; a fork copies the record of the team of
    # its main thread, but none of the team's threads, and a call there would wait for them forever
    blocked = _block_signals()
    _ignore_handlers()
    with ThreadPoolExecutor(1, initializer=_set_mask, initargs=(blocked,)) as fresh_thread:
        fresh_thread.submit(_reply_to_all, connection, handler, memory).result()


def _block_signals() -> set[int]:
    """Block every signal in this thread, and return those that were blocked before.

    The other thread takes those that the process sends to itself, and ends at once: this one would
    end it some lines later.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return set()
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))


def _ignore_handlers() -> None:
    """Let code set handlers of signals in vain: it may do so in the main thread alone, and raises.

    Servers set them when they are imported.
    """

    def ignored(number: int, handler: Any) -> Any:
        return signal.getsignal(number)

    vars(signal)["signal"] = ignored


def _set_mask(blocked: set[int]) -> None:
    """Block these signals alone in this thread."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _reply_to_all(connection: Connection, handler: Handler, memory: int | None) -> None:
    """Reply to each request until the connection closes, within a limit of memory."""
    # not before: a thread that finds no memory to start with is waited for without end
    limit_memory(memory)

    def send_note(tag: bytes, body: bytes) -> None:
        connection.send_bytes(tag + body)

    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        _Watchdog.start(request.pop("limit"))
        reply = handler(request, send_note)
        _Watchdog.stop()
        send_note(_REPLY, reply.encode("utf-8", "surrogatepass"))


def _detach(output: Connection) -> None:
    """Leave the terminal, streams and session of the parent process, and end when it ends."""
    with contextlib.suppress(AttributeError, OSError):
        os.setsid()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux
    no_input = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((no_input, output.fileno(), output.fileno())):
        os.dup2(source, number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", errors="backslashreplace", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1, closefd=False)
    faulthandler.enable(file=2)
