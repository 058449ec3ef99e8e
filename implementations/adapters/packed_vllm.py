"""vLLM's paged functions: `unified_attention` and `paged_attention_v1`."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.implementations.adapters.packed_parameters import (
    demand_causal,
    demand_group_flag,
    limited_packed,
)
from attnspec.implementations.adapters.parameters import parameters, require
from attnspec.spec.packed import EVERYWHERE, UNBOUNDED


def paged_from_unified_attention(function: Callable[..., None]) -> Callable[..., Any]:
    """Adapt `unified_attention` of vLLM's Triton backend, which writes to its argument `out`.

    Args:
        function: takes the operands and `out`, `cu_seqlens_q`, `max_seqlen_q`, `seqused_k`,
            `max_seqlen_k`, `softmax_scale`, `causal`, `window_size`, `block_table`, `softcap`, the
            scales of quantized operands, and `alibi_slopes` and `sinks` if it names them.

    Returns:
        A paged attention that is always causal: it raises `ValueError` for a call whose diagonal
        would hide a key.

    Raises:
        TypeError: if the function lacks one of its parameters.
    """
    require(function, "out", "cu_seqlens_q", "seqused_k", "block_table", "window_size", "softcap")
    declared = parameters(function)
    names = {"scale", "window_size", "enable_gqa", "softcap"}
    names |= {"alibi_slopes", "sinks"} & declared

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
        softcap: float | None = None,
        **given: Any,
    ) -> Float[torch.Tensor, "total_q heads d_head"]:
        demand_group_flag(query, key, given)
        left = demand_causal(window_size, cu_seq_q)
        options = {name: each for name, each in given.items() if each is not None}
        out = torch.zeros_like(query)
        function(
            q=query,
            k=key,
            v=value,
            out=out,
            cu_seqlens_q=cu_seq_q.contiguous(),
            max_seqlen_q=max_q,
            seqused_k=seqused_k.contiguous(),
            max_seqlen_k=max_k,
            softmax_scale=query.shape[-1] ** -0.5 if scale is None else scale,
            causal=True,
            window_size=EVERYWHERE if left == UNBOUNDED else (left, 0),
            block_table=block_table.contiguous(),
            softcap=softcap or 0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            **options,
        )
        return out

    return limited_packed(attention, names, function, paged=True)


def paged_from_paged_attention(function: Callable[..., None]) -> Callable[..., Any]:
    """Adapt `paged_attention_v1`: one query each sequence, and pools of its own layout.

    The pools are copied to (pages, kv_heads, d_head / x, page_size, x) for keys, where x numbers
    have 16 bytes, and (pages, kv_heads, d_head, page_size) for values.

    Args:
        function: takes `out`, query, both pools, the number of key/value heads, scale, table,
            lengths, page size, the longest length, `alibi_slopes`, the type of the cache, and two
            scales; writes to `out`.

    Returns:
        A paged attention that raises `ValueError` unless each sequence has one query, and for a
        window.

    Raises:
        TypeError: if the function lacks one of its parameters.
    """
    require(function, "out", "key_cache", "value_cache", "block_tables", "seq_lens", "block_size")

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
        alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
        **given: Any,
    ) -> Float[torch.Tensor, "total_q heads d_head"]:
        demand_group_flag(query, key, given)
        if bool((cu_seq_q.diff() != 1).any()):
            raise ValueError("the function decodes: each sequence has one query")
        if demand_causal(window_size, cu_seq_q) != UNBOUNDED:
            raise ValueError(f"the function has no window: {window_size}")
        packed = 16 // key.element_size()
        if query.shape[2] % packed:
            raise ValueError(f"d_head must be a multiple of {packed}, got {query.shape[2]}")
        keys = key.permute(0, 2, 3, 1).unflatten(2, (-1, packed)).transpose(3, 4).contiguous()
        out = torch.zeros_like(query)
        one = torch.ones((), dtype=torch.float32, device=query.device)
        function(
            out=out[: len(seqused_k)],
            query=query[: len(seqused_k)],
            key_cache=keys,
            value_cache=value.permute(0, 2, 3, 1).contiguous(),
            num_kv_heads=key.shape[2],
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            block_tables=block_table.contiguous(),
            seq_lens=seqused_k.contiguous(),
            block_size=key.shape[1],
            max_seq_len=max_k,
            alibi_slopes=alibi_slopes,
            kv_cache_dtype="auto",
            k_scale=one,
            v_scale=one,
        )
        return out

    names = {"scale", "window_size", "enable_gqa", "alibi_slopes"}
    return limited_packed(attention, names, function, paged=True)
