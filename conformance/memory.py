"""Memory and time that a large call needs, told before it is made."""

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from attnspec.conformance.tally import NotAvailable

GIBIBYTE = 2**30

PATIENCE = 200.0
"""Seconds that a call may take: a law has five minutes by default."""

SHARE = 0.8
"""Of what is free, how much a call may need."""

LEAST = 2 * GIBIBYTE
"""Bytes that a worker may always hold, where nobody says otherwise: few laws need more."""

_SELF = Path("/proc/self")


def can_limit() -> bool:
    """True where a system keeps a process to what it may hold: Linux does."""
    return resource is not None and sys.platform == "linux"


def limit_memory(most: int | None) -> None:
    """Let this process allocate no more, and leave no copy of itself behind where it crashes.

    Memory is counted when it is reserved, if it is private. So an allocation without end raises
    in the process that makes it, instead of ending whichever process the system picks.

    Args:
        most: bytes; `None` for as many as there are.
    """
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if most is not None and can_limit():
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def limited() -> int | None:
    """Bytes that this process may hold, or `None` where there is no limit."""
    if not can_limit():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def fair(workers: int, device: str) -> int | None:
    """Bytes that each of several workers may hold: its part of most of what is free.

    A device has memory of its own, and drivers map far more than they use: no limit there.
    """
    room = free(device) if device == "cpu" and can_limit() else None
    return None if room is None else max(LEAST, int(SHARE * room / workers))


def most(said: float | None, workers: int, device: str) -> int | None:
    """Bytes that each of several workers may hold, or `None` for as many as there are.

    Args:
        said: GiB that somebody allows, 0 for all there are, `None` where nobody says.
        workers: how many there are.
        device: where they compute.

    Raises:
        ValueError: where a limit is asked for that this system does not keep.
    """
    if said is None:
        return fair(workers, device)
    if said and not (device == "cpu" and can_limit()):
        raise ValueError("--memory: memory can be limited on Linux and on a CPU alone")
    return int(said * GIBIBYTE) or None


def is_exhausted(reason: str) -> bool:
    """True where an error says that memory is used up."""
    words = ("MemoryError", "allocate memory", "bad_alloc", "not enough memory", "out of memory")
    return any(each in reason for each in words)


def free(device: str) -> int | None:
    """Bytes that can still be had on a device, or `None` where nobody says."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(each.split()[1]) * 1024 for each in lines if each.startswith("MemAvailable")]
        group = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if group != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            found.append(int(group) - used)
    except OSError:
        pass
    most = limited()
    if most is not None:
        found.append(most - _held("VmData"))
    return min(found, default=None)


def demand(needed: float, device: str) -> None:
    """Go on where a device has room.

    Raises:
        NotAvailable: where it has not, saying what is needed.
    """
    room = free(device)
    if room is not None and needed > SHARE * room:
        told = f"{needed / GIBIBYTE:.1f} GiB"
        raise NotAvailable(f"needs {told} of memory, {room / GIBIBYTE:.1f} GiB are free")


def peak(run: Callable[[], object], device: str) -> tuple[int, float]:
    """Run, and say how many bytes more than before were held at once, and the seconds it took.

    Raises:
        NotAvailable: where the system does not tell what a process holds.
    """
    if device != "cpu":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        started = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        return torch.cuda.max_memory_allocated(device) - before, seconds
    if not os.access(_SELF / "clear_refs", os.W_OK):
        raise NotAvailable("the system does not tell how much memory a call needs")
    gc.collect()  # garbage that goes while it runs would hide as much of what it takes
    _SELF.joinpath("clear_refs").write_text("5")  # the peak so far is forgotten
    before = _held("VmRSS")
    started = time.perf_counter()
    run()
    return max(0, _held("VmHWM") - before), time.perf_counter() - started


def _held(line: str) -> int:
    """A line of the process's own account, in bytes."""
    status = _SELF.joinpath("status").read_text().splitlines()
    return next(int(each.split()[1]) * 1024 for each in status if each.startswith(line))


def demand_length(
    run: Callable[[int], object],
    shorter: int,
    longer: int,
    device: str,
    *,
    by_scores: bool = True,
) -> dict[str, float]:
    """Try a call at a short length, and say whether there is room and time for a long one.

    Memory grows with the square of the length where the short call holds as much as one byte for
    each score, else with the length. Time grows with its square, too.

    Args:
        run: makes a call of a length.
        shorter: at which it is tried.
        longer: at which it is wanted.
        device: where it runs.
        by_scores: false where only queries grow, and everything with them.

    Returns:
        What is foreseen: `bytes` and `seconds`.

    Raises:
        NotAvailable: where there is not.
    """
    run(shorter)  # what is allocated once, or compiled, is not counted
    # what is given back to the system meanwhile, by whomever, hides as much: hardly twice
    tries = [peak(lambda: run(shorter), device) for _ in range(2)]
    held, seconds = (max(each) for each in zip(*tries, strict=True))
    grows = longer / shorter
    foreseen = held * (grows**2 if by_scores and held >= shorter**2 else grows)
    demand(foreseen, device)
    lasts = seconds * (grows**2 if by_scores else grows)
    if lasts > PATIENCE:
        raise NotAvailable(f"would take about {math.ceil(lasts / 60)} minutes")
    return {"bytes": foreseen, "seconds": lasts}
