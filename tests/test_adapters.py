"""The adapters of the docs: a correct kernel of another convention passes the laws with them."""

import ast
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.api import check_attention
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.implementations.eager import IMPLEMENTATION
from attnspec.spec import CausalAlignment, Feature, Implementation, Profile

laws.load()

PATH = Path(__file__).parents[1] / "docs" / "examples" / "adapters.py"
F32, F64 = torch.float32, torch.float64
FEW = ("ATT-1", "ATT-11", "ATT-22", "MSK-2", "MSK-16", "HED-2")
LOWER_RIGHT = Profile(
    causal_alignment=CausalAlignment.LOWER_RIGHT,
    masked_keys=IMPLEMENTATION.profile.masked_keys,
    masked_values=IMPLEMENTATION.profile.masked_values,
    rounding=IMPLEMENTATION.profile.rounding,
)


def adapters():
    spec = importlib.util.spec_from_file_location("adapters_of_the_docs", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADAPTERS = adapters()


def length_before_heads(query, key, value, causal, softmax_scale):
    moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
    out = IMPLEMENTATION.attention(
        *moved, is_causal=causal, scale=softmax_scale, enable_gqa=query.shape[2] != key.shape[2]
    )
    return out.transpose(1, 2)


def pair(query, key, value, causal, scale):
    return IMPLEMENTATION.attention(
        query, key, value, is_causal=causal, scale=scale, return_lse=True
    )


def windowed(query, key, value, causal, window_size, softmax_scale):
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (query * scale) @ key.mT
    place = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
    place = place - (key.shape[2] - query.shape[2])
    left, right = (math.inf if side < 0 else side for side in window_size)
    visible = (place >= -left) & (place <= (min(right, 0) if causal else right))
    empty = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0) @ value


def hugging_face(module, query, key, value, attention_mask, scaling, is_causal):
    assert module.num_key_value_groups * key.shape[1] == query.shape[1]
    out = IMPLEMENTATION.attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=is_causal,
        scale=scaling,
        enable_gqa=module.num_key_value_groups > 1,
    )
    return out.transpose(1, 2), None


def declared(attention, *features, profile=IMPLEMENTATION.profile, dtypes=(F32, F64)):
    return Implementation(
        name="adapted",
        attention=attention,
        features=frozenset(features),
        dtypes=dtypes,
        profile=profile,
    )


def no_empty_lengths(case):
    return None if case.keys and case.queries else "no empty lengths"


def equal_channels(case):
    return no_empty_lengths(case) if case.d_value == case.d_head else "d_value must be d_head"


KERNELS = {
    "from_length_before_heads": declared(
        ADAPTERS.from_length_before_heads(length_before_heads), Feature.CAUSAL, Feature.GQA
    ),
    "from_pair": declared(ADAPTERS.from_pair(pair), Feature.CAUSAL, Feature.LSE),
    "from_window_size": declared(
        ADAPTERS.from_window_size(windowed), Feature.CAUSAL, Feature.WINDOW, profile=LOWER_RIGHT
    ),
    "from_hugging_face": declared(
        ADAPTERS.from_hugging_face(hugging_face), Feature.MASK, Feature.CAUSAL, Feature.GQA
    ),
}


def messages(records):
    return [record.message for record in records]


@pytest.mark.parametrize("name", KERNELS)
def test_a_correct_kernel_passes_the_laws(name):
    records = check_attention(KERNELS[name], effort="smoke", laws=FEW)
    assert {record.outcome for record in records} <= CONFORMING, messages(records)
    assert sum(record.outcome is Outcome.PASSED for record in records) >= 4


def test_a_wrong_kernel_with_an_adapter_fails():
    def off_by_one(*operands, window_size, **options):
        left, right = window_size
        return windowed(*operands, window_size=(left + (left >= 0), right), **options)

    wrong = replace(KERNELS["from_window_size"], attention=ADAPTERS.from_window_size(off_by_one))
    records = check_attention(wrong, effort="smoke", laws=["MSK-16"])
    assert Outcome.FAILED in {record.outcome for record in records}


def test_attention_functions_of_hugging_face_are_adapted():
    pytest.importorskip("transformers")
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    adapted = declared(
        ADAPTERS.from_hugging_face(ALL_ATTENTION_FUNCTIONS["sdpa"]),
        Feature.MASK,
        Feature.GQA,
        dtypes=(F32,),
    )
    adapted = replace(adapted, supports=no_empty_lengths)
    records = check_attention(adapted, effort="smoke", laws=["ATT-1", "HED-2"])
    assert {record.outcome for record in records} <= CONFORMING, messages(records)


def test_a_function_of_jax_is_adapted():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    adapted = declared(
        ADAPTERS.from_jax(jax.nn.dot_product_attention), Feature.CAUSAL, Feature.GQA, dtypes=(F32,)
    )
    adapted = replace(adapted, supports=equal_channels)
    records = check_attention(adapted, effort="smoke", laws=["output-equals-the-definition"])
    assert {record.outcome for record in records} <= CONFORMING, messages(records)


def test_no_adapter_takes_more_than_ten_lines():
    for function in ast.parse(PATH.read_text()).body:
        if isinstance(function, ast.FunctionDef):
            (inner,) = (node for node in function.body if isinstance(node, ast.FunctionDef))
            assert inner.end_lineno - inner.lineno + 1 <= 10, function.name
