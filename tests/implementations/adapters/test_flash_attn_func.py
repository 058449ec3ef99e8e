"""FlashAttention's functions: kernels of their signatures, with their axes, words and alignment."""

import math

import pytest
import torch
from plain_kernel import LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import (
    from_flash_attn_func,
    from_flash_attn_kvpacked_func,
    from_flash_attn_qkvpacked_func,
    from_flash_attn_varlen_func,
)

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-head-reads-its-own-group",
    "ATT-30",
)
FEATURES = ("causal", "gqa", "window", "softcap", "lse")


def attended(query, key, value, causal, softmax_scale, window_size, softcap):
    """Return the output (batch, queries, heads, d_value) and the log-sum-exp."""
    query, key, value = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    queries, keys = query.shape[2], key.shape[2]
    place = in_place(queries, keys, keys - queries)
    left, right = (math.inf if side < 0 else side for side in window_size)
    visible = (place >= -left) & (place <= (0 if causal else right))
    out, lse = plain(query, key, value, visible=visible, scale=softmax_scale, softcap=softcap)
    return out.permute(0, 2, 1, 3), lse


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    return_attn_probs=False,
):
    assert not dropout_p
    out, lse = attended(q, k, v, causal, softmax_scale, window_size, softcap)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(q, kv, causal=False, softmax_scale=None, return_attn_probs=False):
    assert kv.shape[2] == 2
    key, value = kv.unbind(2)
    return flash_attn_func(
        q,
        key,
        value,
        causal=causal,
        softmax_scale=softmax_scale,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_qkvpacked_func(qkv, causal=False, softmax_scale=None):
    assert qkv.shape[2] == 3
    return flash_attn_func(*qkv.unbind(2), causal=causal, softmax_scale=softmax_scale)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    softmax_scale=None,
    causal=False,
    return_attn_probs=False,
):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    outs, lses = [], []
    for first, last, begin, end in zip(
        cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False
    ):
        assert last - first <= max_seqlen_q
        assert end - begin <= max_seqlen_k
        out, lse = attended(
            q[None, first:last], k[None, begin:end], v[None, begin:end],
            causal, softmax_scale, (-1, -1), 0.0,
        )  # fmt: skip
        outs.append(out[0])
        lses.append(lse[0])
    out, lse = torch.cat(outs), torch.cat(lses, dim=1)
    return (out, lse, None) if return_attn_probs else out


def one_shape(case):
    is_one = case.queries == case.keys and case.d_head == case.d_value
    return None if is_one and case.queries and case.d_head else "what is packed has one shape"


def equal_channels(case):
    return None if case.keys and case.d_head == case.d_value else "what is packed has one shape"


def test_a_correct_kernel_passes():
    adapted = from_flash_attn_func(flash_attn_func)
    assert parameters(adapted) == {
        *("dropout_p", "is_causal", "scale", "enable_gqa"),
        *("window", "softcap", "return_lse"),
    }
    assert is_right(outcomes(adapted, *FEATURES, laws=LAWS, profile=LOWER_RIGHT))


def test_a_kernel_aligned_at_the_upper_left_fails():
    def upper_left(q, k, v, causal=False, softmax_scale=None):
        query, key, value = (x.permute(0, 2, 1, 3) for x in (q, k, v))
        visible = in_place(q.shape[1], k.shape[1], 0) <= (0 if causal else math.inf)
        return plain(query, key, value, visible=visible, scale=softmax_scale)[0].permute(0, 2, 1, 3)

    found = outcomes(from_flash_attn_func(upper_left), "causal", laws=LAWS, profile=LOWER_RIGHT)
    assert is_wrong(found)


def test_a_kernel_of_base_2_fails():
    def base_2(q, k, v, causal=False, softmax_scale=None, return_lse=False):
        out, lse = attended(q, k, v, causal, softmax_scale, (-1, -1), 0.0)
        return (out, lse / math.log(2)) if return_lse else out

    adapted = from_flash_attn_func(base_2)
    assert parameters(adapted) == {"is_causal", "scale", "enable_gqa", "return_lse"}
    assert is_wrong(outcomes(adapted, "lse", laws=LAWS, profile=LOWER_RIGHT))


def test_a_side_without_a_bound_is_spelled_as_in_each_version():
    seen = []

    def version_2(q, k, v, causal=False, window_size=(-1, -1)):
        seen.append(window_size)
        return q

    def version_4(q, k, v, causal=False, window_size=(None, None), learnable_sink=None):
        seen.append(window_size)
        return q

    x = torch.ones(1, 1, 2, 1)
    for function in (version_2, version_4):
        from_flash_attn_func(function)(x, x, x, window=(3, None))
    assert seen == [(3, -1), (3, None)]
    assert "sinks" in parameters(from_flash_attn_func(version_4))


@pytest.mark.parametrize(
    ("adapted", "features", "supports"),
    [
        (from_flash_attn_varlen_func(flash_attn_varlen_func), ("causal", "gqa", "lse"), None),
        (
            from_flash_attn_kvpacked_func(flash_attn_kvpacked_func),
            ("causal", "gqa", "lse"),
            equal_channels,
        ),
        (from_flash_attn_qkvpacked_func(flash_attn_qkvpacked_func), ("causal",), one_shape),
    ],
    ids=["varlen", "kvpacked", "qkvpacked"],
)
def test_relatives_pass(adapted, features, supports):
    found = outcomes(adapted, *features, laws=LAWS, profile=LOWER_RIGHT, supports=supports)
    assert is_right(found)


def test_a_varlen_kernel_that_reads_across_sequences_fails():
    def across(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False,
        softmax_scale=None,
    ):  # fmt: skip
        out, _ = attended(q[None], k[None], v[None], causal, softmax_scale, (-1, -1), 0.0)
        return out[0]

    adapted = from_flash_attn_varlen_func(across)
    assert is_wrong(outcomes(adapted, laws=LAWS, profile=LOWER_RIGHT))


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_keys_and_values_are_packed_in_this_order(order):
    def kernel(q, kv, causal=False, softmax_scale=None):
        key, value = (kv[:, :, index] for index in order)
        return flash_attn_func(q, key, value, causal=causal, softmax_scale=softmax_scale)

    adapted = from_flash_attn_kvpacked_func(kernel)
    found = outcomes(adapted, "causal", laws=LAWS, profile=LOWER_RIGHT, supports=equal_channels)
    assert is_right(found) if order == (0, 1) else is_wrong(found)


def test_what_cannot_be_packed_is_refused():
    query, key = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"must have one shape, got \(1, 2, 3, 4\), \(1, 2, 5, 4"):
        from_flash_attn_qkvpacked_func(flash_attn_qkvpacked_func)(query, key, key)
    with pytest.raises(ValueError, match="must have one shape"):
        from_flash_attn_kvpacked_func(flash_attn_kvpacked_func)(query, key, key[..., :3])


def test_a_function_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="no parameter causal; it has is_causal"):
        from_flash_attn_func(lambda q, k, v, is_causal: q)
    with pytest.raises(TypeError, match="no parameter cu_seqlens_q, cu_seqlens_k"):
        from_flash_attn_varlen_func(flash_attn_func)
