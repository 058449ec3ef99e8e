"""Enter the state of torch in which a call is made."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from attnspec.spec import CallMode


def entered(mode: CallMode) -> AbstractContextManager[object]:
    """Return a context in which torch is in the state of a mode."""
    match mode:
        case CallMode.NO_GRAD:
            return torch.no_grad()
        case CallMode.INFERENCE:
            return torch.inference_mode()
        case CallMode.DEFAULT_FLOAT64:
            return default_dtype(torch.float64)
    return nullcontext()


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Set torch's default dtype in a block; None leaves it as it is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
