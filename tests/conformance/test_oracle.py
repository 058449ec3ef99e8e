"""The oracle: proved against 50-digit arithmetic, and the same however a call is cut."""

import itertools
import math
from dataclasses import replace

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance import oracle
from attnspec.conformance.call import Call
from attnspec.conformance.oracle import expect, expect_numpy
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.rows import rows_of
from attnspec.conformance.soundness_cases import draw_call
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.masks import alibi, visible_keys
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


def exact(call, alignment, shift=None):
    """Attention in 50 digits: (out, lse) as nested lists of numbers, straight from the contract.

    `shift` adds to single numbers of the call, by (name, index).
    """
    shift = shift or {}

    def number(name, *index):
        return mpmath.mpf(float(getattr(call, name)[index])) + shift.get((name, index), 0)

    batch, heads, queries, d_head = call.query.shape
    kv_heads, keys, d_value = call.value.shape[1:]
    offset = keys - queries if alignment is CausalAlignment.LOWER_RIGHT else 0
    scale = 1 / mpmath.sqrt(d_head) if call.scale is None else mpmath.mpf(call.scale)
    mask = call.attn_mask
    left, right = call.window or (None, None)
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        group, place = h * kv_heads // heads, i + offset
        terms, read = [], []
        for j in range(keys):
            hidden = call.is_causal and j > place
            hidden |= left is not None and j < place - left
            hidden |= right is not None and j > place + right
            bias = mpmath.mpf(0)
            if mask is not None:
                index = (b, h, i, j)[4 - mask.ndim :]
                index = tuple(0 if n == 1 else k for n, k in zip(mask.shape, index, strict=True))
                is_bool = mask.dtype == torch.bool
                hidden |= not mask[index] if is_bool else float(mask[index]) == -INF
                bias = bias if hidden or is_bool else number("attn_mask", *index)
            if hidden:
                continue
            score = scale * mpmath.fsum(
                number("query", b, h, i, c) * number("key", b, group, j, c) for c in range(d_head)
            )
            if call.softcap is not None:
                score = call.softcap * mpmath.tanh(score / call.softcap)
            if call.alibi_slopes is not None:
                score -= number("alibi_slopes", h) * abs(place - j)
            terms.append(score + bias)
            read.append(j)
        logits = terms + ([number("sinks", h)] if call.sinks is not None else [])
        if not logits:
            yield (b, h, i), [mpmath.mpf(0)] * d_value, -mpmath.inf
            continue
        lse = mpmath.log(mpmath.fsum(map(mpmath.exp, logits)))
        weights = [mpmath.exp(term - lse) for term in terms]
        pairs = list(zip(weights, read, strict=True))
        mixed = [
            mpmath.fsum(w * number("value", b, group, j, c) for w, j in pairs)
            for c in range(d_value)
        ]
        yield (b, h, i), mixed, lse


