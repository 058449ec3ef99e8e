"""FlashAttention's functions for packed sequences and for caches, under the packed contract."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.implementations.adapters.packed_parameters import (
    asks_for_lse,
    demand_group_flag,
    limited_packed,
    offsets_of,
)
from attnspec.implementations.adapters.parameters import parameters, require
from attnspec.spec.packed import EVERYWHERE, UNBOUNDED

_NAMES = {
    "softmax_scale": "scale",
    "causal": "window_size",
    "softcap": "softcap",
    "alibi_slopes": "alibi_slopes",
    "learnable_sink": "sinks",
    "s_aux": "sinks",
    "return_attn_probs": "return_aux",
    "return_softmax_lse": "return_aux",
    "return_lse": "return_aux",
}
"""The packed contract's names of the options; versions and forks have different ones of them."""


def packed_from_flash_attn_varlen_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_varlen_func` of FlashAttention 2, 3 or 4, or of vLLM's fork.

    Args:
        function: takes query (tokens, heads, d_head), key and value (tokens of keys, kv_heads,
            d_head), `cu_seqlens_q`, `cu_seqlens_k`, `max_seqlen_q`, `max_seqlen_k`, and options by
            keyword; returns (tokens, heads, d_head), and with a request for it a tuple whose second
            element is the log-sum-exp (heads, tokens).

    Returns:
        A packed attention with the options that the function names.

    Raises:
        TypeError: if the function has no `causal`, or not these lengths.
    """
    lengths = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    require(function, "causal", *lengths)

    def attention(
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "total_k kv_heads d_head"],
        value: Float[torch.Tensor, "total_k kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
        max_q: int,
        max_k: int,
        **given: Any,
    ) -> Any:
        demand_group_flag(query, key, given)
        wants_lse = asks_for_lse(given)
        keywords = _keywords(function, given, wants_lse=wants_lse)
        # its offsets are contiguous
        sequences = zip(lengths, (*_contiguous(cu_seq_q, cu_seq_k), max_q, max_k), strict=True)
        return _result(function(query, key, value, **dict(sequences), **keywords), wants_lse)

    return limited_packed(attention, _options(function), function)


def paged_from_flash_attn_varlen_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_varlen_func` with a `block_table`: of FlashAttention 2, or of vLLM's fork.

    Args:
        function: takes what that of `packed_from_flash_attn_varlen_func` does, keys and values in
            pages (pages, page_size, kv_heads, d_head), and `block_table`; the lengths in use as
            `seqused_k`, or else as the offsets `cu_seqlens_k`.

    Returns:
        A paged attention with the options that the function names, which appends nothing.

    Raises:
        TypeError: if the function has no `causal`, no table, or not these lengths.
    """
    require(function, "causal", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "block_table")
    has_lengths = "seqused_k" in parameters(function)

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
        **given: Any,
    ) -> Any:
        demand_group_flag(query, key, given)
        wants_lse = asks_for_lse(given)
        keywords = _keywords(function, given, wants_lse=wants_lse)
        if has_lengths:
            keywords["seqused_k"] = seqused_k.contiguous()
        else:
            keywords["cu_seqlens_k"] = offsets_of(seqused_k)
        result = function(
            query,
            key,
            value,
            cu_seqlens_q=cu_seq_q.contiguous(),
            max_seqlen_q=max_q,
            max_seqlen_k=max_k,
            block_table=block_table.contiguous(),
            **keywords,
        )
        return _result(result, wants_lse)

    return limited_packed(attention, _options(function), function, paged=True)


def paged_from_flash_attn_with_kvcache(
    function: Callable[..., Any], *, num_splits: int | None = None, one_page: bool = False
) -> Callable[..., Any]:
    """Adapt `flash_attn_with_kvcache` of FlashAttention 2 or 3, which also appends.

    All sequences of a call of it have as many queries: a paged call becomes one of its calls for
    each number of queries. Rows outside all sequences are zero.

    Args:
        function: takes query (batch, queries, heads, d_head), the pools, new keys and values
            (batch, queries, kv_heads, d_head) as `k` and `v`, `cache_seqlens`, `block_table` (or
            `page_table`), and options by keyword; returns (batch, queries, heads, d_head), and with
            `return_softmax_lse` a tuple whose second element is (batch, heads, queries).
        num_splits: the number of parts of the keys that it merges; None for its own choice.
        one_page: pass the first entry of each row of the table as `cache_batch_idx`, which is the
            place of a sequence in a cache without pages. A longer sequence raises `ValueError`.

    Returns:
        A paged attention with the options that the function names.

    Raises:
        TypeError: if the function has no `causal`, or no lengths or table.
    """
    declared = parameters(function)
    table = "page_table" if "page_table" in declared else "block_table"
    require(function, "causal", "cache_seqlens", "cache_batch_idx" if one_page else table)
    names = _options(function) | ({"new_key", "new_value"} if {"k", "v"} <= declared else set())

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
        new_key: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
        new_value: Float[torch.Tensor, "total_q kv_heads d_head"] | None = None,
        **given: Any,
    ) -> Any:
        demand_group_flag(query, key, given)
        wants_lse = asks_for_lse(given)
        keywords = _keywords(function, given, wants_lse=wants_lse)
        if num_splits is not None:
            keywords["num_splits"] = num_splits
        counts, starts = cu_seq_q.diff(), cu_seq_q[:-1].long()
        out = torch.zeros_like(query)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        lse = query.new_full((query.shape[1], len(query)), -torch.inf, dtype=wide)
        for count in sorted(set(counts.tolist()) - {0}):
            chosen = torch.nonzero(counts == count)[:, 0]
            rows = starts[chosen][:, None] + torch.arange(count, device=query.device)
            lengths = seqused_k[chosen]
            if one_page:
                if int(lengths.max()) + (0 if new_key is None else count) > key.shape[1]:
                    raise ValueError("a sequence is longer than its place in the cache")
                keywords["cache_batch_idx"] = block_table[chosen, 0]
            else:
                keywords[table] = block_table[chosen]
            if new_key is not None and new_value is not None:
                keywords |= {"k": new_key[rows], "v": new_value[rows]}
            result = function(query[rows], key, value, cache_seqlens=lengths, **keywords)
            part = _result(result, wants_lse)
            if wants_lse:
                part, lse[:, rows.flatten()] = part[0], part[1].transpose(0, 1).flatten(1)
            out[rows] = part
        return (out, lse) if wants_lse else out

    return limited_packed(attention, names, function, paged=True)


def _options(function: Callable[..., Any]) -> set[str]:
    """Return the packed contract's names of the options that a function has."""
    declared = parameters(function)
    return {contract for own, contract in _NAMES.items() if own in declared} | {"enable_gqa"}


