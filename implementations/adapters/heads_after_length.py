"""Kernels whose heads come after the length."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.parameters import limited, options


def from_heads_after_length(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt a kernel of tensors (batch, length, heads, channels), as FlashAttention and JAX have.

    The axes are exchanged in a view; nothing is copied. The log-sum-exp is (batch, heads, queries)
    on both sides.

    Args:
        kernel: takes query (batch, queries, heads, d_head), key (batch, keys, kv_heads, d_head)
            and value (batch, keys, kv_heads, d_value), and options of the contract by keyword;
            returns (batch, queries, heads, d_value).

    Returns:
        An attention of the contract with the kernel's options.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        **given: Any,
    ) -> Any:
        moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out = kernel(*moved, **given)
        if given.get("return_lse"):
            out, lse = out
            return out.transpose(1, 2), lse
        return out.transpose(1, 2)

    return limited(attention, options(kernel), kernel)
