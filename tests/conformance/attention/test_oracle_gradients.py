"""The oracle and the bound of the gradients."""

import itertools
import math

import pytest
import torch

from attnspec.conformance.attention import oracle_gradients
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.evidence.soundness.cases import draw_call
from attnspec.conformance.evidence.soundness.measure import DTYPES
from attnspec.conformance.evidence.soundness.tiles import Fused
from attnspec.conformance.evidence.soundness.variants import attention
from attnspec.spec import (
    CausalAlignment,
    EmptyRow,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
NAN, INF = float("nan"), float("inf")
TILED = attention(Fused())
NAMES = ("query", "key", "value", "attn_mask")
QUERIES, KEYS, D = 24, 30, 32


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def drawn(dtype=F64, heads=4, kv_heads=2, **options):
    """Return a call with a group of heads, and an incoming gradient."""
    call = Call(
        query=(2 * normal(1, heads, QUERIES, D, seed=1)).to(dtype),
        key=normal(1, kv_heads, KEYS, D, seed=2).to(dtype),
        value=normal(1, kv_heads, KEYS, D, seed=3).to(dtype),
        **options,
    )
    return call, normal(1, heads, QUERIES, D, seed=4).to(dtype)


def check(call, grad, gradients, profile=None):
    expected = expect_gradients(call, grad, profile or Profile())
    for name in NAMES:
        gradient = getattr(expected, name)
        if gradient is not None:
            check_close(
                gradients[name],
                gradient.exact,
                gradient.bound,
                what=f"gradient of {name}",
                message="wrong",
            )


def as_float64(call):
    wide = {
        name: value.double()
        for name, value in vars(call).items()
        if isinstance(value, torch.Tensor) and value.dtype != torch.bool
    }
    return call.but(**wide)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("alignment", CausalAlignment)
def test_formula_and_reference_agree(seed, alignment):
    drawn_call = draw_call(seed, F32, longest=40)
    call, grad = as_float64(drawn_call.call), drawn_call.grad.double()
    profile = Profile(causal_alignment=alignment)
    one = expect_gradients(call, grad, profile)
    two = expect_gradients(call, grad, profile, by_formula=True)
    for name in NAMES:
        left, right = getattr(one, name), getattr(two, name)
        if left is None:
            assert right is None
            continue
        assert left.exact.shape == left.bound.shape == getattr(call, name).shape
        check_close(left.exact, right.exact, left.bound, what=name, message="they differ")
        torch.testing.assert_close(left.bound, right.bound, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(8))
def test_a_call_may_be_split_into_rows(seed, monkeypatch):
    drawn_call = draw_call(seed, F32, longest=20)
    whole = expect_gradients(drawn_call.call, drawn_call.grad, Profile())
    monkeypatch.setattr(oracle_gradients, "SCORES_AT_ONCE", 1)
    split = expect_gradients(drawn_call.call, drawn_call.grad, Profile())
    for name in NAMES:
        one, two = getattr(whole, name), getattr(split, name)
        if one is not None:
            check_close(one.exact, two.exact, one.bound * 1e-6, what=name, message="they differ")
            torch.testing.assert_close(one.bound, two.bound, rtol=1e-6, atol=1e-300)


def without_delta(call, grad, gradients):
    results = TILED(call.but(value=call.value), grad)
    scores = torch.softmax(
        call.query.double() @ call.key.double().repeat_interleave(2, 1).mT / math.sqrt(D), -1
    )
    d_weights = grad.double() @ call.value.double().repeat_interleave(2, 1).mT
    d_scores = scores * d_weights
    key = call.key.double().repeat_interleave(2, 1)
    return results | {"query": (d_scores @ key / math.sqrt(D)).to(call.query.dtype)}


MISTAKES = {
    "the row's mean is not subtracted": without_delta,
    "scale 10 % too large": lambda call, grad, gradients: (
        gradients | {"key": gradients["key"] * 1.1}
    ),
    "scale missing": lambda call, grad, gradients: (
        gradients | {"query": gradients["query"] * math.sqrt(D)}
    ),
    "one head of each group missing": lambda call, grad, gradients: (
        gradients
        | {"value": TILED(call, grad * torch.tensor([1, 0, 1, 0.0])[:, None, None])["value"]}
    ),
    "groups in the wrong order": lambda call, grad, gradients: (
        gradients | {"key": gradients["key"].flip(1)}
    ),
    "last query missing": lambda call, grad, gradients: (
        gradients
        | {"value": TILED(call, grad * (torch.arange(QUERIES) < QUERIES - 1)[:, None])["value"]}
    ),
    "one wrong number": lambda call, grad, gradients: (
        gradients | {"query": gradients["query"].index_fill(2, torch.tensor([5]), 0.0)}
    ),
    "dK and dV exchanged": lambda call, grad, gradients: (
        gradients | {"key": gradients["value"], "value": gradients["key"]}
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_exceeds_the_bound(mistake, dtype):
    call, grad = drawn(dtype)
    gradients = TILED(call, grad)
    check(call, grad, gradients)
    with pytest.raises(Violation, match="gradient of"):
        check(call, grad, MISTAKES[mistake](call, grad.to(dtype), gradients))


FEATURES = {
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": 3 + normal(4, seed=8)},
    "slopes": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0], dtype=F64)},
    "causal": {"is_causal": True},
    "window": {"window": (3, 2)},
    "bias": {"attn_mask": normal(QUERIES, KEYS, seed=9)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_left_out_of_the_backward_pass_exceeds_the_bound(feature, dtype):
    options = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) else value
        for name, value in FEATURES[feature].items()
    }
    call, grad = drawn(dtype, **options)
    right = TILED(call, grad)
    check(call, grad, right)
    missing = {"window": (4, 2)} if feature == "window" else dict.fromkeys(options)
    wrong = TILED(call.but(**missing | ({"is_causal": False} if feature == "causal" else {})), grad)
    for name in ("query", "key", "value"):
        with pytest.raises(Violation, match=f"gradient of {name}"):
            check(call, grad, right | {name: wrong[name]})


