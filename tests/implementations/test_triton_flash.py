"""The flash attention in Triton: what it refuses anywhere, and its results where Triton is."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnspec.implementations import framework_names, load, triton_flash
from attnspec.implementations.frameworks import missing
from attnspec.spec import Case

ONES = torch.ones(1, 1, 2, 4)
LACKS = missing("triton") or triton_flash.interpreter_fails()
NEEDS_INTERPRETER = pytest.mark.skipif(LACKS is not None, reason=str(LACKS))

AGAINST_THE_FORMULA = """
import itertools
import torch
from attnspec.implementations import load

torch.manual_seed(0)
attention = load("triton_flash").attention
assert load("triton_flash").unavailable() is None and load("triton_flash").devices == ("cpu",)


def formula(query, key, value, is_causal):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.mT * 0.3
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


errors = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
sizes = [(17, 33, 1), (33, 17, 3), (1, 16, 1), (16, 0, 3)]
for (dtype, error), (queries, keys, group) in itertools.product(errors.items(), sizes):
    for is_causal in (False, True):
        shapes = (2 * group, queries, 20), (2, keys, 20), (2, keys, 12)
        inputs = [torch.randn(2, *shape).to(dtype).requires_grad_() for shape in shapes]
        options = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": group > 1}
        results = attention(*inputs, **options, return_lse=True)
        assert results[0].dtype == dtype and results[1].dtype == torch.float32
        wide = [x.detach().double().requires_grad_() for x in inputs]
        expected = formula(*wide, is_causal)
        incoming = [torch.randn_like(x) for x in results]
        results += torch.autograd.grad(results, inputs, incoming)
        expected += torch.autograd.grad(expected, wide, [x.double() for x in incoming])
        for got, right in zip(results, expected, strict=True):
            assert torch.allclose(got.double(), right, rtol=error, atol=error), (dtype, queries)
print("right")
"""


def test_it_is_registered_under_its_library():
    assert framework_names()["triton"] == ("triton_flash",)
    assert load("triton_flash").name == "triton_flash"


class TestAvailability:
    def test_without_triton(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert triton_flash.unavailable() == "no module triton"

    def test_without_a_device_and_without_the_interpreter(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", False)
        reason = "no CUDA device, and TRITON_INTERPRET=1 is not set"
        assert triton_flash.unavailable() == reason

    def test_with_either(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", False)
        assert triton_flash.unavailable() is None
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", True)
        monkeypatch.setattr(triton_flash, "version", lambda name: "3.9.0")
        assert triton_flash.unavailable() is None

    @pytest.mark.parametrize("accepts", [False, True])
    def test_with_an_interpreter_that_numpy_stops(self, accepts, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", True)
        monkeypatch.setattr(triton_flash, "version", lambda name: "3.6.0")
        # a number in place of an array with one element, as NumPy before 2.4 converts it
        zeros = float if accepts else np.ones
        numpy = SimpleNamespace(zeros=zeros, __version__="2.4.6")
        monkeypatch.setattr(triton_flash, "np", numpy)
        reason = triton_flash.unavailable()
        if accepts:
            assert reason is None
        else:
            with contextlib.suppress(TypeError):
                int(np.ones(1))
                pytest.skip("this NumPy converts arrays with one element")
            assert reason == (
                "the interpreter of Triton 3.6.0 fails in loops with NumPy 2.4.6: "
                "install triton>=3.7"
            )


class TestSupports:
    def test_the_interpreter_takes_small_calls(self, monkeypatch):
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", True)
        case = Case(batch=2, heads=3, kv_heads=3, queries=33, keys=65, d_head=64, d_value=64)
        assert triton_flash.supports(case) is None
        large = triton_flash.supports(case.but(queries=1000, keys=1000))
        assert large == "the interpreter would take 23814 pairs of tiles, more than 300"
        monkeypatch.setattr(triton_flash, "IS_INTERPRETED", False)
        assert triton_flash.supports(case.but(queries=1000, keys=1000)) is None

    def test_a_tile_holds_so_many_channels(self):
        assert triton_flash.supports(Case(d_head=256, d_value=256)) is None
        for wide in (Case(d_head=257), Case(d_value=257)):
            assert triton_flash.supports(wide) == "a tile holds at most 256 channels"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.ones(2, 2, dtype=torch.bool)}, "attn_mask must be None"),
        ({"dropout_p": 0.5}, "dropout_p must be 0"),
    ],
)
def test_options_that_it_does_not_have_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        triton_flash.attention(ONES, ONES, ONES, **options)


def test_types_and_widths_that_it_does_not_have_are_refused():
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        triton_flash.attention(ONES.double(), ONES.double(), ONES.double())
    wide = torch.ones(1, 1, 2, 257)
    with pytest.raises(ValueError, match="at most 256 channels"):
        triton_flash.attention(wide, wide, wide)


@NEEDS_INTERPRETER
def test_the_interpreter_gives_the_results_of_the_formula():
    command = [sys.executable, "-P", "-W", "error", "-c", AGAINST_THE_FORMULA]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert run.stdout == "right\n", run.stderr


PLANTED = {
    "": "right",
    "visible = visible & (columns[None, :] <= rows[:, None])\n        scores": (
        "visible = visible & (tl.arange(0, ROWS)[None, :] <= tl.arange(0, ROWS)[:, None])\n"
        "        scores"
    ),
    "        context = context * rescale[:, None]\n": "",
}
"""Code of the kernels, and the bug that takes its place; the page on Triton shows both."""

JUDGED = """
import sys
import flash_kernels
sys.modules["attnspec.implementations.triton_kernels"] = flash_kernels
from attnspec.conformance.api import check_attention
from attnspec.implementations import load
kernel = load("triton_flash")
(record,) = check_attention(kernel, laws=["output-equals-the-definition"], effort="smoke")
print(record.outcome)
"""


@pytest.mark.slow
@NEEDS_INTERPRETER
@pytest.mark.parametrize("code", PLANTED, ids=["none", "mask of the tile", "no rescale"])
def test_the_suite_finds_bugs_planted_in_the_kernels(code, tmp_path):
    source = Path(triton_flash.__file__).with_name("triton_kernels.py").read_text()
    if code:
        assert source.count(code) == 1
        source = source.replace(code, PLANTED[code])
    (tmp_path / "flash_kernels.py").write_text(source)
    command = [sys.executable, "-c", JUDGED]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, cwd=tmp_path
    )
    assert run.stdout == ("failed\n" if code else "passed\n"), run.stderr