@st.composite
def small_calls(draw):
    """Small calls with every feature, alone and together."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    call = draw_call(draw(st.integers(0, 10**6)), dtype, longest=6).call
    queries = min(call.query.shape[2], 5)
    mask = call.attn_mask
    if mask is not None and mask.shape[-2] > queries:
        mask = mask[..., :queries, :]
    return call.but(query=call.query[:, :, :queries, :], attn_mask=mask)


@ORACLES
@settings(max_examples=120, deadline=None)
@given(drawn=small_calls(), alignment=st.sampled_from(CausalAlignment))
def test_oracle_is_within_its_own_bound_of_fifty_digits(oracle_of, drawn, alignment):
    # the gate in float64 is twice the bound: one bound for the oracle, one for what is judged
    call = drawn
    wide = widened(call)
    expected = oracle_of(wide, Profile(causal_alignment=alignment))
    assert bool(expected.bound.isfinite().all())
    with mpmath.workdps(50):
        for (b, h, i), mixed, lse in exact(call, alignment):
            for c, number in enumerate(mixed):
                distance = abs(mpmath.mpf(float(expected.out[b, h, i, c])) - number)
                assert distance <= float(expected.bound[b, h, i, c]) / 2
            if lse == -mpmath.inf:
                assert expected.lse[b, h, i] == -INF
            else:
                distance = abs(mpmath.mpf(float(expected.lse[b, h, i])) - lse)
                assert distance <= float(expected.lse_bound[b, h, i]) / 2


def widened(call):
    """The same call in float64."""
    return Call(**{name: _as_wide(name, each) for name, each in vars(call).items()})


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), by_formula=st.booleans())
def test_gradients_are_within_their_own_bound_of_fifty_digits(seed, by_formula):
    drawn = draw_call(seed, torch.bfloat16, longest=3)
    queries = min(drawn.call.query.shape[2], 3)
    mask = drawn.call.attn_mask
    if mask is not None and mask.shape[-2] > queries:
        mask = mask[..., :queries, :]
    call = widened(drawn.call)
    call = call.but(
        query=call.query[:1, :, :queries, :3],
        key=call.key[:1, :, :, :3],
        value=call.value[:1, :, :, :2],
        attn_mask=None if mask is None else _as_wide("", mask[:1] if mask.ndim == 4 else mask),
    )
    grad = drawn.grad[:1, :, :queries, :2].double()
    expected = expect_gradients(call, grad, Profile(), by_formula=by_formula)

    def loss(shift):
        return mpmath.fsum(
            mpmath.mpf(float(grad[b, h, i, c])) * number
            for (b, h, i), mixed, _ in exact(call, CausalAlignment.UPPER_LEFT, shift)
            for c, number in enumerate(mixed)
        )

    step = mpmath.mpf(10) ** -24
    generator = torch.Generator().manual_seed(seed)
    with mpmath.workdps(90):
        for name in ("query", "key", "value", "attn_mask"):
            gradient = getattr(expected, name)
            if gradient is None:
                continue
            assert bool(gradient.bound.isfinite().all())
            places = list(itertools.product(*map(range, gradient.exact.shape)))
            for n in torch.randperm(len(places), generator=generator)[:6].tolist():
                if float(getattr(call, name)[places[n]]) == -INF:
                    assert gradient.exact[places[n]] == 0
                    continue
                above, below = loss({(name, places[n]): step}), loss({(name, places[n]): -step})
                slope = (above - below) / (2 * step)
                distance = abs(mpmath.mpf(float(gradient.exact[places[n]])) - slope)
                assert distance <= float(gradient.bound[places[n]]) / 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alignment=st.sampled_from(CausalAlignment),
    empty_row=st.sampled_from(EmptyRow),
)
def test_the_three_definitions_agree(seed, alignment, empty_row):
    call = draw_call(seed, torch.float32, longest=12).call
    profile = Profile(causal_alignment=alignment, empty_row=empty_row)
    one, two = expect(call, profile), expect_numpy(call, profile)
    three, lse = scaled_dot_product_attention(
        call.query.double(),
        call.key.double(),
        call.value.double(),
        **{name: _as_wide(name, each) for name, each in call.keywords().items()},
        causal_alignment=alignment,
        empty_row=empty_row,
    )
    for out, other_lse in ((two.out, two.lse), (three, lse)):
        torch.testing.assert_close(one.out, out, rtol=1e-9, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(one.lse, other_lse, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert torch.equal(one.bound, two.bound)


def _as_wide(name, value):
    is_number = isinstance(value, torch.Tensor) and value.dtype != torch.bool
    return value.double() if is_number else value


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(0, 9),
    keys=st.integers(0, 9),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.tuples(*[st.one_of(st.none(), st.integers(0, 5))] * 2)),
    alignment=st.sampled_from(CausalAlignment),
)
def test_rows_read_what_the_reference_lets_them_read(queries, keys, causal, window, alignment):
    slopes = torch.tensor([0.5, 2.0], dtype=torch.float64)
    call = plain(queries, keys, is_causal=causal, window=window, alibi_slopes=slopes)
    visible, _ = visible_keys(queries, keys, is_causal=causal, window=window, alignment=alignment)
    profile = Profile(causal_alignment=alignment)
    chosen = torch.arange(queries).flip(0)
    rows = rows_of(call, profile, chosen)
    assert torch.equal(rows.visible[0, 0], visible[chosen])
    assert torch.equal(rows.alibi[0], alibi(slopes, queries, keys, alignment)[:, chosen])


@ORACLES
@pytest.mark.parametrize("seed", range(12))
def test_a_call_may_be_cut_into_rows(oracle_of, seed, monkeypatch):
    call = draw_call(seed, torch.float32, longest=20).call
    profile = LOWER_RIGHT
    whole = oracle_of(call, profile)
    monkeypatch.setattr(oracle, "SCORES_AT_ONCE", 1)
    cut = oracle_of(call, profile)
    queries = call.query.shape[2]
    chosen = torch.tensor([queries - 1, 0, queries // 2])
    some = oracle_of(call, profile, rows=chosen)
    for name in ("out", "bound", "lse", "lse_bound", "visible", "weights"):
        there = getattr(whole, name)
        for other, here in ((cut, there), (some, there[:, :, chosen])):
            if there.dtype == torch.bool:
                assert torch.equal(getattr(other, name), here)
            else:
                torch.testing.assert_close(getattr(other, name), here, rtol=1e-6, atol=1e-300)


def test_sampled_rows_of_a_long_call_need_little_memory():
    keys = 131_072
    call = Call(
        query=normal(1, 1, keys, 8).float(),
        key=normal(1, 1, keys, 8, seed=1).float(),
        value=normal(1, 1, keys, 8, seed=2).float(),
        is_causal=True,
    )
    rows = torch.tensor([0, 17, keys // 2, keys - 1])
    expected = expect(call, Profile(), rows=rows)
    assert expected.out.shape == (1, 1, 4, 8)
    torch.testing.assert_close(expected.out[0, 0, 0], call.value[0, 0, 0].double())
    last = torch.softmax(
        call.query[0, 0, -1].double() @ call.key[0, 0].double().T / math.sqrt(8), -1
    )
    torch.testing.assert_close(expected.out[0, 0, 3], last @ call.value[0, 0].double())
    assert float(expected.bound.max()) < 0.1


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