SHAPES = [
    shape
    for rank in (2, 3, 4)
    for shape in itertools.product(*[(1, size) for size in (2, 4, 5, 6)[4 - rank :]])
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_a_broadcast_mask_is_summed(shape):
    call = Call(
        query=normal(2, 4, 5, 3, seed=1),
        key=normal(2, 2, 6, 3, seed=2),
        value=normal(2, 2, 6, 3, seed=3),
        attn_mask=normal(*shape, seed=4),
    )
    grad = normal(2, 4, 5, 3, seed=5)
    whole = expect_gradients(call.but(attn_mask=call.attn_mask.expand(2, 4, 5, 6)), grad, Profile())
    part = expect_gradients(call, grad, Profile()).attn_mask
    lead = (1,) * (4 - len(shape)) + shape
    spread = [axis for axis in range(4) if lead[axis] == 1]
    total = whole.attn_mask.exact
    total = (total.sum(spread, keepdim=True) if spread else total).reshape(shape)
    assert part.exact.shape == part.bound.shape == shape
    torch.testing.assert_close(part.exact, total, rtol=1e-12, atol=1e-14)
    assert bool((part.bound < 1e-11).all())
    check(call, grad, TILED(call, grad))


@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_keys_have_no_gradient(dtype):
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[:, 7] = False
    call, grad = drawn(dtype, attn_mask=mask)
    expected = expect_gradients(call, grad, Profile())
    for gradient in (expected.key, expected.value):
        assert bool((gradient.exact[:, :, 7] == 0).all())
        assert float(gradient.bound[:, :, 7].max()) < 1e-6
    leak = TILED(call, grad)
    check(call, grad, leak)
    leak["value"][:, :, 7] = 1e-5
    with pytest.raises(Violation, match="query 7"):
        check(call, grad, leak)


def test_empty_rows_add_nothing():
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[3] = False
    call, grad = drawn(attn_mask=mask)
    expected = expect_gradients(call, grad, Profile())
    assert bool((expected.query.exact[:, :, 3] == 0).all())
    assert float(expected.query.bound[:, :, 3].max()) < 1e-290
    silenced = grad.clone()
    silenced[:, :, 3] = 0
    assert torch.equal(
        expect_gradients(call, silenced, Profile()).value.exact, expected.value.exact
    )
    for empty_row in (EmptyRow.MEAN, EmptyRow.NAN):
        other = expect_gradients(call, grad, Profile(empty_row=empty_row))
        assert other.query.bound.isinf().all(-1)[0, 0].nonzero().flatten().tolist() == [3]
        assert bool(other.value.bound.isinf().all())


@pytest.mark.parametrize("by_formula", [False, True])
def test_nan_at_a_hidden_key_changes_nothing(by_formula):
    call, grad = drawn(attn_mask=torch.arange(KEYS).expand(QUERIES, KEYS) != 7)
    clean = expect_gradients(call, grad, Profile(), by_formula=by_formula)
    for poison in (NAN, INF, -INF, 1e300):
        key, value = call.key.clone(), call.value.clone()
        key[:, :, 7], value[:, :, 7] = poison, poison
        changed = call.but(key=key, value=value)
        gradients = expect_gradients(changed, grad, Profile(), by_formula=by_formula)
        for name in ("query", "key", "value"):
            one, two = getattr(gradients, name), getattr(clean, name)
            assert torch.equal(one.exact, two.exact)
            assert torch.equal(one.bound, two.bound)
            assert one.may_be_nan is None
    propagates = Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    )
    key = call.key.clone()
    key[0, 0, 7] = NAN
    gradients = expect_gradients(call.but(key=key), grad, propagates)
    assert gradients.query.may_be_nan[0, :, 0, 0].tolist() == [True, True, False, False]
    assert gradients.key.may_be_nan[0, :, 0, 0].tolist() == [True, False]
    assert bool(gradients.query.bound.isfinite().all())


