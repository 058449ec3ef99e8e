"""Kernels of three axes, whose channels are packed head by head."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.parameters import limited, options, parameters, require


def from_packed_heads(
    kernel: Callable[..., Any], *, heads: str = "num_heads", kv_heads: str = "num_kv_heads"
) -> Callable[..., Any]:
    """Adapt a kernel of tensors (batch, length, heads · channels), as of a projection.

    Args:
        kernel: takes query (batch, queries, heads · d_head), key (batch, keys, kv_heads · d_head)
            and value (batch, keys, kv_heads · d_value), the number of heads and options of the
            contract by keyword; returns (batch, queries, heads · d_value), and with `return_lse` a
            pair of it and (batch, heads, queries).
        heads: the kernel's name of the number of query heads.
        kv_heads: the kernel's name of the number of key/value heads. Without such a parameter the
            result does not take `enable_gqa`.

    Returns:
        An attention of the contract with the kernel's options.

    Raises:
        TypeError: if the kernel has no number of heads.
    """
    require(kernel, heads)
    is_grouped = kv_heads in parameters(kernel)

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        enable_gqa: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        given[heads] = query.shape[1]
        if is_grouped:
            given[kv_heads] = key.shape[1]
        packed = (tensor.transpose(1, 2).flatten(2) for tensor in (query, key, value))
        result = kernel(*packed, **given)
        out, *lse = result if given.get("return_lse") else (result,)
        batch, head_count, queries, _ = query.shape
        out = out.reshape(batch, queries, head_count, value.shape[3]).transpose(1, 2)
        return (out, *lse) if lse else out

    names = options(kernel) - {"enable_gqa"}
    return limited(attention, names | {"enable_gqa"} if is_grouped else names, kernel)
