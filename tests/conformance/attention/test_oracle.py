"""The oracle: checked against 50-digit arithmetic, and independent of the chunks of rows."""

import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnspec.conformance.attention import oracle
from attnspec.conformance.attention.bounds.rows import rows_of
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import expect, expect_scalar
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.evidence.soundness.cases import draw_call
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.masks import alibi, visible_keys
from attnspec.spec import CausalAlignment, CausalSingleQuery, EmptyRow, Profile

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


def exact(call, alignment, shift=None):
    """Yield (index, out, lse) of each row in 50 digits, straight from the contract.

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
    """Draw small calls with every feature, alone and together."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    call = draw_call(draw(st.integers(0, 10**6)), dtype, longest=6).call
    queries = min(call.query.shape[2], 5)
    mask = call.attn_mask
    if mask is not None and mask.shape[-2] > queries:
        mask = mask[..., :queries, :]
    return call.but(query=call.query[:, :, :queries, :], attn_mask=mask)


@pytest.mark.rotating(parts=4)
@ORACLES
@settings(max_examples=120, deadline=None)
@given(call=small_calls(), alignment=st.sampled_from(CausalAlignment))
def test_oracle_is_within_its_own_bound_of_fifty_digits(oracle_of, call, alignment):
    # the tolerance in float64 is twice the bound: one for the oracle, one for the implementation
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
    """Return the same call in float64."""
    return Call(**{name: _as_wide(value) for name, value in vars(call).items()})


@pytest.mark.rotating(parts=4)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), by_formula=st.booleans())
@example(seed=1236, by_formula=False)  # a weight of 1e-115
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
        attn_mask=None if mask is None else _as_wide(mask[:1] if mask.ndim == 4 else mask),
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
    # a weight of 1e-320 must not vanish in a difference beside the sum of its row
    with mpmath.workdps(320 + 24 + 50):
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
    one, two = expect(call, profile), expect_scalar(call, profile)
    three, lse = scaled_dot_product_attention(
        call.query.double(),
        call.key.double(),
        call.value.double(),
        **{name: _as_wide(value) for name, value in call.keywords().items()},
        causal_alignment=alignment,
        empty_row=empty_row,
    )
    for out, other_lse in ((two.out, two.lse), (three, lse)):
        torch.testing.assert_close(one.out, out, rtol=1e-9, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(one.lse, other_lse, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert torch.equal(one.bound, two.bound)


ANSWERS = st.sampled_from(EmptyRow)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    by_position=ANSWERS,
    by_bool=ANSWERS,
    by_float=ANSWERS,
    single=st.sampled_from(CausalSingleQuery),
)
def test_the_definitions_agree_on_each_way_to_hide_keys(
    seed, by_position, by_bool, by_float, single
):
    call = draw_call(seed, torch.float32, longest=5).call
    profile = Profile(
        causal_single_query=single,
        empty_row=by_position,
        empty_row_bool_mask=by_bool,
        empty_row_float_mask=by_float,
    )
    one, two = expect(call, profile), expect_scalar(call, profile)
    torch.testing.assert_close(one.out, two.out, rtol=1e-9, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(one.lse, two.lse, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert torch.equal(one.bound, two.bound)


def call_with_empty_rows(mask, **options):
    query = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    return Call(query=query, key=query, value=query * 2, attn_mask=mask, **options)


def test_a_row_is_as_the_profile_says_of_the_way_that_empties_it():
    hides = torch.tensor([[False] * 3, [True] * 3, [True] * 3])
    profile = Profile(empty_row_bool_mask=EmptyRow.MEAN, empty_row_float_mask=EmptyRow.NAN)
    expected = expect(call_with_empty_rows(hides), profile)
    assert expected.out[0, 0, :, 0].tolist() == [2.0, 2.0, 2.0]
    additive = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~hides, -torch.inf)
    expected = expect(call_with_empty_rows(additive), profile)
    assert expected.out[0, 0, 0].isnan().all()
    assert (expected.bound[0, 0, 0] == 0).all()
    expected = expect(call_with_empty_rows(None, window=(0, 0)), profile)
    assert expected.out[0, 0, :, 0].tolist() == [2.0, 2.0, 2.0]


def test_a_row_is_undefined_if_two_ways_that_disagree_empty_it():
    hides = torch.tensor([[False, True, True], [True] * 3, [True] * 3])
    call = call_with_empty_rows(hides, is_causal=True)
    assert (expect(call, Profile()).bound[0, 0, 0] < 1e-30).all()
    undefined = expect(call, Profile(empty_row_bool_mask=EmptyRow.NAN))
    assert (undefined.bound[0, 0, 0] == torch.inf).all()
    assert (undefined.bound[0, 0, 1:] < 1e-10).all()


def test_a_single_query_reads_what_the_profile_says():
    query = torch.ones(1, 1, 1, 2, dtype=torch.float64)
    key = torch.ones(1, 1, 4, 2, dtype=torch.float64)
    value = torch.arange(4.0, dtype=torch.float64)[None, None, :, None]
    call = Call(query=query, key=key, value=value, is_causal=True)
    assert expect(call, Profile()).out.item() == 0
    ignored = Profile(causal_single_query=CausalSingleQuery.IGNORED)
    assert expect(call, ignored).out.item() == 1.5
    assert expect_scalar(call, ignored).out.item() == 1.5


def _as_wide(value):
    is_float = isinstance(value, torch.Tensor) and value.dtype != torch.bool
    return value.double() if is_float else value


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(0, 9),
    keys=st.integers(0, 9),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.tuples(*[st.one_of(st.none(), st.integers(0, 5))] * 2)),
    alignment=st.sampled_from(CausalAlignment),
)
def test_rows_read_the_same_keys_as_the_reference(queries, keys, causal, window, alignment):
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
def test_a_call_may_be_split_into_rows(oracle_of, seed, monkeypatch):
    call = draw_call(seed, torch.float32, longest=20).call
    profile = LOWER_RIGHT
    whole = oracle_of(call, profile)
    monkeypatch.setattr(oracle, "SCORES_AT_ONCE", 1)
    split = oracle_of(call, profile)
    queries = call.query.shape[2]
    chosen = torch.tensor([queries - 1, 0, queries // 2])
    sampled = oracle_of(call, profile, rows=chosen)
    for name in ("out", "bound", "lse", "lse_bound", "visible", "weights"):
        exact = getattr(whole, name)
        for result, expected in ((split, exact), (sampled, exact[:, :, chosen])):
            if exact.dtype == torch.bool:
                assert torch.equal(getattr(result, name), expected)
            else:
                torch.testing.assert_close(getattr(result, name), expected, rtol=1e-6, atol=1e-300)


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
