"""The compiled attention: its code runs, is compiled rarely, and fails with a clear reason."""

import shutil
import sysconfig

import pytest
import torch

from attnspec.implementations import compiled, load
from attnspec.implementations.compiled import Compiled


@pytest.fixture
def counted():
    if compiled.unavailable():
        pytest.skip(compiled.unavailable())
    return load("compiled")


def call(attention, *shape: int, dtype=torch.float32, requires_grad=False, **options):
    batch, heads, kv_heads, queries, keys, d_head, d_value = shape
    query = torch.randn(batch, heads, queries, d_head, dtype=dtype, requires_grad=requires_grad)
    key = torch.randn(batch, kv_heads, keys, d_head, dtype=dtype)
    value = torch.randn(batch, kv_heads, keys, d_value, dtype=dtype)
    return attention(query, key, value, enable_gqa=heads != kv_heads, **options)


def test_every_call_runs_compiled_code_and_shapes_and_options_compile_nothing_new(counted):
    call(counted.attention, 2, 2, 2, 3, 5, 7, 11)
    before = counted.counters()
    assert before.kernel_calls >= 1
    assert before.compile_seconds > 0
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    shapes = [
        (1, 1, 1, 1, 1, 1, 1),
        (2, 2, 2, 2, 2, 2, 2),
        (3, 6, 2, 17, 65, 16, 5),
        (1, 4, 1, 5, 5, 64, 64),
        (0, 2, 2, 3, 3, 4, 4),
        (2, 2, 2, 0, 3, 4, 4),
        (2, 2, 2, 3, 0, 4, 4),
        (2, 2, 2, 3, 3, 0, 4),
        (2, 2, 2, 3, 3, 4, 0),
        (1, 2, 2, 129, 130, 8, 8),
    ]
    for shape in shapes:
        call(counted.attention, *shape)
        call(counted.attention, *shape, is_causal=True, scale=0.3)
        call(counted.attention, *shape, attn_mask=torch.ones(1, shape[4], dtype=torch.bool))
        call(counted.attention, *shape, attn_mask=torch.zeros(shape[3], 1))
    with torch.no_grad():
        call(counted.attention, 2, 2, 2, 3, 5, 7, 11, requires_grad=True)
    after = counted.counters()
    assert after.kernel_calls == before.kernel_calls + 4 * len(shapes) + 1
    assert after.compile_seconds == before.compile_seconds
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_a_fall_back_to_eager_is_an_error_and_not_counted(monkeypatch):
    attention = Compiled()

    monkeypatch.setattr(compiled, "VARIANTS", 1)
    monkeypatch.setattr(attention, "_backend", lambda graph, inputs: graph.forward)
    torch._dynamo.reset()
    call(attention, 2, 2, 2, 3, 5, 7, 11)
    monkeypatch.setattr(attention, "_prime", lambda *variant: None)
    with pytest.raises(Exception, match=r"(?i)recompile"):
        call(attention, 2, 2, 2, 3, 5, 7, 11, dtype=torch.float64)
    torch._dynamo.reset()
    assert attention.counters().kernel_calls == 0


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "g++-of-nowhere")
    assert compiled.unavailable() == (
        "no C++ compiler g++-of-nowhere: install one, or set CXX to the name of another"
    )


def test_missing_headers_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    reason = "no C headers of Python (Python.h): install Python's development files"
    assert compiled.unavailable() == reason


def test_dropout_is_refused():
    with pytest.raises(ValueError, match=r"dropout_p must be 0, got 0\.5"):
        call(load("compiled").attention, 1, 1, 1, 2, 2, 2, 2, dropout_p=0.5)
