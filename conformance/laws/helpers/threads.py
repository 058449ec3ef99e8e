"""Helpers of laws that call from several threads at once."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from attnspec.conformance.comparison.violation import Violation

Result = TypeVar("Result")

ROUNDS = 6
"""Times that the threads call at once for one case."""


def run_at_once(functions: Sequence[Callable[[], Result]]) -> list[list[Result]]:
    """Run functions `ROUNDS` times, each in a thread of its own, and return the results of each.

    The threads wait for each other before every round.

    Raises:
        Violation: if a function does not return while another one runs.
    """
    barrier = threading.Barrier(len(functions))

    def rounds(function: Callable[[], Result]) -> list[Result]:
        results = []
        try:
            for _ in range(ROUNDS):
                barrier.wait(timeout=60)
                results.append(function())
        except BaseException:
            barrier.abort()
            raise
        return results

    results = []
    with interleaved_threads(), ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(rounds, function) for function in functions]:
            # a broken barrier means that the other thread raised, with the cause
            with contextlib.suppress(threading.BrokenBarrierError):
                results.append(future.result())
    if len(results) < len(functions):
        raise Violation("a call does not return while another thread makes calls")
    return results


@contextlib.contextmanager
def interleaved_threads() -> Iterator[None]:
    """Switch threads often, and restore the state that concurrent calls may leave behind.

    `torch.nn.attention.sdpa_kernel` sets the allowed kernels of the whole process. Two threads
    that leave it in the order in which they entered restore the wrong kernels.
    """
    interval = sys.getswitchinterval()
    kernels = torch.backends.cuda
    allowed: dict[Callable[[bool], Any], bool] = {
        getattr(kernels, f"enable_{kernel}_sdp"): getattr(kernels, f"{kernel}_sdp_enabled")()
        for kernel in ("flash", "math", "mem_efficient", "cudnn")
    }
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        for set_to, was_on in allowed.items():
            set_to(was_on)
