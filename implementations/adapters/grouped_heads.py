"""Kernels that see from the shapes alone that query heads share key/value heads."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.parameters import limited, options


def from_grouped_shapes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt a kernel that has no flag for grouped heads, and groups by the numbers of heads.

    Args:
        kernel: takes query (batch, heads, queries, d_head), key (batch, kv_heads, keys, d_head) and
            value (batch, kv_heads, keys, d_value), and options of the contract by keyword.

    Returns:
        An attention of the contract with the kernel's options and `enable_gqa`, without which
        unequal numbers of heads raise `ValueError`.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        enable_gqa: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        return kernel(query, key, value, **given)

    return limited(attention, options(kernel) | {"enable_gqa"}, kernel)


def demand_flag(query: torch.Tensor, key: torch.Tensor, *, enable_gqa: bool) -> None:
    """Refuse grouped heads unless the flag is set.

    Raises:
        ValueError: if the numbers of heads differ without the flag.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"{heads} query heads, {kv_heads} key/value heads: set enable_gqa")
