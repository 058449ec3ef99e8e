"""xFormers' `memory_efficient_attention` with biases of blocks: packed and paged sequences."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.implementations.adapters.packed_parameters import (
    causal_and_left,
    demand_causal,
    demand_group_flag,
    limited_packed,
    with_rows_outside,
)
from attnspec.implementations.adapters.parameters import require
from attnspec.spec.packed import EVERYWHERE, UNBOUNDED

_OPTIONS = {"scale", "window_size", "enable_gqa"}


def packed_from_block_diagonal(function: Callable[..., Any], mask: Any) -> Callable[..., Any]:
    """Adapt `memory_efficient_attention` to packed sequences.

    Args:
        function: takes query (1, tokens, heads, d_head), key and value (1, tokens of keys, heads,
            d_head), `attn_bias` and `scale`; returns (1, tokens, heads, d_head). If heads are
            grouped, each operand is (1, tokens, kv_heads, group, channels) instead.
        mask: `xformers.ops.fmha.attn_bias.BlockDiagonalMask`, whose `from_seqlens` takes the
            lengths of queries and keys; its results have `make_causal_from_bottomright` and
            `make_local_attention_from_bottomright`.

    Returns:
        A packed attention, which raises `ValueError` for a window that has a bound among the later
        keys, or one to the left alone.

    Raises:
        TypeError: if the function lacks one of its parameters.
    """
    require(function, "attn_bias", "scale")

    def attention(
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "total_k kv_heads d_head"],
        value: Float[torch.Tensor, "total_k kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
        max_q: int,
        max_k: int,
        scale: float | None = None,
        window_size: tuple[int, int] = EVERYWHERE,
        **given: Any,
    ) -> Float[torch.Tensor, "total_q heads d_head"]:
        demand_group_flag(query, key, given)
        is_causal, left = causal_and_left(window_size)
        bias = mask.from_seqlens(cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist())
        if is_causal and left != UNBOUNDED:
            # its window counts the query's own key
            bias = bias.make_local_attention_from_bottomright(left + 1)
        elif is_causal:
            bias = bias.make_causal_from_bottomright()
        elif left != UNBOUNDED:
            raise ValueError(f"the biases have no window to the left alone: {window_size}")
        total, total_k = int(cu_seq_q[-1]), int(cu_seq_k[-1])
        operands = _grouped(query[:total][None], key[:total_k][None], value[:total_k][None])
        out = function(*operands, attn_bias=bias, scale=scale)
        return with_rows_outside(query, out.reshape(total, *query.shape[1:]))

    return limited_packed(attention, _OPTIONS, function)


def paged_from_block_diagonal(function: Callable[..., Any], causal_mask: Any) -> Callable[..., Any]:
    """Adapt `memory_efficient_attention` to pages.

    Args:
        function: as that of `packed_from_block_diagonal`; keys and values are
            (1, pages · page_size, heads, d_head).
        causal_mask: `PagedBlockDiagonalCausalWithOffsetPaddedKeysMask`, whose `from_seqlens` takes
            the lengths of queries and keys, the table and the page size.

    Returns:
        A paged attention that is always causal: it raises `ValueError` for a call whose diagonal
        would hide a key, and for a window.

    Raises:
        TypeError: if the function lacks one of its parameters.
    """
    require(function, "attn_bias", "scale")

    def attention(
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "pages page_size kv_heads d_head"],
        value: Float[torch.Tensor, "pages page_size kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: None,
        max_q: int,
        max_k: int,
        seqused_k: Int[torch.Tensor, " sequences"],
        block_table: Int[torch.Tensor, "sequences columns"],
        scale: float | None = None,
        window_size: tuple[int, int] = EVERYWHERE,
        **given: Any,
    ) -> Float[torch.Tensor, "total_q heads d_head"]:
        demand_group_flag(query, key, given)
        if demand_causal(window_size, cu_seq_q) != UNBOUNDED:
            raise ValueError(f"the biases of pages have no window: {window_size}")
        bias = causal_mask.from_seqlens(
            q_seqlen=cu_seq_q.diff().tolist(),
            kv_seqlen=seqused_k.tolist(),
            block_tables=block_table.contiguous(),
            page_size=key.shape[1],
        )
        total = int(cu_seq_q[-1])
        pools = (pool.flatten(0, 1)[None] for pool in (key, value))
        out = function(*_grouped(query[:total][None], *pools), attn_bias=bias, scale=scale)
        return with_rows_outside(query, out.reshape(total, *query.shape[1:]))

    return limited_packed(attention, _OPTIONS, function, paged=True)


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the operands with an axis of the group, if query heads share key/value heads."""
    kv_heads, group = key.shape[2], query.shape[2] // key.shape[2]
    if group == 1:
        return query, key, value
    shared = (x.unsqueeze(3).expand(*x.shape[:3], group, x.shape[3]) for x in (key, value))
    key, value = shared
    return query.unflatten(2, (kv_heads, group)), key, value
