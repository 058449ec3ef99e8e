"""FlashInfer's wrappers, which are planned for the lengths of a call and then run."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int

from attnspec.implementations.adapters.packed_parameters import (
    asks_for_lse,
    causal_and_left,
    demand_causal,
    demand_group_flag,
    limited_packed,
    lse_with_rows_outside,
    offsets_of,
    with_rows_outside,
)
from attnspec.implementations.adapters.parameters import parameters, require
from attnspec.spec.packed import EVERYWHERE

_NAMES = {
    "sm_scale": "scale",
    "window_left": "window_size",
    "causal": "window_size",
    "logits_soft_cap": "softcap",
}
"""The packed contract's names of the options of a plan."""


def packed_from_ragged_wrapper(wrapper: Any) -> Callable[..., Any]:
    """Adapt a `BatchPrefillWithRaggedKVCacheWrapper`.

    Args:
        wrapper: has `plan`, which takes `qo_indptr`, `kv_indptr`, the numbers of heads, the head
            dimension and options, and `run`, which takes query, key and value as packed attention
            does and returns (tokens, heads, d_head), and with `return_lse` a pair of it and
            (tokens, heads), a logarithm of base 2.

    Returns:
        A packed attention with the options that `plan` names. It raises `ValueError` for a window
        that has a bound among the later keys.

    Raises:
        TypeError: if `plan` has not these offsets.
    """
    require(wrapper.plan, "qo_indptr", "kv_indptr", "causal")

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
        is_causal, left = causal_and_left(given.pop("window_size", EVERYWHERE))
        wrapper.plan(
            qo_indptr=cu_seq_q.contiguous(),
            kv_indptr=cu_seq_k.contiguous(),
            causal=is_causal,
            **_heads(wrapper, query, key),
            **_planned(wrapper, given, left),
        )
        total, total_k = int(cu_seq_q[-1]), int(cu_seq_k[-1])
        result = wrapper.run(query[:total], key[:total_k], value[:total_k], **_asked(wants_lse))
        return _result(query, result, wants_lse)

    return limited_packed(attention, _options(wrapper), wrapper)


