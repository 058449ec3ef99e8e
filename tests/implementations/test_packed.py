"""Packed and paged attentions conform under the profiles that they declare."""

import contextlib
import importlib.util
import sys
import warnings
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec import implementations
from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.implementations import cuda
from attnspec.spec.packed import CAUSAL

NAMES = ("packed_eager", "packed_nested", "packed_flex")
CUDA = {
    "packed_varlen": None,
    "packed_flash_attn": "flash_attn",
    "packed_flashinfer": "flashinfer",
    "packed_xformers": "xformers",
    "paged_varlen": None,
    "paged_flash_attn": "flash_attn",
    "paged_flashinfer": "flashinfer",
    "paged_vllm": "vllm",
}
"""Those that need a CUDA device, with the library that they need beside torch."""
LAWS = {name: law for name, law in laws.load().items() if law.judges == "packed"}
PAGED = {name: law for name, law in laws.load().items() if law.judges == "paged"}
NOT_CLAIMED = {
    "packed_eager": {"SEQ-14", "SEQ-19"},
    "packed_nested": {
        *("SEQ-2", "SEQ-3", "SEQ-4", "SEQ-5", "SEQ-6", "SEQ-7"),
        *("SEQ-13", "SEQ-14", "SEQ-19"),
    },
    "packed_flex": {"SEQ-6", "SEQ-14", "SEQ-15", "SEQ-16", "SEQ-19"},
}
"""The clauses of which each says nothing: what it does not take, or does not declare."""


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        # flex_attention says that it is not compiled, and nested tensors that they are a prototype
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.mark.rotating(parts=5)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", NAMES)
def test_a_law_holds(name, law):
    record = check(LAWS[law], subject_of_operator(implementations.load_operator(name)), None)
    is_silent = LAWS[law].clauses[0] in NOT_CLAIMED[name]
    assert record.outcome is (Outcome.NOT_CLAIMED if is_silent else Outcome.PASSED), record.message


@pytest.mark.rotating(parts=5)
@pytest.mark.parametrize("law", PAGED)
@pytest.mark.parametrize("name", ["paged_eager", "paged_transformers", "paged_flex"])
def test_a_law_of_pages_holds(name, law):
    if name == "paged_transformers":
        pytest.importorskip("transformers")
    subject = subject_of_operator(implementations.load_operator(name))
    record = check(PAGED[law], subject, Effort.SMOKE, seed=0)
    is_silent = PAGED[law].clauses[0] == "PAG-17"
    assert record.outcome is (Outcome.NOT_CLAIMED if is_silent else Outcome.PASSED), record.message


@pytest.mark.parametrize("name", ["packed_eager", "packed_nested"])
@settings(max_examples=40)
@given(data=st.data())
def test_drawn_cases_pass(name, data):
    subject = subject_of_operator(implementations.load_operator(name))
    law = data.draw(st.sampled_from([law for law in LAWS.values() if law.explore is not None]))
    if law.needs - subject.implementation.features:
        return
    options = {"softcap", "sinks", "alibi"}
    if "SEQ-6" in law.clauses and not options & subject.implementation.features:
        return  # no case has an option that is not claimed
    if "SEQ-4" in law.clauses and name == "packed_nested":
        return
    case = data.draw(law.explore(subject))
    with contextlib.suppress(NotClaimed):
        law.check(subject, case)


def test_nested_tensors_take_no_window():
    packed = implementations.load_operator("packed_nested").function
    x, offsets = torch.ones(2, 1, 4), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="window_size must be"):
        packed(x, x, x, offsets, offsets, 2, 2, window_size=(-1, 0))


def test_heads_that_are_shared_need_the_flag():
    packed = implementations.load_operator("packed_eager").function
    offsets = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="need enable_gqa"):
        packed(torch.ones(2, 2, 4), *2 * (torch.ones(2, 1, 4),), offsets, offsets, 2, 2)


@pytest.mark.parametrize("name", CUDA)
def test_without_library_or_device_a_law_is_not_available(name, monkeypatch):
    loaded = implementations.load_operator(name)
    module = CUDA[name]
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    if module is not None:
        assert loaded.unavailable() == f"no module {module}"
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loaded.unavailable() == "no CUDA device"
    law = next(iter((LAWS if loaded.operator == "packed" else PAGED).values()))
    assert check(law, subject_of_operator(loaded), None).outcome is Outcome.NOT_AVAILABLE
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loaded.unavailable() is None


@pytest.mark.parametrize("name", CUDA)
def test_calls_that_are_not_documented_are_refused(name):
    loaded = implementations.load_operator(name)
    kind = PackedCase if loaded.operator == "packed" else PagedCase
    plain = kind(queries=(1, 1), keys=(4, 5), d_head=64, window=CAUSAL, dtype=torch.float16)
    assert loaded.supports(plain) is None
    assert "without keys" in str(loaded.supports(plain.but(queries=(5, 1))))
    assert "d_head" in str(loaded.supports(plain.but(d_head=260))) or name in (
        "packed_xformers",
        "paged_vllm",
    )


def test_the_function_of_a_library_is_called_with_its_own_names(monkeypatch):
    """Each calls the function of this name; its adapter is tested on its own."""
    calls = []

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None,
        causal=False,
    ):  # fmt: skip
        calls.append(("varlen", causal))
        return q

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, cache_batch_idx=None,
        block_table=None, causal=False,
    ):  # fmt: skip
        calls.append(("kvcache", causal))
        k_cache.zero_()
        return q

    module = ModuleType("flash_attn")
    vars(module).update(
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(cuda, "_to", lambda x, device: x.clone() if torch.is_tensor(x) else x)
    x, one, pool = torch.randn(2, 1, 8), torch.tensor([0, 2]), torch.ones(1, 4, 1, 8)
    table = {"seqused_k": torch.tensor([2]), "block_table": torch.tensor([[0]])}
    for name, arguments, options in (
        ("packed_flash_attn", (x, x, x, one, one, 2, 2), {}),
        ("paged_flash_attn", (x, pool, pool.clone(), one, None, 2, 2), table),
    ):
        function = implementations.load_operator(name).function
        loaded = sys.modules[f"attnspec.implementations.{name}"]
        loaded._adapted.cache_clear()
        try:
            assert torch.equal(function(*arguments, window_size=CAUSAL, **options), x)
        finally:
            loaded._adapted.cache_clear()
    assert calls == [("varlen", True), ("kvcache", True)]
    assert not pool.any()  # what the function writes on the device comes back
