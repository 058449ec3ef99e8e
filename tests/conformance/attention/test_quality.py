"""Quality: σ matches the errors of independent roundings, and larger errors raise a warning."""

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.attention.quality import (
    check_quality,
    eligible,
    spread_of_gradients,
    spread_of_output,
)
from attnspec.conformance.comparison.violation import QualityWarning
from attnspec.spec import Case, Profile, Rounding, RoundingLevel, Values

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
GENERIC = Case(heads=2, kv_heads=2, queries=65, keys=129, d_head=32, d_value=32, dtype=BF16)
PROFILE = Profile()


def share(got, exact, spread):
    return float(((got.double() - exact) / spread).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_rounding_weights_and_output_once_comes_to_about_sigma(dtype):
    call = draw(GENERIC.but(dtype=dtype))
    expected = expect(call, PROFILE)
    out = (expected.weights.to(dtype).double() @ call.value.double()).to(dtype)
    measured = share(out, expected.out, spread_of_output(call, PROFILE))
    assert 0.5 < measured < 1


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_sigma_of_gradients_is_near_the_measured_errors(dtype):
    call = draw(GENERIC.but(dtype=dtype))
    grad = torch.randn(1, 2, 65, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, spread = (
        expect_gradients(call, grad, PROFILE),
        spread_of_gradients(call, grad, PROFILE),
    )
    leaves = [x.detach().double().requires_grad_() for x in (call.query, call.key, call.value)]
    p = torch.softmax(leaves[0] @ leaves[1].mT / 32**0.5, -1)
    rounded = p + (p.detach().to(dtype).double() - p.detach())
    out = rounded @ leaves[2]
    gradients = torch.autograd.grad(out, leaves, grad.double())
    for name, got in zip(("query", "key", "value"), gradients, strict=True):
        exact = getattr(expected, name).exact
        assert 0.25 < share(got.to(dtype), exact, spread[name]) < 1.1, name
        assert bool((spread[name] > 0).all())
        # σ is far inside the worst case
        assert float((spread[name] / getattr(expected, name).bound).median()) < 0.5


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1.0])
def test_a_single_large_error_raises_a_warning(wrong):
    exact = torch.zeros(4, 4, dtype=torch.float64)
    got, spread = exact.clone(), torch.full_like(exact, 0.01)
    assert check_quality(got, exact, spread, what="out") == 0
    got[2, 1] = wrong
    with pytest.raises(QualityWarning, match="errors of out"):
        check_quality(got, exact, spread, what="out")


@pytest.mark.parametrize(
    ("case", "profile", "backward"),
    [
        (GENERIC.but(dtype=F32), PROFILE, False),
        (GENERIC.but(keys=31), PROFILE, False),
        (GENERIC.but(queries=31), PROFILE, False),
        (GENERIC.but(values=Values.TIES), PROFILE, False),
        (GENERIC, Profile(rounding=Rounding(level=RoundingLevel.EAGER)), False),
        (GENERIC, Profile(rounding=Rounding(accumulator=2.0**-23)), False),
        (GENERIC, Profile(rounding=Rounding(partial_writes=lambda q, k, group: (1, 2))), True),
    ],
)
def test_sigma_does_not_apply_to_other_inputs_and_levels(case, profile, backward):
    assert eligible(GENERIC, PROFILE, backward=True) is None
    assert eligible(case, profile, backward=backward)
