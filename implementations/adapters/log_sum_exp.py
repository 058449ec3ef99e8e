"""Kernels that always return a pair of output and log-sum-exp."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.parameters import limited, options


def from_log_sum_exp(kernel: Callable[..., Any], *, base: float = math.e) -> Callable[..., Any]:
    """Adapt a kernel that returns a pair (out, lse) from every call.

    Args:
        kernel: takes query, key and value as the contract does, and options by keyword; returns
            out (batch, heads, queries, d_value) and lse (batch, heads, queries).
        base: the base of the kernel's logarithm: e, or 2, as FlashInfer has.

    Returns:
        An attention of the contract with the kernel's options and `return_lse`, which returns the
        natural logarithm.

    Raises:
        ValueError: if the base is neither e nor 2.
    """
    if base not in (2, math.e):
        raise ValueError(f"base must be 2 or math.e, got {base}")

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        return_lse: bool = False,
        **given: Any,
    ) -> Any:
        out, lse = kernel(query, key, value, **given)
        if not return_lse:
            return out
        return out, lse * math.log(2) if base == 2 else lse

    return limited(attention, options(kernel) | {"return_lse"}, kernel)
