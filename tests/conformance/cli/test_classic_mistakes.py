"""Classic mistakes in parts of models: the command line rejects each, and names it first."""

import re

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app

CODE = """
import torch
from torch.nn.functional import linear, silu


def angles(positions, d_head, dtype=torch.float32):
    frequencies = 10_000.0 ** (-torch.arange(0, d_head, 2).to(dtype) / d_head)
    return positions[:, None, :, None].to(dtype) * frequencies


def turn(x, angle):
    half = x.shape[-1] // 2
    other = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos().to(x.dtype) + other * angle.sin().to(x.dtype)


def halves(angle):
    return torch.cat([angle, angle], -1)


def mixed_pairs(x, positions):
    return turn(x, angles(positions, x.shape[-1]).repeat_interleave(2, -1))


def neighbours(x, positions):
    angle = angles(positions, x.shape[-1])
    first, second = x[..., ::2], x[..., 1::2]
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    pairs = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.stack(pairs, -1).flatten(-2)


def bfloat16_angles(x, positions):
    return turn(x, halves(angles(positions, x.shape[-1], torch.bfloat16)))


def twice(x, positions):
    angle = halves(angles(positions, x.shape[-1]))
    return turn(turn(x, angle), angle)


def twice_with_a_cache(x, positions):
    angle = halves(angles(positions, x.shape[-1]))
    once = turn(x, angle)
    return turn(once, angle) if int(positions.min()) > 0 else once


def swapped(x, gate, up, down):
    return linear(silu(linear(x, up)) * linear(x, gate), down)


def up_first(x, gate_up, down):
    up, gate = linear(x, gate_up).chunk(2, -1)
    return linear(silu(gate) * up, down)


def epsilon_outside(x, shape, weight, eps):
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(wide)
    root = rows.square().mean(-1, keepdim=True).sqrt()
    return (rows / (root + eps) * weight.to(wide)).to(x.dtype)


def gain_plus_one(x, shape, weight, eps):
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(wide)
    root = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * root * (1 + weight.to(wide))).to(x.dtype)


def unbiased(x, shape, weight, bias, eps):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() * weight + bias


def quick(x):
    return x * torch.sigmoid(1.702 * x)


def softmax_after(x, weight, top_k):
    logits, indices = linear(x, weight).topk(top_k)
    return logits.softmax(-1), indices


def softmax_before(x, weight, top_k):
    return linear(x, weight).softmax(-1).topk(top_k)


def without_a_bias(
    x, indices, scores, gate, up, down, *, gate_bias=None, up_bias=None, down_bias=None
):
    out = torch.zeros_like(x)
    for expert in range(len(gate)):
        token, slot = (indices == expert).nonzero(as_tuple=True)
        biases = [None if each is None else each[expert] for each in (gate_bias, up_bias)]
        rows = x[token]
        inner = silu(linear(rows, gate[expert], biases[0])) * linear(rows, up[expert], biases[1])
        out.index_add_(0, token, linear(inner, down[expert]) * scores[token, slot, None])
    return out
"""

MISTAKES = [
    ("rotary", "mixed_pairs", "", "the two channels of a pair are turned by different angles"),
    ("rotary", "neighbours", "pairing=half", "pairs are interleaved: the profile says half"),
    (
        "rotary",
        "bfloat16_angles",
        "",
        "angles have the accuracy of bfloat16, in which positions 256 and 257 are equal",
    ),
    ("rotary", "twice", "", "tokens are turned twice"),
    ("rotary", "twice_with_a_cache", "", "tokens are turned twice"),
    ("gated_mlp", "swapped", "", "gate and up are swapped: the profile says separate"),
    (
        "gated_mlp",
        "up_first",
        "packing=gate_first",
        "gate and up are swapped: the profile says gate_first",
    ),
    ("rms_norm", "epsilon_outside", "", "epsilon is added outside the root"),
    ("rms_norm", "gain_plus_one", "gain=factor", "the gain is 1 + g: the profile says factor"),
    ("layer_norm", "unbiased", "", "the variance is divided by one less than the channels"),
    (
        "gelu",
        "quick",
        "",
        "this is x times the logistic function of 1.702 x (quick_gelu), not GELU",
    ),
    (
        "router",
        "softmax_after",
        "scores=softmax_all,renormalized=no",
        "the softmax is taken over the chosen experts, after the choice: the profile says "
        "softmax_all",
    ),
    (
        "router",
        "softmax_before",
        "scores=softmax_chosen",
        "the softmax is taken over all experts, before the choice: the profile says softmax_chosen",
    ),
    ("experts", "without_a_bias", "", "the down_bias of an expert is forgotten"),
]
"""Operator, function, the profile that its user names, and the cause that the verdict names."""


@pytest.mark.rotating(parts=14)
@pytest.mark.parametrize(("operator", "name", "profile", "cause"), MISTAKES)
def test_a_classic_mistake_is_named_first(operator, name, profile, cause, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(CODE)
    answers = [word for answer in profile.split(",") if answer for word in ("--profile", answer)]
    arguments = ["check", f"my.py:{name}", "--operator", operator, *answers]
    arguments += ["--effort", "smoke", "-n", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    output = " ".join(done.output.split())
    assert f"my.py:{name}: NOT conforming" in output
    causes = re.findall(rf"Cause[^:]*: my\.py:{name}: (.*?) [A-Z]{{3}}-\d+ ", output)
    assert causes[0] == cause, causes