def _keywords(
    function: Callable[..., Any], given: dict[str, Any], *, wants_lse: bool
) -> dict[str, Any]:
    """Return the options of a call by the function's own names.

    Raises:
        ValueError: for a window that the function does not take.
    """
    declared = parameters(function)
    keywords: dict[str, Any] = {}
    left, right = given.pop("window_size", EVERYWHERE)
    if right == 0:
        keywords["causal"] = True
    if left != UNBOUNDED or right not in (UNBOUNDED, 0):
        if "window_size" not in declared:
            raise ValueError(f"the function takes no window, got {(left, right)}")
        # version 4 has None for a side without a bound, earlier ones -1
        unbounded = None if "learnable_sink" in declared else -1
        sides = [unbounded if side == UNBOUNDED else side for side in (left, right)]
        keywords["window_size"] = tuple(sides)
    for own, contract in _NAMES.items():
        if own in declared and given.get(contract) is not None:
            keywords[own] = given[contract]
        if own in declared and contract == "return_aux" and wants_lse:
            keywords[own] = True
    return keywords


def _contiguous(*offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(each.contiguous() for each in offsets)


def _result(result: Any, wants_lse: bool) -> Any:
    """Return the output, and the log-sum-exp if it was requested."""
    if not wants_lse:
        return result[0] if isinstance(result, tuple) else result
    out, lse, *_ = result
    return out, lse
