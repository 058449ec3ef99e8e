"""The oracle where something is strange: poison, empty rows, lengths of zero, any scale."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import oracle
from attnspec.conformance.call import Call
from attnspec.conformance.oracle import expect, expect_numpy
from attnspec.conformance.rows import rows_of
from attnspec.spec import CausalAlignment, EmptyRow, MaskedNonfinite, Profile

NAN, INF = float("nan"), float("inf")
ORACLES = pytest.mark.parametrize("oracle_of", [expect, expect_numpy])
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
def test_poison_that_may_not_be_read_changes_nothing(oracle_of, alignment):
    profile = Profile(causal_alignment=alignment)
    call = plain(queries=4, keys=6, is_causal=True)
    clean = oracle_of(call, profile)
    readers = clean.visible[..., 5]
    for poison in (NAN, INF, -INF, 1e300):
        key, value = call.key.clone(), call.value.clone()
        key[:, :, 5], value[:, :, 5] = poison, poison
        for changed in (call.but(key=key), call.but(value=value), call.but(key=key, value=value)):
            found = oracle_of(changed, profile)
            assert torch.equal(found.out[~readers], clean.out[~readers])
            assert torch.equal(found.bound[~readers], clean.bound[~readers])
            assert torch.equal(found.lse[~readers], clean.lse[~readers])
            assert found.may_be_nan is None or not bool(found.may_be_nan[~readers].any())


@ORACLES
def test_nan_that_is_read_is_demanded(oracle_of):
    call = plain(queries=3, keys=3, is_causal=True)
    query, key, value = call.query.clone(), call.key.clone(), call.value.clone()
    query[0, 0, 1, 2] = NAN
    found = oracle_of(call.but(query=query), Profile())
    assert found.out.isnan().nonzero().tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    assert bool((found.bound[found.out.isnan()] == 0).all())
    key[0, 1, 2, 0] = NAN
    found = oracle_of(call.but(key=key), Profile())
    assert found.out.isnan().nonzero().tolist() == [[0, 1, 2, 0], [0, 1, 2, 1]]
    assert found.lse.isnan().nonzero().tolist() == [[0, 1, 2]]
    value[0, 1, 1, 0] = NAN
    found = oracle_of(call.but(value=value), Profile())
    assert found.out.isnan().nonzero().tolist() == [[0, 1, 1, 0], [0, 1, 2, 0]]
    assert not bool(found.lse.isnan().any())


@ORACLES
def test_an_infinite_value_that_is_read_is_infinite_or_nan(oracle_of):
    call = plain(queries=3, keys=3, is_causal=True)
    value = call.value.clone()
    value[0, 0, 2, 1] = -INF
    found = oracle_of(call.but(value=value), Profile())
    assert found.out[0, 0, 2, 1] == -INF
    assert found.may_be_nan.nonzero().tolist() == [[0, 0, 2, 1]]


@ORACLES
def test_an_infinite_score_is_out_of_range(oracle_of):
    call = plain(queries=2, keys=2, is_causal=True)
    key = call.key.clone()
    key[0, 0, 1, 0] = INF
    found = oracle_of(call.but(key=key), Profile())
    assert found.bound.isinf().nonzero()[:, 2].unique().tolist() == [1]
    assert bool(found.out.isfinite().all())
    query = call.query.clone()
    query[0, 0, 1, 1] = NAN
    found = oracle_of(call.but(key=key, query=query), Profile())
    assert bool(found.out[0, 0, 1].isnan().all())
    assert bool((found.bound[0, 0, 1] == 0).all())


@ORACLES
def test_poison_may_propagate_where_the_profile_says_so(oracle_of):
    profile = Profile(masked_nonfinite=MaskedNonfinite.PROPAGATES)
    call = plain(queries=3, keys=3, is_causal=True)
    assert oracle_of(call, profile).may_be_nan is None
    value = call.value.clone()
    value[0, 0, 2, 1] = NAN
    found = oracle_of(call.but(value=value), profile)
    assert found.may_be_nan.nonzero().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert bool(found.out[0, 0, :2].isfinite().all())
    assert not bool(found.lse_may_be_nan.any())
    for poison in (NAN, INF):
        key = call.key.clone()
        key[0, 0, 1] = poison
        found = oracle_of(call.but(key=key), profile)
        assert found.may_be_nan.nonzero().tolist()[:2] == [[0, 0, 0, 0], [0, 0, 0, 1]]
        assert found.lse_may_be_nan.nonzero().tolist() == [[0, 0, 0]]
        assert bool(found.out[0, 0, 0].isfinite().all())


def test_a_masked_score_that_overflows_may_propagate():
    profile = Profile(masked_nonfinite=MaskedNonfinite.PROPAGATES)
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
    found = oracle_of(call, Profile(empty_row=empty_row))
    row, bound = found.out[:, :, 1], found.bound[:, :, 1]
    assert bool((found.lse[:, :, 1] == -INF).all())
    if empty_row is EmptyRow.ZERO:
        assert bool((row == 0).all())
        assert float(bound.max()) < 1e-300
    elif empty_row is EmptyRow.NAN:
        assert bool(row.isnan().all())
    else:
        torch.testing.assert_close(row, call.value.mean(2))
        assert 0 < float(bound.max()) < 1e-12
    assert bool((found.bound[:, :, 0] > 1e-17).all())


@ORACLES
def test_a_sink_takes_the_whole_of_an_empty_row(oracle_of):
    mask = torch.tensor([[True, False, True], [False, False, False]])
    sinks = torch.tensor([0.5, -INF], dtype=torch.float64)
    call = plain(queries=2, keys=3, attn_mask=mask, sinks=sinks)
    found = oracle_of(call, Profile(empty_row=EmptyRow.NAN))
    assert bool((found.out[:, 0, 1] == 0).all())
    assert found.lse[0, 0, 1] == 0.5
    assert bool(found.out[:, 1, 1].isnan().all())
    without = oracle_of(call.but(sinks=None), Profile())
    torch.testing.assert_close(found.out[:, 1, 0], without.out[:, 1, 0])
    assert bool(found.bound[:, :, 0].isfinite().all())


@ORACLES
@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_lengths_of_zero_and_one(oracle_of, queries, keys, with_sinks):
    sinks = torch.tensor([0.5, 30.0], dtype=torch.float64) if with_sinks else None
    for empty_row in EmptyRow:
        call = plain(queries, keys, is_causal=True, sinks=sinks)
        found = oracle_of(call, Profile(empty_row=empty_row))
        assert found.out.shape == found.bound.shape == (1, 2, queries, 2)
        assert found.lse.shape == found.lse_bound.shape == (1, 2, queries)
        assert bool(found.bound.isfinite().all())
        if keys == 0:
            assert bool((found.out == 0).all())


@ORACLES
@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-30, 4.0])
def test_any_scale(oracle_of, scale):
    call = plain(scale=scale)
    found = oracle_of(call, Profile())
    assert bool((found.bound < 1e-12).all())
    if scale == 0.0:
        mean = call.value.mean(2, keepdim=True).expand(found.out.shape)
        torch.testing.assert_close(found.out, mean)


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
    rounding = oracle.Roundoff.of(torch.float64, Profile().rounding)
    bound = oracle.forward_bound(oracle.weights(rows, rounding), rows.value, rounding)
    assert torch.equal(once.bound, 2 * bound.O_bound)
    assert torch.equal(once.lse_bound, 2 * bound.lse_bound[..., 0])


def test_weights_and_visible_keys_are_given():
    call = plain(queries=3, keys=3, is_causal=True)
    found = expect(call, Profile())
    assert torch.equal(found.visible[0, 0], torch.ones(3, 3).tril().bool())
    torch.testing.assert_close(found.weights @ call.value, found.out)