def test_an_unread_value_may_overflow_with_the_incoming_gradient():
    call, grad = drawn(is_causal=True)
    grad[:, :, 20:] = 0  # of the rows that read the large value
    clean = expect_gradients(call, grad * 1e10, Profile())
    value = call.value.clone()
    value[:, :, 20] = 1e308
    gradients = expect_gradients(call.but(value=value), grad * 1e10, Profile())
    for name in ("query", "key", "value"):
        one, two = getattr(gradients, name), getattr(clean, name)
        assert bool(((one.exact - two.exact).abs() <= two.bound).all())


def test_nan_at_a_visible_key_is_undefined_in_the_rows_that_read_it():
    call, grad = drawn(is_causal=True)
    key = call.key.clone()
    key[0, 0, 20, 3] = NAN
    gradients = expect_gradients(call.but(key=key), grad, Profile())
    rows = gradients.query.bound.isinf().any(-1)
    assert rows[0, 0].nonzero().flatten().tolist() == [20, 21, 22, 23]
    assert rows[0, 1].nonzero().flatten().tolist() == [20, 21, 22, 23]
    assert not bool(rows[0, 2:].any())
    keys = gradients.key.bound.isinf().any(-1)
    assert keys[0, 0].nonzero().flatten().tolist() == list(range(24))
    assert not bool(keys[0, 1].any())
    for gradient in (gradients.query, gradients.key, gradients.value):
        assert bool(gradient.exact.isfinite().all())
    query = call.query.clone()
    query[0, 3, 5] = INF
    gradients = expect_gradients(call.but(query=query), grad, Profile())
    assert gradients.query.bound.isinf().any(-1).nonzero().tolist() == [[0, 3, 5]]
    assert bool(gradients.key.bound[0, 1].isinf().all())
    assert bool(gradients.key.bound[0, 0].isfinite().all())
    strange = grad.clone()
    strange[0, 0, 2, 1] = NAN
    gradients = expect_gradients(call, strange, Profile())
    assert gradients.query.bound.isinf().any(-1).nonzero().tolist() == [[0, 0, 2]]


