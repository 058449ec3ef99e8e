"""Waiting: what a process of the run waits for, for the process that prints its progress.

A call that hangs is ended at its limit, after minutes. Until then the progress names it.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch, which the process that prints does without
    from attnspec.conformance.isolation.process import Notes

OnWait = Callable[["Notes", float], None]


@contextlib.contextmanager
def telling(
    folder: Path | None, limit: float, describe: "Callable[[Notes], str]"
) -> Iterator[OnWait]:
    """Yield a function to be called while a process is waited for, which notes that in a file.

    Args:
        folder: the folder of the run, whose `*.waiting` files `Progress` reads; None for no file.
        limit: seconds after which the process is ended.
        describe: returns what is waited for, by the last notes of the process.
    """
    path = None if folder is None else folder / f"{os.getpid()}.waiting"

    def on_wait(notes: "Notes", seconds: float) -> None:
        if path is None:
            return
        what = {"what": describe(notes), "since": round(time.time() - seconds, 1), "limit": limit}
        partial = path.with_suffix(".part")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(what), encoding="utf-8")
            partial.replace(path)

    try:
        yield on_wait
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def folder_of(plan: str | None) -> Path | None:
    """Return the folder of a run, by the path of the plan that its workers share."""
    return Path(plan).parent if plan else None
