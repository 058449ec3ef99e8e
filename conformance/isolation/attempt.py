"""Try a call in a process of its own, which it may crash or hang."""

from collections.abc import Callable
from typing import Any

from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.isolation.process import Process, ProcessLost, SendNote, start_method

LIMIT = 20.0
"""Seconds that a call may take: those that are tried so are small."""


def attempt(make: Callable[[], str]) -> str:
    """Run a function in a copy of this process, and return its words.

    Args:
        make: returns what it saw; whatever it changes is lost.

    Returns:
        The words; or, if the process is lost, the cause, such as `its process died by SIGSEGV`.

    Raises:
        NotAvailable: if this process cannot be copied: on Linux alone, with no device in use.
    """
    if start_method() != "fork":
        raise NotAvailable("needs a process that can be copied: Linux, and no device in use")

    def handle(request: dict[str, Any], send_note: SendNote) -> str:
        return make()

    process = Process(handle)
    try:
        return process.call({}, LIMIT)
    except ProcessLost as error:
        return str(error)
    finally:
        process.end()
