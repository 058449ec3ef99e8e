"""The adapters of xFormers' biases and vLLM's functions are right on stand-ins."""

from dataclasses import dataclass, replace

import pytest
import torch
from plain_packed import SPREADING, in_pages, is_right, is_wrong, of_each, outcomes

from attnspec.implementations.adapters import (
    packed_from_block_diagonal,
    paged_from_block_diagonal,
    paged_from_paged_attention,
    paged_from_unified_attention,
)

STRIDES = "strides-of-packed-operands-mean-nothing"


def causal_windows(case):
    if case.window[1] > 0 or (case.window[1] == -1 and case.window[0] != -1):
        return "a window is causal"
    return None


def causal(case):
    if case.window[1] != 0 and max(case.queries) > 1:
        return "the kernel is causal"
    return causal_windows(case)


def one_query(case):
    if set(case.queries) != {1} or case.window not in ((-1, 0), (-1, -1)):
        return "one query each, and no window"
    return None if case.d_head % 4 == 0 else "d_head is a multiple of 16 bytes"


@dataclass
class BlockDiagonalMask:
    q: list
    k: list
    left: int = -1
    right: int = -1
    table: torch.Tensor | None = None
    page_size: int = 0

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, block_tables=None, page_size=0):
        return cls(q_seqlen, kv_seqlen, table=block_tables, page_size=page_size)

    def make_causal_from_bottomright(self):
        return replace(self, right=0)

    def make_local_attention_from_bottomright(self, window_size):
        return replace(self, left=window_size - 1, right=0)


class PagedCausalMask(BlockDiagonalMask):
    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen, block_tables, page_size):
        return cls(q_seqlen, kv_seqlen, right=0, table=block_tables, page_size=page_size)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
    assert query.shape[0] == 1
    grouped = query.dim() == 5
    q = query[0].flatten(1, 2) if grouped else query[0]
    k, v = (x[0, :, :, 0] if grouped else x[0] for x in (key, value))
    bias = attn_bias
    offsets = [sum(bias.q[:b]) for b in range(len(bias.q) + 1)]
    key_offsets = [sum(bias.k[:b]) for b in range(len(bias.k) + 1)]
    if bias.table is None:
        assert key_offsets[-1] == len(k)

        def keys_of(b):
            return (x[key_offsets[b] : key_offsets[b + 1]] for x in (k, v))
    else:
        pools = [x.unflatten(0, (-1, bias.page_size)) for x in (k, v)]
        keys_of = in_pages(pools, bias.table, bias.k)
    out, _ = of_each(q, offsets, keys_of, left=bias.left, right=bias.right, scale=scale)
    return out.reshape(query.shape)


def unified_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
    window_size, block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None,
    sinks=None,
):  # fmt: skip
    assert causal
    got, _ = of_each(
        q, cu_seqlens_q, in_pages((k, v), block_table, seqused_k), left=window_size[0], right=0,
        scale=softmax_scale, softcap=softcap, slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    out.copy_(got)


def paged_attention_v1(
    out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size,
    max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale,
):  # fmt: skip
    assert key_cache.shape[4] * key_cache.element_size() == 16
    keys = key_cache.transpose(3, 4).flatten(2, 3).permute(0, 3, 1, 2)
    pools = (keys, value_cache.permute(0, 3, 1, 2))
    assert pools[0].shape == (len(keys), block_size, num_kv_heads, query.shape[2])
    offsets = range(len(seq_lens) + 1)
    keys_of = in_pages(pools, block_tables, seq_lens)
    out.copy_(of_each(query, offsets, keys_of, scale=scale, slopes=alibi_slopes)[0])


def test_biases_of_blocks_pass_the_laws_of_packed_sequences():
    adapted = packed_from_block_diagonal(memory_efficient_attention, BlockDiagonalMask)
    found = outcomes(adapted, "causal", "window", "gqa", supports=causal_windows)
    assert is_right(found, least=12)
    adapted = paged_from_block_diagonal(memory_efficient_attention, PagedCausalMask)
    assert is_right(outcomes(adapted, "causal", "gqa", supports=causal), least=10)


def test_a_window_that_leaves_out_the_own_key_fails():
    class OneLess(BlockDiagonalMask):
        def make_local_attention_from_bottomright(self, window_size):
            return replace(self, left=window_size - 2, right=0)

    adapted = packed_from_block_diagonal(memory_efficient_attention, OneLess)
    found = outcomes(adapted, "causal", "window", supports=causal_windows)
    assert is_wrong(found)


def test_what_biases_cannot_say_is_refused():
    adapted = packed_from_block_diagonal(memory_efficient_attention, BlockDiagonalMask)
    x, one = torch.ones(1, 1, 2), torch.tensor([0, 1])
    for window, message in (((0, 1), "no bound among later"), ((1, -1), "to the left alone")):
        with pytest.raises(ValueError, match=message):
            adapted(x, x, x, one, one, 1, 1, window_size=window)


@pytest.mark.rotating(parts=4)
def test_functions_of_vllm_pass_the_laws_of_pages():
    adapted = paged_from_unified_attention(unified_attention)
    features = ("causal", "window", "gqa", "softcap", "sinks", "alibi")
    assert is_right(outcomes(adapted, *features, supports=causal), least=12)
    adapted = paged_from_paged_attention(paged_attention_v1)
    assert is_right(outcomes(adapted, "causal", "gqa", "alibi", supports=one_query), least=10)


def test_a_function_that_takes_the_next_row_of_the_table_fails():
    def next_row(
        out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens,
        block_size, max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale,
    ):  # fmt: skip
        paged_attention_v1(
            out, query, key_cache, value_cache, num_kv_heads, scale, block_tables.roll(1, 0),
            seq_lens, block_size, max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale,
        )  # fmt: skip

    adapted = paged_from_paged_attention(next_row)
    assert is_wrong(outcomes(adapted, "causal", profile=SPREADING, supports=one_query))


def test_calls_that_the_kernels_would_misread_are_refused():
    x, pool, two = torch.ones(2, 1, 4), torch.ones(1, 4, 1, 4), torch.tensor([0, 2])
    paged = {"seqused_k": torch.tensor([2]), "block_table": torch.tensor([[0]])}
    with pytest.raises(ValueError, match="window_size must end in 0"):
        paged_from_unified_attention(unified_attention)(x, pool, pool, two, None, 2, 2, **paged)
    with pytest.raises(ValueError, match="each sequence has one query"):
        paged_from_paged_attention(paged_attention_v1)(x, pool, pool, two, None, 2, 2, **paged)
