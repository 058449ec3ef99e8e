"""The bounds of LayerNorm and GELU: correct computations in any order stay inside."""

import pytest
import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.layer_norm import WithExplicitBackward
from attnspec.conformance.mutants.layer_norm.operator import ShortStatistics
from attnspec.conformance.operators.gelu.bounds import bounds as gelu_bounds
from attnspec.conformance.operators.gelu.case import GELUCase
from attnspec.conformance.operators.gelu.subject import expect as expect_gelu
from attnspec.conformance.operators.layer_norm.bounds import bounds
from attnspec.conformance.operators.layer_norm.case import LayerNormCase, Rows
from attnspec.conformance.operators.layer_norm.subject import LayerNormSubject
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile, Saved
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import RoundingToStorage

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def welford(x, shape, weight, bias, eps):
    """Updates mean and squares channel by channel, as fused kernels do."""
    rows = wide(x)
    mean, squares = torch.zeros_like(rows[..., :1]), torch.zeros_like(rows[..., :1])
    for channel in range(shape[0]):
        delta = rows[..., channel, None] - mean
        mean = mean + delta / (channel + 1)
        squares = squares + delta * (rows[..., channel, None] - mean)
    scale = torch.rsqrt(squares / shape[0] + eps)
    # the mean is subtracted after the division
    normalized = rows * scale - mean * scale
    return (normalized * weight.to(rows.dtype) + bias.to(rows.dtype)).to(x.dtype)


def naive(x, shape, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


def narrowed(x, shape, weight, bias, eps):
    return functional.layer_norm(x.float(), shape, weight.float(), bias.float(), eps).to(x.dtype)


CORRECT = {
    "torch": (functional.layer_norm, LayerNormProfile(saved=Saved.STORAGE)),
    "welford": (welford, LayerNormProfile()),
    "explicit": (WithExplicitBackward(), LayerNormProfile()),
    "short statistics": (ShortStatistics(), LayerNormProfile(saved=Saved.STORAGE)),
    "naive": (naive, LayerNormProfile(working=Working.STORAGE)),
    "narrowed": (narrowed, LayerNormProfile(float64_precision=Float64Precision.FLOAT32)),
}


def used(function, profile, case: LayerNormCase) -> dict[str, float]:
    """Return the largest share of each bound that a function uses."""
    declared = LayerNormImplementation(name="it", function=function, profile=profile)
    subject = LayerNormSubject(implementation=declared)
    operands, grad_out = case.draw(), case.draw_gradient()
    expected = subject.expect(operands, case.epsilon, grad_out)
    out, grads = subject.gradients(operands, case.epsilon, grad_out)
    results = {"out": (out, expected.out, expected.bounds.out)} | {
        name: (grads[name], expected.grads[name], getattr(expected.bounds, name)) for name in grads
    }
    shares = {}
    for name, (got, exact, bound) in results.items():
        share = torch.where(bound.isinf(), 0, (got.double() - exact).abs() / bound)
        assert not share.isnan().any()
        shares[name] = float(share.max())
    return shares


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("rows", Rows)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("which", CORRECT)
def test_correct_orders_stay_within_the_bound(which, dtype, rows):
    for channels in (1, 3, 64, 257):
        case = LayerNormCase(shape=(2, 7), channels=channels, dtype=dtype, rows=rows, seed=channels)
        shares = used(*CORRECT[which], case)
        assert max(shares.values()) <= 1, (channels, shares)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_exceeds_the_bound(dtype):
    case = LayerNormCase(shape=(3,), channels=64, dtype=dtype)

    def off(x, shape, weight, bias, eps):
        out = welford(x, shape, weight, bias, eps)
        place = torch.arange(out.numel()).view(out.shape) == 70
        return out * torch.where(place, 1.05, 1.0).to(out.dtype)

    assert used(off, LayerNormProfile(), case)["out"] > 1


def test_a_bound_is_tight_in_float32():
    """Within a factor of fifty: one that a wrong formula passes is no bound."""
    case = LayerNormCase(shape=(64,), channels=64, dtype=torch.float32)
    assert used(welford, LayerNormProfile(), case)["out"] > 0.02


@pytest.mark.parametrize("rounding", RoundingToStorage)
def test_further_roundings_widen_the_bound(rounding):
    operands = LayerNormCase(channels=8, dtype=torch.float16).draw()
    once = bounds(*operands, 1e-6, LayerNormProfile())
    other = bounds(*operands, 1e-6, LayerNormProfile(rounding=rounding))
    ratio = float((other.out / once.out).max())
    assert ratio == 1 if rounding is RoundingToStorage.AFTER_GAIN else 2 < ratio < 16


def test_nothing_is_promised_where_squares_overflow_or_the_spread_drowns():
    ones = torch.ones(4)
    for x in (torch.full((1, 4), 1e30), 1e9 + torch.arange(4.0)[None]):
        assert bounds(x, ones, ones, 1e-6, LayerNormProfile()).out.isinf().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", Approximate)
def test_torch_s_gelu_uses_a_good_part_of_its_bound(approximate, dtype):
    profile = GELUProfile(approximate=approximate)
    case = GELUCase(shape=(4099,), dtype=dtype)
    x, grad_out = case.draw().requires_grad_(), case.draw_gradient()
    out = functional.gelu(x, approximate=str(approximate))
    (grad,) = torch.autograd.grad(out, x, grad_out)
    expected = expect_gelu(x.detach(), profile, grad_out)
    share = ((out.double() - expected.out).abs() / expected.bounds.out).max()
    assert 0.01 < share <= 1
    assert ((grad.double() - expected.grad).abs() <= expected.bounds.input).all()


def test_no_gradient_of_a_gelu_is_promised_where_its_cube_overflows():
    x = torch.tensor([1e13], dtype=torch.float32)
    assert gelu_bounds(x, GELUProfile(), torch.ones(1)).input.isinf().all()
