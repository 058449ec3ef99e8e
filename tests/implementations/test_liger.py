"""Liger's adapters are right on stand-ins, and not available without a device."""

import importlib
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attnspec import implementations
from attnspec.conformance import laws
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.implementations import liger

LAWS = laws.load()
FUNCTIONS = {
    "liger_rms_norm": liger.rms_norm,
    "liger_layer_norm": liger.layer_norm,
    "liger_rotary": liger.rotary,
    "liger_mlp": liger.gated_mlp,
}
TRIALS = [
    (name, law.name)
    for name in FUNCTIONS
    for law in LAWS.values()
    if law.judges == implementations.load_operator(name).operator
]


def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    assert casting_mode == "llama"
    assert not in_place
    wide = X.float()
    normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normalized.to(X.dtype) * (W + offset)


def liger_layer_norm(X, W, B, eps):
    wide = X.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normalized = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normalized * W.float() + B.float()).to(X.dtype)


class Rope(torch.autograd.Function):
    """Turns both operands in their own memory, as the kernel does."""

    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turned(q, cos, sin), _turned(k, cos, sin)

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        return _turned(dq, cos, -sin), _turned(dk, cos, -sin), None, None


def _turned(x, cos, sin):
    half = x.shape[-1] // 2
    wide = x.float()
    cos, sin = cos[:, None], sin[:, None]
    other = torch.cat([-wide[..., half:], wide[..., :half]], -1)
    return (wide * cos + other * sin).to(x.dtype)


def liger_rope(q, k, cos, sin):
    return Rope.apply(q, k, cos, sin)


def liger_swiglu(a, b):
    return torch.nn.functional.silu(a.float()).to(b.dtype) * b


@pytest.fixture
def library(monkeypatch):
    stand_ins = (liger_rms_norm, liger_layer_norm, liger_rope, liger_swiglu)
    functional = SimpleNamespace(**{each.__name__: each for each in stand_ins})
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", functional)
    return functional


def subject(name):
    loaded = implementations.load_operator(name)
    return subject_of_operator(replace(loaded, function=FUNCTIONS[name], unavailable=lambda: None))


@pytest.mark.parametrize(("name", "law"), TRIALS)
def test_a_right_library_conforms(library, name, law):
    record = check(LAWS[law], subject(name), None)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_library_fails(library, monkeypatch, name):
    for function, result in vars(library).items():
        monkeypatch.setattr(
            library,
            function,
            lambda *operands, right=result, **options: _times_two(right(*operands, **options)),
        )
    judged = subject(name)
    outcomes = {
        check(law, judged, None).outcome
        for law in LAWS.values()
        if law.judges == judged.implementation.operator
    }
    assert Outcome.FAILED in outcomes


def _times_two(result):
    return tuple(2 * each for each in result) if isinstance(result, tuple) else 2 * result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_library_or_device_nothing_is_judged(name, monkeypatch):
    loaded = implementations.load_operator(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    assert loaded.unavailable() == "no module liger_kernel"
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loaded.unavailable() == "no CUDA device"
    law = next(law for law in LAWS.values() if law.judges == loaded.operator)
    assert check(law, subject_of_operator(loaded), None).outcome is Outcome.NOT_AVAILABLE
