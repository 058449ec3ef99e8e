"""The oracle at the edges: NaN and infinity, empty rows, lengths of zero, any scale."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance.attention.bounds.forward import forward_bound
from attnspec.conformance.attention.bounds.roundoff import Roundoff
from attnspec.conformance.attention.bounds.rows import rows_of
from attnspec.conformance.attention.bounds.scores import weights
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import expect, expect_scalar
from attnspec.spec import CausalAlignment, EmptyRow, MaskedNonfinite, Profile

NAN, INF = float("nan"), float("inf")
ORACLES = pytest.mark.parametrize("oracle_of", [expect, expect_scalar])
LOWER_RIGHT = Profile(causal_alignment=CausalAlignment.LOWER_RIGHT)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def plain(queries=5, keys=4, d_head=3, d_value=2, heads=2, kv_heads=None, batch=1, **options):
    kv_heads = kv_heads or heads
    return Call(
        query=normal(batch, heads, queries, d_head, seed=1),
        key=normal(batch, kv_heads, keys, d_head, seed=2),
        value=normal(batch, kv_heads, keys, d_value, seed=3),
        **options,
    )


@ORACLES
@pytest.mark.parametrize("alignment", CausalAlignment)
def test_nan_at_a_hidden_key_changes_nothing(oracle_of, alignment):
    profile = Profile(causal_alignment=alignment)
    call = plain(queries=4, keys=6, is_causal=True)
    clean = oracle_of(call, profile)
    readers = clean.visible[..., 5]
    for poison in (NAN, INF, -INF, 1e300):
        key, value = call.key.clone(), call.value.clone()
        key[:, :, 5], value[:, :, 5] = poison, poison
        for changed in (call.but(key=key), call.but(value=value), call.but(key=key, value=value)):
            expected = oracle_of(changed, profile)
            assert torch.equal(expected.out[~readers], clean.out[~readers])
            assert torch.equal(expected.bound[~readers], clean.bound[~readers])
            assert torch.equal(expected.lse[~readers], clean.lse[~readers])
            assert expected.may_be_nan is None or not bool(expected.may_be_nan[~readers].any())


@ORACLES
def test_nan_that_is_read_is_demanded(oracle_of):
    call = plain(queries=3, keys=3, is_causal=True)
    query, key, value = call.query.clone(), call.key.clone(), call.value.clone()
    query[0, 0, 1, 2] = NAN
    expected = oracle_of(call.but(query=query), Profile())
    assert expected.out.isnan().nonzero().tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    assert bool((expected.bound[expected.out.isnan()] == 0).all())
    key[0, 1, 2, 0] = NAN
    expected = oracle_of(call.but(key=key), Profile())
    assert expected.out.isnan().nonzero().tolist() == [[0, 1, 2, 0], [0, 1, 2, 1]]
    assert expected.lse.isnan().nonzero().tolist() == [[0, 1, 2]]
    value[0, 1, 1, 0] = NAN
    expected = oracle_of(call.but(value=value), Profile())
    assert expected.out.isnan().nonzero().tolist() == [[0, 1, 1, 0], [0, 1, 2, 0]]
    assert not bool(expected.lse.isnan().any())


@ORACLES
def test_an_infinite_value_that_is_read_is_infinite_or_nan(oracle_of):
    call = plain(queries=3, keys=3, is_causal=True)
    value = call.value.clone()
    value[0, 0, 2, 1] = -INF
    expected = oracle_of(call.but(value=value), Profile())
    assert expected.out[0, 0, 2, 1] == -INF
    assert expected.may_be_nan.nonzero().tolist() == [[0, 0, 2, 1]]


@ORACLES
def test_an_infinite_score_is_out_of_range(oracle_of):
    call = plain(queries=2, keys=2, is_causal=True)
    key = call.key.clone()
    key[0, 0, 1, 0] = INF
    expected = oracle_of(call.but(key=key), Profile())
    assert expected.bound.isinf().nonzero()[:, 2].unique().tolist() == [1]
    assert bool(expected.out.isfinite().all())
    query = call.query.clone()
    query[0, 0, 1, 1] = NAN
    expected = oracle_of(call.but(key=key, query=query), Profile())
    assert bool(expected.out[0, 0, 1].isnan().all())
    assert bool((expected.bound[0, 0, 1] == 0).all())


@ORACLES
def test_nan_may_propagate_if_the_profile_permits(oracle_of):
    profile = Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    )
    call = plain(queries=3, keys=3, is_causal=True)
    assert oracle_of(call, profile).may_be_nan is None
    value = call.value.clone()
    value[0, 0, 2, 1] = NAN
    expected = oracle_of(call.but(value=value), profile)
    assert expected.may_be_nan.nonzero().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert bool(expected.out[0, 0, :2].isfinite().all())
    assert not bool(expected.lse_may_be_nan.any())
    for poison in (NAN, INF):
        key = call.key.clone()
        key[0, 0, 1] = poison
        expected = oracle_of(call.but(key=key), profile)
        assert expected.may_be_nan.nonzero().tolist()[:2] == [[0, 0, 0, 0], [0, 0, 0, 1]]
        assert expected.lse_may_be_nan.nonzero().tolist() == [[0, 0, 0]]
        assert bool(expected.out[0, 0, 0].isfinite().all())


@ORACLES
def test_keys_and_values_have_each_an_answer(oracle_of):
    call = plain(queries=3, keys=3, is_causal=True)
    key, value = call.key.clone(), call.value.clone()
    key[0, 0, 2] = value[0, 0, 2] = NAN
    of_keys = Profile(masked_keys=MaskedNonfinite.PROPAGATES)
    of_values = Profile(masked_values=MaskedNonfinite.PROPAGATES)
    by_key, by_value = call.but(key=key), call.but(value=value)
    assert oracle_of(by_key, of_keys).may_be_nan[0, 0, 0].all()
    assert oracle_of(by_value, of_values).may_be_nan[0, 0, 0].all()
    for poisoned, profile in ((by_key, of_values), (by_value, of_keys)):
        expected = oracle_of(poisoned, profile)
        assert expected.may_be_nan is None or not expected.may_be_nan[0, 0, :2].any()
        assert expected.out[0, 0, :2].isfinite().all()


def test_a_masked_score_that_overflows_may_propagate():
    profile = Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    )
    call = plain(queries=2, keys=2, is_causal=True)
    half = Call(
        query=call.query.half(), key=call.key.half(), value=call.value.half(), is_causal=True
    )
    key = torch.full_like(half.key, 6e4)
    key[:, :, 0] = 0
    large = half.but(query=torch.full_like(half.query, 100.0), key=key)
    assert expect(large, profile).may_be_nan is None
    eager = replace(profile, rounding=replace(profile.rounding, level="eager"))
    assert expect(large, eager).may_be_nan[0, 0, 0].all()
    assert expect(large, eager).bound[0, 0, 1].isinf().all()


@ORACLES
@pytest.mark.parametrize("empty_row", EmptyRow)
def test_empty_rows_follow_the_profile(oracle_of, empty_row):
    mask = torch.tensor([[True, False, True], [False, False, False]])
    call = plain(queries=2, keys=3, attn_mask=mask)
    expected = oracle_of(call, Profile(empty_row=empty_row))
    row, bound = expected.out[:, :, 1], expected.bound[:, :, 1]
    assert bool((expected.lse[:, :, 1] == -INF).all())
    if empty_row is EmptyRow.ZERO:
        assert bool((row == 0).all())
        assert float(bound.max()) < 1e-300
    elif empty_row is EmptyRow.NAN:
        assert bool(row.isnan().all())
    else:
        torch.testing.assert_close(row, call.value.mean(2))
        assert 0 < float(bound.max()) < 1e-12
    assert bool((expected.bound[:, :, 0] > 1e-17).all())


@ORACLES
def test_a_sink_takes_the_whole_of_an_empty_row(oracle_of):
    mask = torch.tensor([[True, False, True], [False, False, False]])
    sinks = torch.tensor([0.5, -INF], dtype=torch.float64)
    call = plain(queries=2, keys=3, attn_mask=mask, sinks=sinks)
    expected = oracle_of(call, Profile(empty_row=EmptyRow.NAN))
    assert bool((expected.out[:, 0, 1] == 0).all())
    assert expected.lse[0, 0, 1] == 0.5
    assert bool(expected.out[:, 1, 1].isnan().all())
    without = oracle_of(call.but(sinks=None), Profile())
    torch.testing.assert_close(expected.out[:, 1, 0], without.out[:, 1, 0])
    assert bool(expected.bound[:, :, 0].isfinite().all())


@ORACLES
@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_lengths_of_zero_and_one(oracle_of, queries, keys, with_sinks):
    sinks = torch.tensor([0.5, 30.0], dtype=torch.float64) if with_sinks else None
    for empty_row in EmptyRow:
        call = plain(queries, keys, is_causal=True, sinks=sinks)
        expected = oracle_of(call, Profile(empty_row=empty_row))
        assert expected.out.shape == expected.bound.shape == (1, 2, queries, 2)
        assert expected.lse.shape == expected.lse_bound.shape == (1, 2, queries)
        assert bool(expected.bound.isfinite().all())
        if keys == 0:
            assert bool((expected.out == 0).all())


@ORACLES
@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-30, 4.0])
def test_any_scale(oracle_of, scale):
    call = plain(scale=scale)
    expected = oracle_of(call, Profile())
    assert bool((expected.bound < 1e-12).all())
    if scale == 0.0:
        mean = call.value.mean(2, keepdim=True).expand(expected.out.shape)
        torch.testing.assert_close(expected.out, mean)


@ORACLES
def test_channels_of_zero(oracle_of):
    call = plain(d_head=0)
    torch.testing.assert_close(
        oracle_of(call, Profile()).out, call.value.mean(2, keepdim=True).expand(1, 2, 5, 2)
    )


@ORACLES
def test_dropout_has_no_expected_result(oracle_of):
    with pytest.raises(ValueError, match="dropout"):
        oracle_of(plain(dropout_p=0.5), Profile())


def test_the_bound_can_be_left_out():
    call = plain()
    assert torch.equal(expect(call, Profile(), with_bound=False).out, expect(call, Profile()).out)
    assert not bool(expect(call, Profile(), with_bound=False).bound.any())


def test_float64_has_twice_the_bound():
    call = plain()
    once = expect(call, Profile())
    rows = rows_of(call, Profile(), torch.arange(5))
    rounding = Roundoff.of(torch.float64, Profile())
    bound = forward_bound(weights(rows, rounding), rows.value, rounding)
    assert torch.equal(once.bound, 2 * bound.O_bound)
    assert torch.equal(once.lse_bound, 2 * bound.lse_bound[..., 0])


def test_weights_and_visible_keys_are_given():
    call = plain(queries=3, keys=3, is_causal=True)
    expected = expect(call, Profile())
    assert torch.equal(expected.visible[0, 0], torch.ones(3, 3).tril().bool())
    torch.testing.assert_close(expected.weights @ call.value, expected.out)
