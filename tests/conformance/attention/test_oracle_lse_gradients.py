"""The oracle of the gradients of the log-sum-exp."""

import math

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle_lse_gradients import expect_lse_gradients
from attnspec.spec import Case, Profile, Rounding, RoundingLevel

F64 = torch.float64
CASE = Case(batch=2, heads=4, kv_heads=2, queries=3, keys=5, d_head=4, d_value=2, dtype=F64)


def incoming(case: Case) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(case.batch, case.heads, case.queries, generator=generator, dtype=F64)


def test_the_gradients_are_those_of_torch() -> None:
    call, grad = draw(CASE), incoming(CASE)
    query, key = (each.clone().requires_grad_() for each in (call.query, call.key))
    lse = (query @ key.repeat_interleave(2, dim=1).mT / math.sqrt(4)).logsumexp(-1)
    for name, gradient in zip(
        ("query", "key"), torch.autograd.grad(lse, (query, key), grad), strict=True
    ):
        expected = expect_lse_gradients(call, grad, Profile())[name]
        assert ((gradient - expected.exact).abs() <= expected.bound).all()
        assert expected.is_evidence


@pytest.mark.parametrize("level", list(RoundingLevel))
def test_the_bound_is_small_and_grows_with_the_unit_roundoff(level: RoundingLevel) -> None:
    profile = Profile(rounding=Rounding(level=level))
    bounds = []
    for dtype in (F64, torch.float32, torch.bfloat16):
        case = CASE.but(dtype=dtype)
        expected = expect_lse_gradients(draw(case), incoming(case), profile)
        bounds.append(max(float(gradient.bound.max()) for gradient in expected.values()))
        assert all(gradient.is_evidence for gradient in expected.values()) or dtype != F64
    assert bounds == sorted(bounds)
    assert bounds[0] < 1e-12
