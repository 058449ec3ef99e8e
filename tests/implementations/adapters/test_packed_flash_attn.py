"""The adapters of FlashAttention's functions for serving are right on stand-ins."""

import pytest
import torch
from plain_packed import attended, in_pages, is_right, is_wrong, of_each, outcomes

from attnspec.implementations.adapters import (
    packed_from_flash_attn_varlen_func,
    paged_from_flash_attn_varlen_func,
    paged_from_flash_attn_with_kvcache,
)

OPTIONS = ("causal", "window", "gqa", "lse", "softcap", "alibi")
DEFINITION = "packed-equals-a-call-for-each-sequence"


def sides(causal, window_size):
    left, right = window_size
    return {"left": left, "right": 0 if causal else right}


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """As version 2: with a table, the offsets of keys give the lengths in use."""
    assert cu_seqlens_q.is_contiguous()
    assert cu_seqlens_k.is_contiguous()
    lengths = cu_seqlens_k.diff()

    def keys_of(b):
        rows = slice(int(cu_seqlens_k[b]), int(cu_seqlens_k[b + 1]))
        return k[rows], v[rows]

    out, lse = of_each(
        q, cu_seqlens_q, keys_of if block_table is None else in_pages((k, v), block_table, lengths),
        scale=softmax_scale, softcap=softcap, slopes=alibi_slopes, **sides(causal, window_size),
    )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func_of_vllm(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None,
    softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
    block_table=None, return_softmax_lse=False, num_splits=0, s_aux=None,
):  # fmt: skip
    assert block_table is not None
    assert cu_seqlens_k is None
    out, lse = of_each(
        q, cu_seqlens_q, in_pages((k, v), block_table, seqused_k), scale=softmax_scale,
        softcap=softcap, slopes=alibi_slopes, sinks=s_aux, **sides(causal, window_size or (-1, -1)),
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


def merged(q, k, v, parts, **options):
    """Return attention of a sequence as a kernel that splits the keys computes it."""
    if parts < 2 or len(k) < parts or options["left"] >= 0 or options["right"] >= 0:
        return attended(q, k, v, **options)
    options |= {"left": -1, "right": -1}
    slopes = options.pop("slopes")
    if slopes is not None:
        return attended(q, k, v, slopes=slopes, **options)
    chunks = k.chunk(parts), v.chunk(parts)
    pieces = [attended(q, *each, **options) for each in zip(*chunks, strict=True)]
    lse = torch.stack([each[1] for each in pieces]).logsumexp(0)
    out = sum(o * (s - lse).exp().T[..., None] for o, s in pieces)
    return out, lse


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, cache_batch_idx=None,
    block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, num_splits=0, return_softmax_lse=False, first=0,
):  # fmt: skip
    if block_table is None:
        block_table = cache_batch_idx[:, None]
    size, outs, lses = k_cache.shape[1], [], []
    for b, query in enumerate(q):
        length = int(cache_seqlens[b])
        if k is not None:
            token = torch.arange(length, length + k.shape[1])
            slot = block_table[b].long()[token // size], (token + first) % size
            k_cache[slot], v_cache[slot] = k[b], v[b]
            length += k.shape[1]
        keys = in_pages((k_cache, v_cache), block_table[b : b + 1], [length])(0)
        out, lse = merged(
            query, *keys, num_splits, scale=softmax_scale, softcap=softcap, slopes=alibi_slopes,
            **sides(causal, window_size),
        )  # fmt: skip
        outs.append(out)
        lses.append(lse)
    out, lse = torch.stack(outs), torch.stack(lses)
    return (out, lse) if return_softmax_lse else out


def test_a_correct_varlen_function_passes_every_law_of_packed_sequences():
    adapted = packed_from_flash_attn_varlen_func(flash_attn_varlen_func)
    assert is_right(outcomes(adapted, *OPTIONS), least=15)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("function", [flash_attn_varlen_func, flash_attn_varlen_func_of_vllm])
def test_a_correct_varlen_function_with_a_table_passes_every_law_of_pages(function):
    adapted = paged_from_flash_attn_varlen_func(function)
    assert is_right(outcomes(adapted, *OPTIONS), least=14)


def test_sinks_have_another_name_in_a_fork():
    adapted = paged_from_flash_attn_varlen_func(flash_attn_varlen_func_of_vllm)
    found = outcomes(adapted, *OPTIONS, "sinks", names=["options-mean-the-same-on-pages"])
    assert is_right(found, least=1)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("num_splits", [None, 1, 3])
def test_a_cache_function_passes_every_law_of_pages_with_any_number_of_splits(num_splits):
    adapted = paged_from_flash_attn_with_kvcache(flash_attn_with_kvcache, num_splits=num_splits)
    assert is_right(outcomes(adapted, *OPTIONS, "append"), least=16)


def test_a_cache_without_pages_is_one_page_for_each_sequence():
    adapted = paged_from_flash_attn_with_kvcache(flash_attn_with_kvcache, one_page=True)

    def in_one_page(case):
        return None if max(case.keys) <= case.page_size else "a sequence has one place"

    found = outcomes(adapted, *OPTIONS, "append", supports=in_one_page, sizes=(64,))
    assert is_right(found, least=8)
    x, pool = torch.ones(1, 1, 2), torch.ones(3, 4, 1, 2)
    one = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="longer than its place"):
        adapted(
            x, pool, pool, one, None, 1, 9,
            seqused_k=torch.tensor([9]), block_table=torch.tensor([[0, 1, 2]]),
        )  # fmt: skip