def test_scores_out_of_range_promise_nothing_of_the_keys_that_they_read():
    call, grad = drawn(F32, is_causal=True)
    query = call.query.clone()
    query[0, 0, 3] = 2e38
    gradients = expect_gradients(call.but(query=query), grad, Profile())
    assert gradients.query.bound.isinf().any(-1).nonzero().tolist() == [[0, 0, 3]]
    read = gradients.value.bound.isinf().any(-1)
    assert read.nonzero().tolist() == [[0, 0, j] for j in range(4)]


def test_score_gradients_must_fit_the_storage_type():
    call, grad = drawn(F16)
    large = expect_gradients(call.but(value=call.value * 16), grad * 2**13, Profile())
    assert bool(large.query.bound.isinf().any())
    assert bool(expect_gradients(call, grad, Profile()).query.bound.isfinite().all())


@pytest.mark.parametrize("level", [RoundingLevel.FUSED, RoundingLevel.EAGER])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_each_head_of_a_group_may_underflow(group, level):
    half = 2.0**-24
    call = Call(
        query=torch.zeros(1, group, 1, 1, dtype=F16),
        key=torch.zeros(1, 1, 2, 1, dtype=F16),
        value=torch.zeros(1, 1, 2, 1, dtype=F16),
    )
    grad = torch.full((1, group, 1, 1), half, dtype=F16)
    profile = Profile(rounding=Rounding(level=level))
    value = expect_gradients(call, grad, profile).value
    rounded_by_head = torch.full((1, group, 1, 1), half / 2).to(F16)
    assert bool((rounded_by_head == 0).all())
    assert float(value.exact[0, 0, 0]) == group * half / 2
    assert bool((value.exact <= value.bound).all())
    # no wider than a few roundings of each head
    assert float(value.bound.max()) <= (4 * group + 6) * half / 2


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_levels_and_partial_writes_widen_the_bound(dtype):
    call, grad = drawn(dtype, softcap=5.0)
    once = expect_gradients(call, grad, Profile())
    roundings = {
        "query": Rounding(partial_writes=lambda queries, keys, group: (4, 1)),
        "key": Rounding(partial_writes=lambda queries, keys, group: (1, 4)),
        "value": Rounding(partial_writes=lambda queries, keys, group: (1, 4)),
    }
    for name, rounding in roundings.items():
        more = expect_gradients(call, grad, Profile(rounding=rounding))
        assert float(getattr(more, name).bound.sum()) > 1.05 * float(
            getattr(once, name).bound.sum()
        )
    eager = expect_gradients(call, grad, Profile(rounding=Rounding(level=RoundingLevel.EAGER)))
    for name in ("query", "key", "value"):
        assert bool((getattr(eager, name).bound >= getattr(once, name).bound).all())


@pytest.mark.parametrize(
    ("dtype", "widths"),
    [
        (BF16, (0.12, 0.3, 0.03)),
        (F16, (0.015, 0.04, 0.004)),
        (F32, (5e-4, 1e-3, 3e-4)),
        (F64, (2e-12, 4e-12, 1e-12)),
    ],
)
def test_the_bound_is_narrow(dtype, widths):
    call, grad = drawn(dtype)
    call = call.but(query=call.query / 2)
    expected = expect_gradients(call, grad, Profile())
    for name, width in zip(("query", "key", "value"), widths, strict=True):
        gradient = getattr(expected, name)
        assert float(gradient.bound.max() / gradient.exact.abs().max()) < width


def test_lengths_of_zero():
    for queries, keys in ((0, 3), (3, 0), (0, 0)):
        call = Call(
            query=normal(1, 2, queries, 4),
            key=normal(1, 1, keys, 4),
            value=normal(1, 1, keys, 4),
            attn_mask=normal(queries, keys),
        )
        expected = expect_gradients(call, normal(1, 2, queries, 4), Profile())
        for name in NAMES:
            gradient = getattr(expected, name)
            assert gradient.exact.shape == getattr(call, name).shape
            assert not bool(gradient.exact.any())
            assert bool(gradient.bound.isfinite().all())


def test_dropout_has_no_expected_gradient():
    call, grad = drawn(dropout_p=0.5)
    with pytest.raises(ValueError, match="dropout"):
        expect_gradients(call, grad, Profile())
