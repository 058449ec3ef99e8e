"""The adapters of FlashInfer's wrappers are right on stand-ins of plan and run."""

import math
from itertools import pairwise

import pytest
import torch
from plain_packed import in_pages, is_right, is_wrong, of_each, outcomes

from attnspec.implementations.adapters import (
    packed_from_ragged_wrapper,
    paged_from_decode_wrapper,
    paged_from_prefill_wrapper,
)

OPTIONS = ("causal", "window", "gqa", "lse", "softcap")


def causal_windows(case):
    is_free = case.window == (-1, -1)
    return None if is_free or case.window[1] == 0 else "no bound among later keys"


def no_empty(case):
    return causal_windows(case) or (None if min(case.keys) else "a sequence has a page")


def one_query(case):
    return no_empty(case) or (None if set(case.queries) == {1} else "one query each")


class Ragged:
    base = 2.0

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, causal=False,
        window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16",
    ):  # fmt: skip
        self.heads = (num_qo_heads, num_kv_heads, head_dim_qk)
        self.offsets, self.key_offsets = qo_indptr, kv_indptr
        self.options = {
            "left": window_left, "right": 0 if causal else -1, "softcap": logits_soft_cap,
            "scale": sm_scale,
        }  # fmt: skip

    def keys_of(self, k, v):
        return lambda b: (x[self.key_offsets[b] : self.key_offsets[b + 1]] for x in (k, v))

    def run(self, q, k, v, return_lse=False):
        assert self.heads == (q.shape[1], k.shape[1], q.shape[2])
        assert len(q) == self.offsets[-1]
        return self.result(q, self.keys_of(k, v), return_lse=return_lse)

    def result(self, q, keys_of, *, return_lse):
        out, lse = of_each(q, self.offsets, keys_of, **self.options)
        return (out, lse.T / math.log(self.base)) if return_lse else out


class Paged(Ragged):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, causal=False, window_left=-1, logits_soft_cap=None,
        sm_scale=None, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        super().plan(
            qo_indptr, None, num_qo_heads, num_kv_heads, head_dim_qk, causal, window_left,
            logits_soft_cap, sm_scale,
        )  # fmt: skip
        self.table = [paged_kv_indices[i:j] for i, j in pairwise(paged_kv_indptr)]
        pages = paged_kv_indptr.diff()
        self.lengths = (pages - 1).clamp(min=0) * page_size + paged_kv_last_page_len

    def run(self, q, paged_kv_cache, return_lse=False):
        keys_of = in_pages(paged_kv_cache, self.table, self.lengths)
        return self.result(q, keys_of, return_lse=return_lse)


class Decode(Paged):
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
        window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type=None,
    ):  # fmt: skip
        offsets = torch.arange(len(indptr))
        super().plan(
            offsets, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim,
            page_size, True, window_left, logits_soft_cap, sm_scale,
        )  # fmt: skip


def append_paged_kv_cache(
    append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
    kv_last_page_len, kv_layout="NHD",
):  # fmt: skip
    size = paged_kv_cache[0].shape[1]
    page = kv_indices[(kv_indptr[batch_indices.long()] + positions // size).long()].long()
    for pool, new in zip(paged_kv_cache, (append_key, append_value), strict=True):
        pool[page, positions.long() % size] = new


def test_a_ragged_wrapper_passes_every_law_of_packed_sequences():
    adapted = packed_from_ragged_wrapper(Ragged())
    assert is_right(outcomes(adapted, *OPTIONS, supports=causal_windows), least=13)


def test_a_paged_wrapper_passes_every_law_of_pages():
    adapted = paged_from_prefill_wrapper(Paged(), append=append_paged_kv_cache)
    assert is_right(outcomes(adapted, *OPTIONS, "append", supports=no_empty), least=16)


def test_a_decode_wrapper_passes_laws_of_one_query():
    adapted = paged_from_decode_wrapper(Decode())
    assert is_right(outcomes(adapted, *OPTIONS, supports=one_query), least=10)
    two = torch.tensor([0, 2])
    x, pool = torch.ones(2, 1, 2), torch.ones(1, 4, 1, 2)
    with pytest.raises(ValueError, match="each sequence has one query"):
        adapted(
            x, pool, pool, two, None, 2, 2,
            seqused_k=torch.tensor([2]), block_table=torch.tensor([[0]]),
        )  # fmt: skip


def test_a_natural_log_sum_exp_fails():
    class Natural(Ragged):
        base = math.e

    found = outcomes(packed_from_ragged_wrapper(Natural()), *OPTIONS, supports=causal_windows)
    assert is_wrong(found)


def test_a_last_page_that_is_read_to_its_end_fails():
    class Whole(Paged):
        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
            num_qo_heads, num_kv_heads, head_dim_qk, page_size, causal=False,
        ):  # fmt: skip
            last = torch.full_like(paged_kv_last_page_len, page_size)
            super().plan(
                qo_indptr, paged_kv_indptr, paged_kv_indices, last, num_qo_heads, num_kv_heads,
                head_dim_qk, page_size, causal,
            )  # fmt: skip

    assert is_wrong(outcomes(paged_from_prefill_wrapper(Whole()), "causal", supports=no_empty))


def test_what_a_wrapper_cannot_do_is_refused():
    x, one = torch.ones(1, 1, 2), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="no bound among later keys"):
        packed_from_ragged_wrapper(Ragged())(x, x, x, one, one, 1, 1, window_size=(0, 1))
    with pytest.raises(TypeError, match="no parameter indptr"):
        paged_from_decode_wrapper(Ragged())
