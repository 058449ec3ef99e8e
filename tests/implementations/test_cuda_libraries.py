"""Libraries for CUDA devices: what is missing, what is refused, and which function is called."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from attnspec.implementations import framework_names, load
from attnspec.implementations import transformer_engine_attention as engine
from attnspec.spec import Case, Feature, Implementation

MODULES = {
    "flash_attn_2": "flash_attn",
    "flash_attn_3": "flash_attn_interface",
    "xformers_attention": "xformers",
    "transformer_engine_attention": "transformer_engine",
    "flashinfer_attention": "flashinfer",
}


@pytest.mark.parametrize("name", MODULES)
def test_without_library_or_device_it_is_not_available(name, monkeypatch):
    loaded = load(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    assert loaded.unavailable() == f"no module {MODULES[name]}"
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loaded.unavailable() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loaded.unavailable() is None
    assert loaded.devices == ("cuda",)


def test_every_one_is_registered():
    registered = {name for names in framework_names().values() for name in names}
    assert registered >= MODULES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_calls_that_are_not_documented_are_refused(name):
    loaded: Implementation = load(name)
    plain = Case(queries=4, keys=4, d_head=64, d_value=64)
    assert loaded.supports(plain) is None
    assert "empty tensor" in str(loaded.supports(plain.but(keys=0)))
    empty_row = plain.but(queries=5, is_causal=True, return_lse=Feature.LSE in loaded.features)
    assert "row without keys" in str(loaded.supports(empty_row))


def test_a_window_of_transformer_engine_has_both_bounds():
    case = Case(queries=4, keys=4, d_head=64, d_value=64, window=(1, None))
    assert "both bounds or none" in str(engine.supports(case))
    for accepted in (case.but(is_causal=True), case.but(window=(1, 0)), case.but(window=(1, 2))):
        assert engine.supports(accepted) is None


def test_the_function_of_the_library_is_called(monkeypatch):
    """Each implementation calls the function of this name; its adapter is tested on its own."""
    calls = []

    def flash_attn_func(q, k, v, causal=False, softmax_scale=None):
        calls.append((tuple(q.shape), causal))
        return q

    def single_prefill_with_kv_cache(q, k, v, causal=False, sm_scale=None):
        calls.append((tuple(q.shape), causal))
        return q

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
        calls.append((tuple(query.shape), attn_bias))
        return query

    class DotProductAttention:
        def __init__(
            self, num_attention_heads, kv_channels, num_gqa_groups, qkv_format, attn_mask_type,
            window_size, attention_type, softmax_scale,
        ):  # fmt: skip
            self.kind = attn_mask_type

        def __call__(self, query, key, value):
            calls.append((tuple(query.shape), self.kind))
            return query.flatten(2)

    stand_ins = {
        "flash_attn": {"flash_attn_func": flash_attn_func},
        "flash_attn_interface": {"flash_attn_func": flash_attn_func},
        "flashinfer": {"single_prefill_with_kv_cache": single_prefill_with_kv_cache},
        "transformer_engine": {},
        "transformer_engine.pytorch": {"DotProductAttention": DotProductAttention},
        "xformers": {},
        "xformers.ops": {"memory_efficient_attention": memory_efficient_attention},
        "xformers.ops.fmha": {},
        "xformers.ops.fmha.attn_bias": {
            "LocalAttentionFromBottomRightMask": lambda left, right: (left, right),
            "LowerTriangularFromBottomRightMask": lambda: "lower right",
        },
    }
    for name, members in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    x = torch.randn(1, 2, 3, 8)
    for name in MODULES:
        module = sys.modules[f"attnspec.implementations.{name}"]
        module._adapted.cache_clear()
        try:
            assert torch.equal(load(name).attention(x, x, x, is_causal=True), x)
        finally:
            module._adapted.cache_clear()
    shape = (1, 3, 2, 8)
    assert calls == [
        (shape, True),
        (shape, True),
        (shape, "lower right"),
        (shape, "causal_bottom_right"),
        (shape[1:], True),
    ]
