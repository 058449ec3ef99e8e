"""The bound of a gated MLP: correct computations in any order stay inside, wrong ones do not."""

import pytest
import torch

from attnspec.conformance.models.bounds.enclosure import Enclosure
from attnspec.conformance.operators.gated_mlp.bounds import backward, forward
from attnspec.conformance.operators.gated_mlp.gates import GATES, clamp_slope
from attnspec.conformance.operators.precision import Precision
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.spec.gated_mlp import GateForm

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ACT = {
    GateForm.SWIGLU: torch.nn.functional.silu,
    GateForm.GEGLU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    GateForm.GEGLU_ERF: torch.nn.functional.gelu,
    GateForm.REGLU: torch.relu,
    GateForm.GLU: torch.sigmoid,
}


def normal(seed, *shape, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def drawn(seed, dtype, *, biased=True, scale=1.0, tokens=4, d_model=9, d_inner=17):
    tensors = {
        "x": normal(seed, tokens, d_model),
        "gate": normal(seed + 1, d_inner, d_model, scale=scale),
        "up": normal(seed + 2, d_inner, d_model, scale=scale),
        "down": normal(seed + 3, d_model, d_inner, scale=0.3),
    }
    if biased:
        tensors["gate_bias"] = normal(seed + 4, d_inner)
        tensors["up_bias"] = normal(seed + 5, d_inner)
        tensors["down_bias"] = normal(seed + 6, d_model)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def eager(form, x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None):
    """The computation of transformers: every intermediate result stored."""
    g = torch.nn.functional.linear(x, gate, gate_bias)
    u = torch.nn.functional.linear(x, up, up_bias)
    if form is GateForm.CLAMPED:
        g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
        hidden = (u + 1) * (g * torch.sigmoid(g * 1.702))
    else:
        hidden = ACT[form](g) * u
    return torch.nn.functional.linear(hidden, down, down_bias)


def backwards(form, x, gate, up, down, gate_bias=None, up_bias=None, down_bias=None):
    """Sums from the last channel to the first, one product at a time."""

    def linear(x, weight, bias):
        out = torch.zeros(*x.shape[:-1], len(weight), dtype=x.dtype)
        out = out if bias is None else out + bias
        for channel in reversed(range(x.shape[-1])):
            out = out + x[..., channel, None] * weight[:, channel]
        return out

    g, u = linear(x, gate, gate_bias), linear(x, up, up_bias)
    if form is GateForm.CLAMPED:
        g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
        hidden = (g / (1 + torch.exp(-1.702 * g))) * (1 + u)
    elif form is GateForm.SWIGLU:
        hidden = g * u / (1 + torch.exp(-g))
    elif form is GateForm.GLU:
        hidden = u / (1 + torch.exp(-g))
    else:
        hidden = u * ACT[form](g)
    return linear(hidden, down, down_bias)


def fused(form, **tensors):
    """A fused kernel: float32 inside, stored once."""
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    return eager(form, **wide).to(tensors["x"].dtype)


def doubled(tensors):
    return {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}


def fraction(got, expected, radius):
    return float(((got.double() - expected).abs() / radius).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", GateForm)
def test_correct_computations_stay_inside(form, dtype):
    ways = [eager] if dtype.itemsize == 2 else [eager, backwards]
    ways += [fused] if dtype.itemsize == 2 else []
    for seed in range(6):
        tensors = drawn(seed, dtype, biased=seed % 2 == 0, scale=(0.1, 1.0, 4.0)[seed % 3])
        weights = {name: each for name, each in tensors.items() if name != "x"}
        bound = forward(tensors["x"], weights, form, Precision.of(dtype))
        exact = gated_mlp(**doubled(tensors), form=form).detach()
        torch.testing.assert_close(bound.out.value, exact, rtol=1e-12, atol=1e-12)
        for way in ways:
            used = fraction(way(form, **tensors), exact, bound.out.radius)
            assert used < (2 if dtype == torch.float64 else 1), (way.__name__, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", GateForm)
def test_gradients_of_correct_computations_stay_inside(form, dtype):
    ways = [eager, fused] if dtype.itemsize == 2 else [eager, backwards]
    for seed in range(6):
        tensors = drawn(seed, dtype, biased=seed % 2 == 0, scale=(0.1, 1.0, 4.0)[seed % 3])
        weights = {name: each for name, each in tensors.items() if name != "x"}
        v = normal(seed + 50, *tensors["x"].shape).to(dtype)
        precision = Precision.of(dtype)
        bound = forward(tensors["x"], weights, form, precision)
        allowed = backward(bound, weights, Enclosure.exact(v), precision)
        exact = doubled(tensors)
        gated_mlp(**exact, form=form).backward(v.double())
        assert allowed.keys() == exact.keys()
        for way in ways:
            own = {name: each.clone().requires_grad_() for name, each in tensors.items()}
            way(form, **own).backward(v)
            for name, leaf in own.items():
                torch.testing.assert_close(
                    allowed[name].value, exact[name].grad, rtol=1e-11, atol=1e-11
                )
                used = fraction(leaf.grad, exact[name].grad, allowed[name].radius)
                assert used < (2 if dtype == torch.float64 else 1), (way.__name__, seed, name)


@pytest.mark.parametrize("form", GateForm)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_one_wrong_number_is_outside(form, dtype):
    """The bound is small beside what one forgotten product changes."""
    tensors = drawn(3, dtype)
    weights = {name: each for name, each in tensors.items() if name != "x"}
    precision = Precision.of(dtype)
    bound = forward(tensors["x"], weights, form, precision)
    wrong = {name: each.clone() for name, each in tensors.items()}
    wrong["gate"][3, 4] = wrong["gate"][3, 4] * 1.01
    changed = (gated_mlp(**doubled(wrong), form=form).detach() - bound.out.value).abs()
    assert float((changed / bound.out.radius).max()) > 30


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bound_is_evidence(dtype):
    """Its largest part is a small share of the largest result."""
    tensors = drawn(0, dtype)
    weights = {name: each for name, each in tensors.items() if name != "x"}
    bound = forward(tensors["x"], weights, GateForm.SWIGLU, Precision.of(dtype)).out
    share = float(bound.radius.max() / bound.value.abs().max())
    limit = {torch.float64: 1e-13, torch.float32: 1e-4, torch.bfloat16: 0.3, torch.float16: 0.04}
    assert share < limit[dtype]


@pytest.mark.parametrize("form", GateForm)
def test_slopes_are_derivatives(form):
    x = torch.linspace(-9, 9, 401, dtype=torch.float64, requires_grad=True)
    f = GATES[form].activation
    (slope,) = torch.autograd.grad(f.value(x).sum(), x)
    torch.testing.assert_close(f.slope(x.detach()), slope, rtol=1e-9, atol=1e-12)
    changes = f.slope(x.detach()).diff().abs()
    assert float(changes.max()) <= f.curvature * float(x.detach().diff().max()) + f.jump


def test_a_clamp_has_both_slopes_at_its_limit():
    x = Enclosure(torch.tensor([7.0, 6.5, 8.0, -8.0]).double(), torch.full((4,), 0.1).double())
    slope = clamp_slope(x, -7.0, 7.0)
    assert slope.value.tolist() == [1, 1, 0, 0]
    assert slope.radius.round().tolist() == [1, 0, 0, 0]
    assert clamp_slope(x, float("-inf"), 7.0).value.tolist() == [1, 1, 0, 1]