def paged_from_prefill_wrapper(
    wrapper: Any, *, append: Callable[..., None] | None = None
) -> Callable[..., Any]:
    """Adapt a `BatchPrefillWithPagedKVCacheWrapper` of the layout NHD.

    Args:
        wrapper: has `plan`, which takes `qo_indptr`, the pages of all sequences as
            `paged_kv_indptr`, `paged_kv_indices` and `paged_kv_last_page_len`, and `run`, which
            takes the queries and both pools.
        append: `append_paged_kv_cache`, which writes new tokens before the run. Without it the
            result appends nothing.

    Returns:
        A paged attention, as the packed one of `packed_from_ragged_wrapper`.

    Raises:
        TypeError: if `plan` has not these lists of pages.
    """
    require(wrapper.plan, "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "causal")

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
        is_causal, left = causal_and_left(given.pop("window_size", EVERYWHERE))
        counts, total = cu_seq_q.diff(), int(cu_seq_q[-1])
        lengths = seqused_k + (0 if new_key is None else counts)
        indptr, indices, last = _pages(lengths, block_table, key.shape[1])
        if append is not None and new_key is not None and new_value is not None:
            of_token = torch.arange(len(counts), device=query.device).repeat_interleave(counts)
            place = torch.arange(total, device=query.device) - cu_seq_q[of_token]
            append(
                new_key[:total],
                new_value[:total],
                of_token.to(torch.int32),
                (place + seqused_k[of_token]).to(torch.int32),
                (key, value),
                indices,
                indptr,
                last,
            )
        wrapper.plan(
            qo_indptr=cu_seq_q.contiguous(),
            paged_kv_indptr=indptr,
            paged_kv_indices=indices,
            paged_kv_last_page_len=last,
            causal=is_causal,
            page_size=key.shape[1],
            **_heads(wrapper, query, key),
            **_planned(wrapper, given, left),
        )
        result = wrapper.run(query[:total], (key, value), **_asked(wants_lse))
        return _result(query, result, wants_lse)

    names = _options(wrapper) | (set() if append is None else {"new_key", "new_value"})
    return limited_packed(attention, names, wrapper, paged=True)


def paged_from_decode_wrapper(wrapper: Any) -> Callable[..., Any]:
    """Adapt a `BatchDecodeWithPagedKVCacheWrapper` of the layout NHD: one query each sequence.

    Args:
        wrapper: has `plan`, which takes the pages of all sequences as `indptr`, `indices` and
            `last_page_len`, and `run`, which takes the queries and both pools.

    Returns:
        A paged attention that raises `ValueError` unless each sequence has one query.

    Raises:
        TypeError: if `plan` has not these lists of pages.
    """
    require(wrapper.plan, "indptr", "indices", "last_page_len")

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
        if bool((cu_seq_q.diff() != 1).any()):
            raise ValueError("the wrapper decodes: each sequence has one query")
        left = demand_causal(given.pop("window_size", EVERYWHERE), cu_seq_q)
        indptr, indices, last = _pages(seqused_k, block_table, key.shape[1])
        wrapper.plan(
            indptr=indptr,
            indices=indices,
            last_page_len=last,
            page_size=key.shape[1],
            **_heads(wrapper, query, key),
            **_planned(wrapper, given, left),
        )
        result = wrapper.run(query[: len(seqused_k)], (key, value), **_asked(wants_lse))
        return _result(query, result, wants_lse)

    return limited_packed(attention, _options(wrapper), wrapper, paged=True)


def _options(wrapper: Any) -> set[str]:
    declared = parameters(wrapper.plan)
    names = {contract for own, contract in _NAMES.items() if own in declared} | {"enable_gqa"}
    return names | ({"return_aux"} if "return_lse" in parameters(wrapper.run) else set())


def _heads(wrapper: Any, query: torch.Tensor, key: torch.Tensor) -> dict[str, Any]:
    """Return the numbers of heads and channels, and the storage types, by the plan's names."""
    declared = parameters(wrapper.plan)
    width = "head_dim_qk" if "head_dim_qk" in declared else "head_dim"
    heads: dict[str, Any] = {"num_qo_heads": query.shape[1], "num_kv_heads": key.shape[-2]}
    heads[width] = query.shape[-1]
    types = {"q_data_type": query.dtype, "kv_data_type": key.dtype}
    return heads | {name: dtype for name, dtype in types.items() if name in declared}


def _planned(wrapper: Any, given: dict[str, Any], left: int) -> dict[str, Any]:
    """Return the options of a call by the plan's names."""
    declared = parameters(wrapper.plan)
    options = {own: given[contract] for own, contract in _NAMES.items() if contract in given}
    chosen = {own: value for own, value in options.items() if value is not None}
    if "window_left" in declared:
        chosen["window_left"] = left
    elif left != -1:
        raise ValueError(f"the wrapper takes no window, got {left} keys to the left")
    return chosen


def _asked(wants_lse: bool) -> dict[str, bool]:
    return {"return_lse": True} if wants_lse else {}


def _pages(
    lengths: Int[torch.Tensor, " sequences"],
    block_table: Int[torch.Tensor, "sequences columns"],
    page_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the first place of each sequence among the pages, the pages, and the last lengths."""
    counts = (lengths + page_size - 1) // page_size
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    indices = block_table[columns < counts[:, None]].to(torch.int32)
    last = (lengths - (counts - 1).clamp(min=0) * page_size).to(torch.int32)
    return offsets_of(counts), indices, last


def _result(query: torch.Tensor, result: Any, wants_lse: bool) -> Any:
    """Return the rows of all queries, and the natural log-sum-exp (heads, tokens)."""
    if not wants_lse:
        return with_rows_outside(query, result)
    out, lse = result
    natural = lse.transpose(0, 1) * math.log(2)
    return with_rows_outside(query, out), lse_with_rows_outside(query, natural)
