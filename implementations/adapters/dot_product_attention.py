"""Transformer Engine's `DotProductAttention`: a module whose options are fixed when it is made."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.parameters import limited, require
from attnspec.implementations.adapters.window import spelled

CACHED = 64
"""Modules that are kept."""


def from_dot_product_attention(module: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `transformer_engine.pytorch.DotProductAttention`.

    Args:
        module: the class, which takes `num_attention_heads`, `kv_channels`, `num_gqa_groups`,
            `qkv_format`, `attn_mask_type`, `window_size`, `attention_type` and `softmax_scale`. Its
            instances take query (batch, queries, heads, d_head), key
            (batch, keys, kv_heads, d_head) and value (batch, keys, kv_heads, d_value), and return
            (batch, queries, heads · d_value).

    Returns:
        An attention of the contract with the causal flag, scale, grouped heads and window. Diagonal
        and window are aligned at the lower right. It raises `ValueError` for a window with a bound
        on one side alone, unless the other is that of the causal flag.

    Raises:
        TypeError: if the class lacks one of its parameters.
    """
    require(
        module,
        *("num_attention_heads", "kv_channels", "num_gqa_groups", "qkv_format"),
        *("attn_mask_type", "window_size", "attention_type", "softmax_scale"),
    )
    made = functools.lru_cache(maxsize=CACHED)(module)

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        demand_flag(query, key, enable_gqa=enable_gqa)
        left, right = spelled(window or (None, None), -1)
        # a window without later keys is the flag: with "no_mask" the module takes it for no window
        is_causal = is_causal or right == 0
        if not is_causal and (left == -1) != (right == -1):
            raise ValueError(f"the module's window has both bounds or none, got {window}")
        out: torch.Tensor = made(
            num_attention_heads=query.shape[1],
            kv_channels=(query.shape[3], value.shape[3]),
            num_gqa_groups=key.shape[1],
            qkv_format="bshd",
            attn_mask_type="causal_bottom_right" if is_causal else "no_mask",
            window_size=(left, 0 if is_causal else right),
            attention_type="self" if query.shape[2] == key.shape[2] else "cross",
            softmax_scale=scale,
        )(*(tensor.transpose(1, 2) for tensor in (query, key, value)))
        of_heads: torch.Tensor = out.unflatten(2, (query.shape[1], value.shape[3]))
        return of_heads.transpose(1, 2)

    names = ("is_causal", "scale", "enable_gqa", "window")
    return limited(attention, names, module)
