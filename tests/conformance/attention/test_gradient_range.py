"""The bound of the gradients if intermediate results underflow or overflow."""

import pytest
import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.gradients import check_gradients, incoming_gradient
from attnspec.implementations import load
from attnspec.spec import Case, MaskedNonfinite, Profile, Rounding, RoundingLevel

F32, F16 = torch.float32, torch.float16
QUERIES, KEYS = 24, 30
CASE = Case(heads=4, kv_heads=2, queries=QUERIES, keys=KEYS, d_head=32, d_value=32)


def drawn(dtype: torch.dtype, **options: object) -> tuple[Call, torch.Tensor]:
    """Return a call with a group of heads, and an incoming gradient."""
    case = CASE.but(dtype=dtype)
    return draw(case).but(**options), incoming_gradient(case)


def in_float64(call: Call) -> Call:
    """Return the same call in float64."""
    operands = ("query", "key", "value")
    return call.but(**{name: getattr(call, name).double() for name in operands})


@pytest.mark.parametrize(
    ("sizes", "scale"),
    [((2e-6, 1.0, 100.0), None), ((1.0, 2e-6, 0.1), 30.0), ((1.0, 2e-6, 0.1), 300.0)],
    ids=["scaled queries", "gradient before it is scaled", "the same, more"],
)
def test_the_bound_includes_underflow_in_float16_beside_a_large_gradient(sizes, scale):
    call, grad = drawn(F16, scale=scale)
    q, k, g = (
        (tensor.double() * size).to(F16)
        for tensor, size in zip((call.query, call.key, grad), sizes, strict=True)
    )
    call = call.but(query=q, key=k)
    eager = load("eager")
    _, gradients = Subject(eager).differentiate(call, g)
    expected = expect_gradients(call, g, eager.profile)
    check_gradients(call, gradients, expected, "wrong")
    wide = expect_gradients(in_float64(call), g.double(), Profile())
    for name in ("query", "key", "value"):
        assert float(getattr(wide, name).bound.max()) < float(getattr(expected, name).bound.max())
    assert bool(expected.query.bound.isfinite().all())


def test_sums_that_are_stored_before_they_are_scaled_must_fit():
    call, grad = drawn(F16, scale=1e-3)
    call = call.but(key=call.key * 300)
    eager = Profile(rounding=Rounding(level=RoundingLevel.EAGER))
    assert bool(expect_gradients(call, grad * 100, eager).query.bound.isinf().any())
    assert bool(expect_gradients(call, grad * 100, Profile()).query.bound.isfinite().all())


def test_the_gradient_of_a_saturated_softcap_must_fit_before_its_slope_of_zero():
    call, grad = drawn(F16, softcap=300.0)
    call, grad = call.but(query=call.query * 100, key=call.key * 100), grad * 1000
    eager = load("eager")
    _, gradients = Subject(eager).differentiate(call, grad)
    assert bool(gradients["query"].isnan().any())
    expected = expect_gradients(call, grad, eager.profile)
    assert bool(expected.query.bound[gradients["query"].isnan()].isinf().all())
    check_gradients(call, gradients, expected, "wrong")
    assert bool(expect_gradients(call, grad, Profile()).query.bound.isfinite().all())


def test_overflow_at_a_hidden_key_has_an_effect_only_if_the_profile_permits():
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[3, 7] = False
    call, grad = drawn(F32, attn_mask=mask)
    value, strange = call.value.clone(), grad.clone()
    value[:, :, 7], strange[:, :, 3] = 1e30, 1e12
    strange[:, :, :3], strange[:, :, 4:] = 0, 0
    call = call.but(value=value)
    blocked = expect_gradients(call, strange, Profile())
    assert blocked.query.may_be_nan is None
    assert bool(blocked.query.bound.isfinite().all())
    propagates = Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    )
    propagated = expect_gradients(call, strange, propagates)
    assert propagated.query.may_be_nan.any(-1)[0, 0].nonzero().flatten().tolist() == [3]
    assert bool(propagated.key.may_be_nan.all())
    torch.testing.assert_close(propagated.query.bound, blocked.query.bound)


def test_a_row_out_of_range_may_spoil_the_keys_that_it_does_not_read():
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[3, 7] = False
    call, grad = drawn(F32, attn_mask=mask)
    grad = grad.clone()
    grad[:, :, 3] = 3e38
    call = call.but(value=call.value * 100)
    blocked = expect_gradients(call, grad, Profile())
    assert blocked.key.bound.isfinite().all(-1)[0, 0].nonzero().flatten().tolist() == [7]
    assert blocked.key.may_be_nan is None
    propagated = expect_gradients(
        call,
        grad,
        Profile(masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES),
    )
    assert bool(propagated.key.may_be_nan[:, :, 7].all())
