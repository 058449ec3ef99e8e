"""FlashInfer's function: a kernel of its signature, of one sequence and a logarithm of base 2."""

import math

import pytest
import torch
from plain_kernel import LOWER_RIGHT, in_place, is_right, is_wrong, outcomes, parameters, plain

from attnspec.implementations.adapters import from_single_prefill

LAWS = (
    "output-equals-the-definition",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-head-reads-its-own-group",
    "a-query-reads-exactly-its-keys",
    "ATT-30",
)
FEATURES = ("causal", "gqa", "window", "softcap", "lse")


def single_prefill_with_kv_cache(
    q,
    k,
    v,
    custom_mask=None,
    causal=False,
    kv_layout="NHD",
    sm_scale=None,
    window_left=-1,
    logits_soft_cap=None,
    return_lse=False,
):
    assert kv_layout == "NHD"
    assert {x.dim() for x in (q, k, v)} == {3}
    query, key, value = (x.permute(1, 0, 2)[None] for x in (q, k, v))
    queries, keys = q.shape[0], k.shape[0]
    place = in_place(queries, keys, keys - queries)
    visible = place >= (-window_left if window_left >= 0 else -math.inf)
    if custom_mask is not None:
        assert custom_mask.shape == (queries, keys)
        visible = visible & custom_mask
    elif causal:
        visible = visible & (place <= 0)
    out, lse = plain(query, key, value, visible=visible, scale=sm_scale, softcap=logits_soft_cap)
    out = out[0].permute(1, 0, 2)
    return (out, lse[0].T / math.log(2)) if return_lse else out


def supports(case):
    if case.window is not None and not case.is_causal and case.window[1] not in (None, 0):
        return "the window has no bound among later keys"
    if case.mask is not None and case.is_causal:
        return "the causal flag is ignored beside a mask"
    if case.mask is not None and (
        case.mask.kind.value == "float" or "heads" in case.mask.shape.value
    ):
        return "masks are bool, and common to all heads"
    return None if case.batch and case.keys else "the kernels of these tests take no empty tensor"


def found_for(function, *features):
    return outcomes(
        from_single_prefill(function), *features, laws=LAWS, profile=LOWER_RIGHT, supports=supports
    )


def test_a_correct_kernel_passes():
    assert parameters(from_single_prefill(single_prefill_with_kv_cache)) == {
        *("attn_mask", "is_causal", "scale", "enable_gqa"),
        *("window", "softcap", "return_lse"),
    }
    assert is_right(found_for(single_prefill_with_kv_cache, *FEATURES))


def test_masks_of_each_batch_element_are_passed_on():
    query, key, value = torch.randn(3, 2, 2, 3, 4).unbind()
    mask = torch.tensor([[True, False, True], [True, True, False]])[:, None, None]
    out = from_single_prefill(single_prefill_with_kv_cache)(query, key, value, mask)
    torch.testing.assert_close(out, plain(query, key, value, visible=mask)[0])


@pytest.mark.rotating(parts=6)
def test_a_kernel_with_a_natural_logarithm_fails():
    def natural(q, k, v, causal=False, sm_scale=None, return_lse=False):
        result = single_prefill_with_kv_cache(
            q, k, v, causal=causal, sm_scale=sm_scale, return_lse=return_lse
        )
        return (result[0], result[1] * math.log(2)) if return_lse else result

    assert is_wrong(found_for(natural, "lse"))


@pytest.mark.rotating(parts=3)
def test_a_kernel_aligned_at_the_upper_left_fails():
    def upper_left(q, k, v, causal=False, sm_scale=None):
        mask = in_place(q.shape[0], k.shape[0], 0) <= 0 if causal else None
        return single_prefill_with_kv_cache(q, k, v, custom_mask=mask, sm_scale=sm_scale)

    assert is_wrong(found_for(upper_left, "causal"))


def test_what_the_function_would_ignore_is_refused():
    attention = from_single_prefill(single_prefill_with_kv_cache)
    x, mask = torch.ones(1, 2, 2, 1), torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="no bound among later keys"):
        attention(x, x, x, window=(1, 1))
    with pytest.raises(ValueError, match="ignores the causal flag"):
        attention(x, x, x, mask, is_causal=True)
    with pytest.raises(ValueError, match="differs between heads"):
        attention(x, x, x, mask.expand(1, 2, 2, 2))
    with pytest.raises(TypeError, match=r"no mask of torch\.float32"):
        attention(x, x, x, mask.float())
    with pytest.raises(TypeError, match="no parameter causal, sm_scale"):
        from_single_prefill(lambda q, k, v: q)
