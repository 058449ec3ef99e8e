"""Limits of memory, and predictions of the memory and time that a large call needs."""

import contextlib
import ctypes
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

from attnspec.conformance.comparison.violation import NotAvailable

GIBIBYTE = 2**30

PATIENCE = 200.0
"""Seconds that a call may take: a law has five minutes by default."""

SHARE = 0.8
"""Share of the free memory that a call may need."""

LEAST = 2 * GIBIBYTE
"""Bytes that a worker may always hold by default: few laws need more."""

_SELF = Path("/proc/self")


def can_limit() -> bool:
    """Return whether the system enforces a limit on a process's memory: Linux does."""
    return resource is not None and sys.platform == "linux"


def limit_memory(limit: int | None) -> None:
    """Limit the memory that this process may allocate, and write no core file if it crashes.

    Private memory is counted when it is reserved. So a runaway allocation raises in the process
    that makes it; without a limit the system ends a process of its own choice.

    Args:
        limit: bytes; None for no limit.
    """
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if limit is not None and can_limit():
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def memory_limit() -> int | None:
    """Return the bytes that this process may hold, or None without a limit."""
    if not can_limit():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def fair_share(workers: int, device: str) -> int | None:
    """Return the bytes that each of several workers may hold: an equal part of `SHARE`.

    An accelerator has its own memory, and drivers map far more than they use: no limit there.
    """
    free = free_memory(device) if device == "cpu" and can_limit() else None
    return None if free is None else max(LEAST, int(SHARE * free / workers))


def memory_per_worker(requested: float | None, workers: int, device: str) -> int | None:
    """Return the bytes that each of several workers may hold, or None for no limit.

    Args:
        requested: GiB for each worker; 0 for no limit; None for a fair share.
        workers: a count.
        device: the device on which they compute.

    Raises:
        ValueError: if a limit is requested that this system cannot enforce.
    """
    if requested is None:
        return fair_share(workers, device)
    if requested and not (device == "cpu" and can_limit()):
        raise ValueError("--memory: memory can be limited on Linux and on a CPU only")
    return int(requested * GIBIBYTE) or None


def is_exhausted(reason: str) -> bool:
    """Return whether an error message means that memory ran out."""
    phrases = ("MemoryError", "allocate memory", "bad_alloc", "not enough memory", "out of memory")
    return any(phrase in reason for phrase in phrases)


def free_memory(device: str) -> int | None:
    """Return the free bytes on a device, or None if unknown."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        group = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if group != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            limits.append(int(group) - used)
    except OSError:
        pass
    own_limit = memory_limit()
    if own_limit is not None:
        limits.append(own_limit - _status_bytes("VmData"))
    return min(limits, default=None)


def require_memory(needed: float, device: str) -> None:
    """Check that a device has enough free memory.

    Args:
        needed: bytes.
        device: the device of the call.

    Raises:
        NotAvailable: if it has less; names both amounts.
    """
    free = free_memory(device)
    if free is not None and needed > SHARE * free:
        amounts = needed / GIBIBYTE, free / GIBIBYTE
        raise NotAvailable("needs {:.1f} GiB of memory, {:.1f} GiB are free".format(*amounts))


def peak_memory(run: Callable[[], object], device: str) -> tuple[int, float]:
    """Run a call, and return its peak memory in bytes above the level before it, and its seconds.

    Raises:
        NotAvailable: if the system does not report the memory of a process.
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
        raise NotAvailable("the system does not report how much memory a call needs")
    gc.collect()  # garbage that is freed during the call would hide as much of its memory
    _return_free_memory()
    _SELF.joinpath("clear_refs").write_text("5")  # reset the peak
    before = _status_bytes("VmRSS")
    started = time.perf_counter()
    run()
    return max(0, _status_bytes("VmHWM") - before), time.perf_counter() - started


def _return_free_memory() -> None:
    """Return memory that the C library keeps free to the system, so that its reuse is counted."""
    with contextlib.suppress(AttributeError, OSError):  # a function of glibc
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(field: str) -> int:
    """Return a field of `/proc/self/status`, in bytes."""
    lines = _SELF.joinpath("status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def require_length(
    run: Callable[[int], object],
    shorter: int,
    longer: int,
    device: str,
    *,
    by_scores: bool = True,
) -> dict[str, float]:
    """Measure a call of a short length, and check that memory and time suffice for a long one.

    Memory grows with the square of the length if the short call holds at least one byte for each
    score, else with the length. Time grows with the square of the length too.

    Args:
        run: makes a call of a length.
        shorter: the length that is measured.
        longer: the length that is needed.
        device: the device of the call.
        by_scores: false if only the queries grow; memory and time then grow with the length.

    Returns:
        The prediction for the long call: `bytes` and `seconds`.

    Raises:
        NotAvailable: if memory or time does not suffice.
    """
    run(shorter)  # one-time allocations and compilation do not count
    # memory that another thread frees meanwhile hides as much; that hardly happens twice
    runs = [peak_memory(lambda: run(shorter), device) for _ in range(2)]
    measured_bytes, measured_seconds = (max(figures) for figures in zip(*runs, strict=True))
    growth = longer / shorter
    is_quadratic = by_scores and measured_bytes >= shorter**2
    needed_bytes = measured_bytes * (growth**2 if is_quadratic else growth)
    require_memory(needed_bytes, device)
    needed_seconds = measured_seconds * (growth**2 if by_scores else growth)
    if needed_seconds > PATIENCE:
        raise NotAvailable(f"would take about {math.ceil(needed_seconds / 60)} minutes")
    return {"bytes": needed_bytes, "seconds": needed_seconds}
