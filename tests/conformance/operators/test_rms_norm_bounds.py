"""The bound of RMSNorm: correct computations in any order stay inside, wrong ones do not."""

import pytest
import torch

from attnspec.conformance.operators.rms_norm.bounds import bounds
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows
from attnspec.conformance.operators.rms_norm.subject import RMSNormSubject
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import (
    Gain,
    RMSNormImplementation,
    RMSNormProfile,
    RoundingToStorage,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def pairwise(x, shape, weight, eps):
    """Adds squares in a tree, and divides by a root."""
    rows = x if x.dtype == torch.float64 else x.float()
    sums = rows.square()
    while sums.shape[-1] > 1:
        sums = torch.nn.functional.pad(sums, (0, sums.shape[-1] % 2))
        sums = sums[..., ::2] + sums[..., 1::2]
    return (rows / (sums / shape[0] + eps).sqrt() * weight.to(rows.dtype)).to(x.dtype)


def backwards(x, shape, weight, eps):
    """Adds squares one after another from the last, and multiplies by the gain first."""
    rows = x if x.dtype == torch.float64 else x.float()
    total = torch.zeros_like(rows[..., :1])
    for channel in reversed(range(shape[0])):
        total = total + rows[..., channel, None].square()
    return ((weight.to(rows.dtype) * rows) * torch.rsqrt(total / shape[0] + eps)).to(x.dtype)


def naive(x, shape, weight, eps):
    """Rounds every step to the storage type."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def narrowed(x, shape, weight, eps):
    """Computes float64 in float32."""
    out = torch.nn.functional.rms_norm(x.float(), shape, weight.float(), eps)
    return out.to(x.dtype)


CORRECT = {
    "pairwise": (pairwise, RMSNormProfile()),
    "backwards": (backwards, RMSNormProfile()),
    "naive": (naive, RMSNormProfile(working=Working.STORAGE)),
    "narrowed": (narrowed, RMSNormProfile(float64_precision=Float64Precision.FLOAT32)),
}


def used(function, profile, case: RMSNormCase) -> dict[str, float]:
    """Return the largest share of each bound that a function uses."""
    declared = RMSNormImplementation(name="it", function=function, profile=profile)
    subject = RMSNormSubject(implementation=declared)
    x, weight = case.draw(profile.gain)
    grad_out = case.draw_gradient()
    expected = subject.expect(x, weight, case.epsilon, grad_out)
    out, grads = subject.gradients(x, weight, case.epsilon, grad_out)
    results = {"out": (out, expected.out, expected.bounds.out)} | {
        name: (grads[name], expected.grads[name], getattr(expected.bounds, name)) for name in grads
    }
    shares = {}
    for name, (got, exact, bound) in results.items():
        share = torch.where(bound.isinf(), 0, (got.double() - exact).abs() / bound)
        shares[name] = float(share.max())
    return shares


@pytest.mark.parametrize("rows", Rows)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("which", CORRECT)
def test_correct_orders_stay_within_the_bound(which, dtype, rows):
    for channels in (1, 3, 64, 257):
        case = RMSNormCase(shape=(2, 7), channels=channels, dtype=dtype, rows=rows, seed=channels)
        shares = used(*CORRECT[which], case)
        assert max(shares.values()) <= 1, (channels, shares)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_exceeds_the_bound(dtype):
    case = RMSNormCase(shape=(3,), channels=64, dtype=dtype)

    def off(x, shape, weight, eps):
        out = pairwise(x, shape, weight, eps)
        return out * torch.where(torch.arange(out.numel()).view(out.shape) == 70, 1.05, 1.0).to(
            out.dtype
        )

    assert used(off, RMSNormProfile(), case)["out"] > 1


def test_a_bound_is_tight_in_float32():
    """Within a factor of fifty: one that a wrong formula passes is no bound."""
    case = RMSNormCase(shape=(64,), channels=64, dtype=torch.float32)
    assert used(pairwise, RMSNormProfile(), case)["out"] > 0.02


@pytest.mark.parametrize("rounding", RoundingToStorage)
def test_a_second_rounding_widens_the_bound_by_one_unit(rounding):
    x, weight = RMSNormCase(channels=8, dtype=torch.float16).draw(Gain.FACTOR)
    once = bounds(x, weight, 1e-6, RMSNormProfile())
    other = bounds(x, weight, 1e-6, RMSNormProfile(rounding=rounding))
    ratio = float((other.out / once.out).median())
    assert ratio == pytest.approx(1 if rounding is RoundingToStorage.AFTER_GAIN else 2, rel=0.05)


def test_nothing_is_promised_where_squares_overflow():
    x = torch.full((1, 4), 1e30, dtype=torch.float32)
    assert bounds(x, torch.ones(4), 1e-6, RMSNormProfile()).out.isinf().all()
