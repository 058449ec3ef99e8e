"""The state of torch in which a call is made: enter it, and read it."""

import contextvars
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

from attnspec.spec import CallMode


@dataclass(frozen=True)
class TorchState:
    """Settings of torch around a call, beside the mode of the call itself.

    Attributes:
        default_dtype: torch's default dtype.
        is_deterministic: whether deterministic algorithms are requested.
        autocast: the dtype to which autocast casts, or None while it is off.
        product_precision: the precision of products of float32 numbers.
    """

    default_dtype: torch.dtype = torch.float32
    is_deterministic: bool = False
    autocast: torch.dtype | None = None
    product_precision: str = "highest"

    @classmethod
    def current(cls, device: str = "cpu") -> "TorchState":
        """Return the present state, and autocast's on a type of device."""
        is_cast = torch.is_autocast_enabled(device)
        return cls(
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_autocast_dtype(device) if is_cast else None,
            torch.get_float32_matmul_precision(),
        )


Result = TypeVar("Result")


def run_in(mode: CallMode, function: Callable[[], Result]) -> Result:
    """Return what a function returns that is run in the state, or the thread, of a mode."""
    if mode not in IN_A_THREAD:
        with entered(mode):
            return function()
    is_enabled = torch.is_grad_enabled()

    def inside() -> Result:
        # each thread has a grad mode and a number of threads of its own
        with torch.set_grad_enabled(is_enabled), entered(mode):
            return function()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, inside).result()


def entered(mode: CallMode) -> AbstractContextManager[object]:
    """Return a context in which torch is in the state of a mode."""
    match mode:
        case CallMode.NO_GRAD:
            return torch.no_grad()
        case CallMode.INFERENCE:
            return torch.inference_mode()
        case CallMode.DEFAULT_FLOAT64 | CallMode.DEFAULT_FLOAT16 | CallMode.DEFAULT_BFLOAT16:
            return default_dtype(DEFAULTS[mode])
        case CallMode.DETERMINISTIC:
            return deterministic_algorithms()
        case CallMode.THREADS:
            return threads(THREADS)
        case CallMode.SERVING:
            return _both(threads(MANY_THREADS), torch.inference_mode())
        case CallMode.TRAINING:
            return _both(threads(MANY_THREADS), deterministic_algorithms())
    return nullcontext()


IN_A_THREAD = (CallMode.OTHER_THREAD, CallMode.SERVING, CallMode.TRAINING)
"""The modes of a call in a thread of its own."""


@contextmanager
def _both(
    one: AbstractContextManager[object], other: AbstractContextManager[object]
) -> Iterator[None]:
    with one, other:
        yield


DEFAULTS = {
    CallMode.DEFAULT_FLOAT64: torch.float64,
    CallMode.DEFAULT_FLOAT16: torch.float16,
    CallMode.DEFAULT_BFLOAT16: torch.bfloat16,
}
"""The default dtype in each mode that changes it."""

THREADS = 5
"""Threads of a call in the mode of several: an odd number divides few sizes evenly, and kernels
have plans for four and more."""

MANY_THREADS = 9
"""Likewise of a server and of a trainer: kernels have plans for eight and more."""


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch divide work among a number of threads in a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Set torch's default dtype in a block; None leaves it as it is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def product_precision(precision: str) -> Iterator[None]:
    """Let products of float32 numbers have a precision, such as "medium", in a block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let torch use deterministic algorithms alone in a block, and warn where it has none."""
    before = torch.get_deterministic_debug_mode()
    _set_deterministic(1)
    try:
        yield
    finally:
        _set_deterministic(before)


def _set_deterministic(mode: int) -> None:
    """Set torch's mode of deterministic algorithms: 0 for off, 1 with warnings, 2 with errors.

    `torch.use_deterministic_algorithms` sets the compiler's mode as well, and imports the compiler
    for it, in a second; so it is called only if something else has imported the compiler.
    """
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    else:
        torch.set_deterministic_debug_mode(mode)
