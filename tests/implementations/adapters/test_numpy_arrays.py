"""The adapter of NumPy functions."""

import numpy
import pytest
import torch
from plain_kernel import is_right, is_wrong, outcomes, parameters

from attnspec.implementations.adapters import from_numpy

LAWS = ("output-equals-the-definition", "a-query-reads-exactly-its-keys")


def kernel(query, key, value, *, attn_mask=None, scale=None, return_lse=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * numpy.einsum("bhqd,bhkd->bhqk", query, key)
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == bool else numpy.isneginf(attn_mask)
        bias = 0 if attn_mask.dtype == bool else numpy.where(hidden, 0, attn_mask)
        scores = numpy.where(hidden, -numpy.inf, scores + bias)
    peak = numpy.nan_to_num(scores.max(-1, keepdims=True, initial=-numpy.inf), neginf=0.0)
    weights = numpy.exp(scores - peak)
    total = weights.sum(-1, keepdims=True)
    out = weights / numpy.where(total == 0, 1, total) @ value
    with numpy.errstate(divide="ignore"):
        lse = (peak + numpy.log(total))[..., 0]
    return (out, lse) if return_lse else out


def test_a_correct_function_passes():
    adapted = from_numpy(kernel)
    assert parameters(adapted) == {"attn_mask", "scale", "return_lse"}
    assert is_right(outcomes(adapted, "mask", "lse", laws=(*LAWS, "ATT-30")))


def test_a_function_without_its_scale_fails():
    def unscaled(query, key, value):
        return kernel(query, key, value, scale=1.0)

    assert is_wrong(outcomes(from_numpy(unscaled), laws=LAWS))


def test_memory_is_shared_and_not_written():
    seen = {}

    def writes(query, key, value):
        seen["address"], seen["strides"] = query.ctypes.data, query.strides
        query.fill(0)

    query = torch.ones(1, 1, 3, 2).mT
    with pytest.raises(ValueError, match="read-only"):
        from_numpy(writes)(query, query, query)
    assert seen == {"address": query.data_ptr(), "strides": (24, 24, 4, 8)}
    assert (query == 1).all()


def test_a_result_that_is_an_argument_is_copied():
    query = torch.ones(1, 1, 2, 1)
    out = from_numpy(lambda query, key, value: value)(query, query, query)
    assert out.data_ptr() != query.data_ptr()


def test_a_storage_type_that_numpy_lacks_is_refused():
    x = torch.ones(1, 1, 2, 1, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="BFloat16"):
        from_numpy(kernel)(x, x, x)