def test_a_cache_function_that_appends_to_the_wrong_slot_fails():
    def appends_late(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None,
                     softmax_scale=None, causal=False, window_size=(-1, -1)):  # fmt: skip
        return flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens, None, block_table, softmax_scale, causal,
            window_size, first=1,
        )  # fmt: skip

    adapted = paged_from_flash_attn_with_kvcache(appends_late)
    assert is_wrong(outcomes(adapted, "causal", "gqa", "append"))


@pytest.mark.rotating(parts=4)
def test_a_cache_function_that_ignores_the_number_of_parts_at_the_end_fails():
    def last_part_twice(q, k_cache, v_cache, cache_seqlens=None, block_table=None,
                        softmax_scale=None, causal=False, num_splits=0):  # fmt: skip
        out = flash_attn_with_kvcache(
            q, k_cache, v_cache, None, None, cache_seqlens, None, block_table, softmax_scale, causal
        )
        return out * (1 + 1e-3 * (num_splits > 1))

    wrong = paged_from_flash_attn_with_kvcache(last_part_twice, num_splits=2)
    right = paged_from_flash_attn_with_kvcache(last_part_twice, num_splits=1)
    assert is_wrong(outcomes(wrong, "causal"))
    assert is_right(outcomes(right, "causal"), least=8)


def test_a_function_aligned_at_the_upper_left_fails():
    def upper_left(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False,
                   softmax_scale=None):  # fmt: skip
        if causal:
            k, v = (x.flip(0) for x in (k, v))
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale,
            causal,
        )  # fmt: skip

    adapted = packed_from_flash_attn_varlen_func(upper_left)
    assert is_wrong(outcomes(adapted, "causal"))
    x, one = torch.ones(1, 1, 1), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="takes no window"):
        adapted(x, x, x, one, one, 1, 1, window_size=(1, 0))


def test_groups_need_their_flag_and_a_function_its_parameters():
    adapted = packed_from_flash_attn_varlen_func(flash_attn_varlen_func)
    one = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="set enable_gqa"):
        adapted(torch.ones(1, 2, 1), torch.ones(1, 1, 1), torch.ones(1, 1, 1), one, one, 1, 1)
    with pytest.raises(TypeError, match="no parameter causal"):
        packed_from_flash_attn_varlen_func(lambda q, cu_seqlens_q: q)
    with pytest.raises(TypeError, match="no parameter max_seqlen_q, max_seqlen_k, block_table"):
        paged_from_flash_attn_varlen_func(lambda q, causal, cu_seqlens_q: q)
