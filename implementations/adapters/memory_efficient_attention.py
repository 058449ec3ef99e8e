"""xFormers' `memory_efficient_attention`: options become one bias, groups of heads an axis."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.adapters.parameters import limited, require
from attnspec.implementations.adapters.window import spelled


def from_memory_efficient_attention(
    function: Callable[..., Any],
    *,
    causal: Callable[[], Any] | None = None,
    window: Callable[[int, int], Any] | None = None,
) -> Callable[..., Any]:
    """Adapt `xformers.ops.memory_efficient_attention`.

    Args:
        function: takes query (batch, queries, heads, d_head), key (batch, keys, heads, d_head) and
            value (batch, keys, heads, d_value), `attn_bias`, `p` (of dropout) and `scale`; returns
            (batch, queries, heads, d_value). If heads are grouped, each operand is
            (batch, length, kv_heads, group, channels) instead.
        causal: makes the bias of the causal flag: `LowerTriangularFromBottomRightMask`, or
            `LowerTriangularMask`, whose diagonal is aligned at the upper left. Without it the
            result does not take `is_causal`.
        window: makes the bias of a window of so many keys to the left and to the right:
            `LocalAttentionFromBottomRightMask`. Without it the result does not take `window`.

    Returns:
        An attention of the contract with dropout, scale, grouped heads, float masks, and the causal
        flag and the window if their bias is given. It raises `TypeError` for a bool mask, and
        `ValueError` for a mask together with the flag or a window: they are one argument.

    Raises:
        TypeError: if the function lacks one of its parameters.
    """
    require(function, "attn_bias", "p", "scale")
    names = {"attn_mask", "dropout_p", "scale", "enable_gqa"}
    names |= {"is_causal"} if causal else set()
    names |= {"window"} if window else set()

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Float[torch.Tensor, "..."] | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **given: Any,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        demand_flag(query, key, enable_gqa=enable_gqa)
        sides = given.get("window")
        bias: Any = None
        if attn_mask is not None:
            if is_causal or sides is not None:
                raise ValueError("the function takes a mask, or a causal flag or window: not both")
            if attn_mask.dtype == torch.bool:
                raise TypeError("the function takes no mask of torch.bool")
            bias = of_rank_4(attn_mask).expand(*query.shape[:3], key.shape[2])
        elif sides is not None and window is not None:
            # no side is longer than the whole sequence
            left, right = spelled(sides, query.shape[2] + key.shape[2])
            bias = window(_number(left), 0 if is_causal else _number(right))
        elif is_causal and causal is not None:
            bias = causal()
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        kv_heads, group = key.shape[2], query.shape[2] // max(key.shape[2], 1)
        if group > 1:
            query = query.unflatten(2, (kv_heads, group))
            key, value = (
                x.unsqueeze(3).expand(*x.shape[:3], group, x.shape[3]) for x in (key, value)
            )
            if isinstance(bias, torch.Tensor):
                bias = bias.unflatten(1, (kv_heads, group))
        out: torch.Tensor = function(query, key, value, attn_bias=bias, p=dropout_p, scale=scale)
        return (out.flatten(2, 3) if group > 1 else out).transpose(1, 2)

    return limited(attention, names, function)


def _number(side: int | None) -> int:
    """Return a side of a window in which no side is without a bound."""
    assert side is not None
    return side
