"""RMSNorm and rotary positions in Triton: calls of the kernels of `triton_row_kernels`."""

from typing import Any

import torch

from attnspec.implementations.triton_flash import DTYPES, IS_INTERPRETED, without_triton

__all__ = ["DTYPES", "few_rows", "few_tokens", "rms_norm", "rotary", "without_triton"]

MOST_ROWS = 400
"""Rows in a call of the interpreter: a row takes about a millisecond."""


def rms_norm(
    input: torch.Tensor, normalized_shape: tuple[int], weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Call the kernel by torch's signature.

    Raises:
        ValueError: for a type or a width that the kernel does not have.
    """
    # imported here: it needs Triton
    from attnspec.implementations.triton_row_kernels import WIDEST, RMSNorm

    _check_type(input)
    if input.shape[-1] > WIDEST:
        raise ValueError(f"at most {WIDEST} channels, got {input.shape[-1]}")
    rows = input.reshape(-1, input.shape[-1]).contiguous()
    out: torch.Tensor = RMSNorm.apply(rows, weight.contiguous(), float(eps))  # type: ignore[no-untyped-call]
    return out.reshape(input.shape)


def rotary(x: torch.Tensor, positions: torch.Tensor, *, base: float = 10_000.0) -> torch.Tensor:
    """Call the kernel, which turns the whole head.

    Raises:
        ValueError: for a type that the kernel does not have.
    """
    # imported here: it needs Triton
    from attnspec.implementations.triton_row_kernels import Rotary

    _check_type(x)
    batch, heads, length, d_head = x.shape
    tokens = x.transpose(1, 2).reshape(batch * length, heads, d_head).contiguous()
    pairs = torch.arange(d_head // 2, device=x.device, dtype=torch.float64)
    frequencies = (base ** (-2 * pairs / d_head)).float()
    places = positions.reshape(-1).float()
    out: torch.Tensor = Rotary.apply(tokens, places, frequencies)  # type: ignore[no-untyped-call]
    return out.reshape(batch, length, heads, d_head).transpose(1, 2)


def _check_type(x: torch.Tensor) -> None:
    if x.dtype not in DTYPES:
        raise ValueError(f"the kernels take float32, float16 or bfloat16, got {x.dtype}")


def few_rows(case: Any) -> str | None:
    """Return the reason why a call of an RMSNorm is refused, or None."""
    return _few(torch.Size(case.shape).numel())


def few_tokens(case: Any) -> str | None:
    """Return the reason why a call of a rotary embedding is refused, or None."""
    return _few(case.batch * case.heads * case.length)


def _few(rows: int) -> str | None:
    if IS_INTERPRETED and rows > MOST_ROWS:
        return f"the interpreter would take {rows} rows, more than {MOST_ROWS}"
    return None
