"""The forward bound: no correct computation exceeds it, and small mistakes do."""

import math

import pytest
import torch

from attnspec.conformance.attention.bounds.roundoff import Roundoff, inverse, theta
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.evidence.soundness.measure import DTYPES, measure
from attnspec.conformance.evidence.soundness.report import KINDS
from attnspec.conformance.evidence.soundness.tiles import Fused
from attnspec.conformance.evidence.soundness.variants import VARIANTS, attention
from attnspec.spec import Profile, Rounding, RoundingLevel

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
QUERIES, KEYS, D = 40, 50, 64


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64)


def one_hot_call(dtype, seed=0, **options):
    """Return a call that shows single weights: scores of standard deviation 3, one-hot values."""
    value = torch.eye(KEYS, D, dtype=F64)[None, None]
    return Call(
        query=(3 * normal(1, 2, QUERIES, D, seed=seed)).to(dtype),
        key=normal(1, 2, KEYS, D, seed=seed + 1).to(dtype),
        value=value.expand(1, 2, KEYS, D).to(dtype),
        **options,
    )


def run(call):
    return attention(Fused())(call, None)


def passes(call, results, profile=None):
    expected = expect(call, profile or Profile())
    for name, exact, bound in (
        ("out", expected.out, expected.bound),
        ("lse", expected.lse, expected.lse_bound),
    ):
        check_close(results[name], exact, bound, what=name, message="wrong")


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_correct_variant_exceeds_its_bound(dtype):
    count = measure(range(7000, 7016), [dtype], longest=100)
    failures = [failure for used in count.values() for failure in used.exceeded]
    assert not failures, "\n".join(failures)
    tried = {name for _, name, _ in count}
    if dtype in (F16, BF16):
        assert tried == {variant.name for variant in VARIANTS}
    for expected_kind in KINDS:
        worst = max(
            max(used.shares) for (kind, _, _), used in count.items() if kind == expected_kind
        )
        assert worst > (0.1 if dtype in (F16, BF16) else 0.002), f"{expected_kind}: far too wide"


def causal(offset=0):
    return torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(offset)


def hide(*hidden):
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[:, list(hidden)] = False
    return mask


def swapped(tensor):
    order = list(range(KEYS))
    order[20], order[21] = order[21], order[20]
    return tensor[:, :, order]


SINKS = torch.tensor([0.5, 1.5])
SLOPES = torch.tensor([0.5, 0.125])
BIAS = normal(QUERIES, KEYS, seed=9)

MISTAKES = {
    "scale 1 % too large": ({"scale": 0.125}, lambda call: call.but(scale=0.12625)),
    "scale 1/√(d + 1)": ({}, lambda call: call.but(scale=1 / math.sqrt(D + 1))),
    "one key too many": ({"attn_mask": causal()}, lambda call: call.but(attn_mask=causal(1))),
    "one key too few": ({"attn_mask": causal(1)}, lambda call: call.but(attn_mask=causal())),
    "last key dropped": ({}, lambda call: call.but(attn_mask=hide(KEYS - 1))),
    "a hidden key leaks": (
        {"attn_mask": hide(7, 8)},
        lambda call: call.but(attn_mask=hide(8)),
    ),
    "hidden keys at -10": (
        {"attn_mask": hide(*range(20, 40))},
        lambda call: call.but(attn_mask=(~hide(*range(20, 40))).to(call.query.dtype) * -10),
    ),
    "two values swapped": ({}, lambda call: call.but(value=swapped(call.value))),
    "two keys swapped": ({}, lambda call: call.but(key=swapped(call.key))),
    "bias scaled": (
        {"attn_mask": BIAS},
        lambda call: call.but(attn_mask=call.attn_mask * 0.125),
    ),
    "no softcap": ({"softcap": 20.0}, lambda call: call.but(softcap=None)),
    "softcap 2 % too large": ({"softcap": 5.0}, lambda call: call.but(softcap=5.1)),
    "no sinks": ({"sinks": SINKS}, lambda call: call.but(sinks=None)),
    "sinks of other heads": ({"sinks": SINKS}, lambda call: call.but(sinks=SINKS.flip(0))),
    "no slopes": ({"alibi_slopes": SLOPES}, lambda call: call.but(alibi_slopes=None)),
    "slopes 2 % too steep": (
        {"alibi_slopes": SLOPES},
        lambda call: call.but(alibi_slopes=SLOPES * 1.02),
    ),
    "window one key too wide": ({"window": (3, 3)}, lambda call: call.but(window=(4, 3))),
}


def stored(options, dtype):
    is_tensor = {name: isinstance(value, torch.Tensor) for name, value in options.items()}
    return {
        name: value.to(dtype) if is_tensor[name] and value.dtype != torch.bool else value
        for name, value in options.items()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_small_mistake_exceeds_the_bound(mistake, dtype):
    options, spoil = MISTAKES[mistake]
    call = one_hot_call(dtype, **stored(options, dtype))
    passes(call, run(call))
    with pytest.raises(Violation, match="out at"):
        passes(call, run(spoil(call)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_log_sum_exp_exceeds_its_bound(dtype):
    call = one_hot_call(dtype)
    results = run(call)
    wrongs = {
        "base 2": lambda lse: lse * math.log2(math.e),
        "off by 0.1 %": lambda lse: lse * 1.001,
        "without the maximum": lambda lse: lse - lse.floor(),
    }
    for wrong in wrongs.values():
        with pytest.raises(Violation, match="lse at"):
            passes(call, results | {"lse": wrong(results["lse"])})


@pytest.mark.parametrize(
    ("dtype", "width"), [(BF16, 0.012), (F16, 0.0016), (F32, 2e-4), (F64, 6e-13)]
)
def test_the_bound_is_narrow(dtype, width):
    call = one_hot_call(dtype).but(value=normal(1, 2, KEYS, D, seed=5).to(dtype))
    expected = expect(call, Profile())
    assert float(expected.bound.max() / expected.out.abs().max()) < width


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_levels_widen_the_bound(dtype):
    call = one_hot_call(dtype, softcap=20.0, sinks=SINKS, alibi_slopes=SLOPES)
    bounds = {
        level: expect(call, Profile(rounding=Rounding(level=level))).bound
        for level in RoundingLevel
    }
    fused = bounds[RoundingLevel.FUSED]
    for level in (RoundingLevel.PRESCALED, RoundingLevel.ROWSUM):
        assert bool((fused <= bounds[level]).all())
        assert bool((bounds[level] <= bounds[RoundingLevel.EAGER]).all())
        assert float(bounds[level].sum()) > 1.01 * float(fused.sum())


@pytest.mark.parametrize(
    "rounding",
    [Rounding(accumulator=2.0**-20), Rounding(exp_error=1e5), Rounding(tanh_error=1e5)],
)
def test_declared_errors_widen_the_bound(rounding):
    call = one_hot_call(F32, softcap=20.0)
    once, more = expect(call, Profile()), expect(call, Profile(rounding=rounding))
    assert float(more.bound.sum()) > 2 * float(once.bound.sum())
    assert float(more.lse_bound.sum()) > 2 * float(once.lse_bound.sum())


class Coarse(Fused):
    """An attention whose exponentials are wrong by up to one part in a thousand."""

    def exp(self, scores, shift):
        right = super().exp(scores, shift)
        return right * (1 + 1e-3 * (1e4 * right).sin())


def test_a_coarse_exponential_is_within_what_it_declares():
    call = one_hot_call(F32)
    results = attention(Coarse())(call, None)
    passes(call, results, Profile(rounding=Rounding(exp_error=1e-3 * 2**24)))
    with pytest.raises(Violation):
        passes(call, results)


def test_weights_that_vanish_in_the_oracle_may_be_large_in_an_implementation():
    # scores of ±1e10 cancel exactly, but not in float32: any of these weights can come out as 1
    query = torch.tensor([[1e4, 1e4]], dtype=F32)[None, None]
    key = torch.tensor([[1e6, -1e6 - 0.5], [1e6, -1e6 + 0.5]], dtype=F32)[None, None]
    value = torch.tensor([[0.0], [1.0]], dtype=F32)[None, None]
    call = Call(query=query, key=key, value=value, scale=1.0)
    expected = expect(call, Profile())
    assert float(expected.weights.min()) == 0
    assert 0.99 < float(expected.bound.max()) < 1.01
    assert math.isfinite(float(expected.lse_bound))


def test_large_values_of_keys_that_are_not_read_do_not_widen_the_bound():
    mask = hide(49)
    call = one_hot_call(F32, attn_mask=mask)
    value = call.value.clone()
    value[:, :, 49] = 3e38
    assert torch.equal(
        expect(call.but(value=value), Profile()).bound, expect(call, Profile()).bound
    )


def test_scores_out_of_range_promise_nothing_in_their_row_alone():
    call = one_hot_call(F32)
    query = call.query.clone()
    query[0, 0, 3] = 1e38
    bound = expect(call.but(query=query), Profile()).bound
    assert bound.isinf().any(-1).nonzero().tolist() == [[0, 0, 3]]
    key = call.key.clone()
    key[0, 1, 49] = 3e38
    hidden = expect(call.but(key=key, attn_mask=hide(49)), Profile()).bound
    assert bool(hidden.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_finite_mask_is_in_range(dtype):
    mask = torch.zeros(QUERIES, KEYS, dtype=dtype)
    mask[:, 30:] = torch.finfo(dtype).min
    call = one_hot_call(dtype, attn_mask=mask)
    for level in RoundingLevel:
        expected = expect(call, Profile(rounding=Rounding(level=level)))
        assert bool(expected.bound.isfinite().all()), level
        if level is not RoundingLevel.EAGER:
            assert float(expected.bound.max()) < 0.1, level
    passes(call, run(call))


def test_at_level_eager_scores_must_fit_the_storage_type():
    call = one_hot_call(F16)
    query = call.query.clone()
    query[0, 0, 3] = 3e4
    fused = expect(call.but(query=query), Profile()).bound
    assert bool(fused.isfinite().all())
    eager = expect(call.but(query=query), Profile(rounding=Rounding(level=RoundingLevel.EAGER)))
    assert eager.bound.isinf().all(-1).nonzero().tolist() == [[0, 0, 3]]


def test_values_whose_sums_overflow_promise_nothing():
    value = torch.full((1, 1, 8, 2), 3e38, dtype=F32)
    value[..., 1] = 1.0
    call = Call(query=torch.zeros(1, 1, 1, 4), key=torch.zeros(1, 1, 8, 4), value=value)
    bound = expect(call, Profile()).bound
    assert bound.isinf().tolist() == [[[[True, False]]]]


def test_theta_and_inverse():
    assert theta(0, 0.1) == 0
    assert theta(2, 0.1) == pytest.approx(0.21)
    assert theta(1e6, 2**-53) == pytest.approx(1e6 * 2**-53, rel=1e-9)
    assert inverse(0.5) == 1
    assert math.isfinite(inverse(1.0))
    assert inverse(1.0) > 1e20


def test_a_dtype_without_a_bound_is_named():
    with pytest.raises(ValueError, match="float8"):
        Roundoff.of(torch.float8_e4m3fn, Profile())


def two_keys(dtype, offset, seed, value=1.0):
    """Return a call of one channel whose two scores lie about an offset, a few units apart."""
    query = offset + 5 * normal(1, 1, 64, 1, seed=seed)
    key = torch.tensor([1.0, 1.04], dtype=F64)[None, None, :, None]
    values = value + normal(1, 1, 2, 4, seed=seed + 1)
    return Call(query=query.to(dtype), key=key.to(dtype), value=values.to(dtype), scale=1.0)


def share(call, results):
    expected = expect(call, Profile())
    return float(((results["out"].double() - expected.out).abs() / expected.bound).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base2", [False, True])
def test_parts_that_are_merged_by_a_rounded_log_sum_exp_are_within_the_bound(base2, dtype):
    split = attention(Fused(tile=1, splits=2, shares_of_lse=True, base2=base2))
    shares = []
    for seed, offset in enumerate((120.0, -120.0, 500.0, 30.0, 0.0, 1000.0)):
        for value in (0.0, 1.0):
            call = two_keys(dtype, offset, seed, value)
            results = split(call, None)
            passes(call, results)
            shares.append(share(call, results))
    assert max(shares) > 0.05, "the bound is far too wide"


class LogSumExpsInStorage(Fused):
    """A mistake: the log-sum-exps of parts are rounded to the storage type."""

    def merge(self, outs, lses):
        return super().merge(outs, tuple(self.store(lse) for lse in lses))


class PartsOfOneWeight(Fused):
    """A mistake: parts are averaged."""

    def merge(self, outs, lses):
        out, lse = super().merge(outs, lses)
        return torch.stack(outs).mean(0).where(lse[..., None] > -torch.inf, out), lse


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_log_sum_exps_of_parts_are_not_rounded_to_the_storage_type(dtype):
    wrong = attention(LogSumExpsInStorage(tile=1, splits=2, shares_of_lse=True))
    call = two_keys(dtype, 120.0, 0, value=1.0)
    assert share(call, wrong(call, None)) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_that_are_merged_wrongly_exceed_the_bound(dtype):
    wrong = attention(PartsOfOneWeight(tile=1, splits=2))
    call = two_keys(dtype, 120.0, 0)
    assert share(call, wrong(call, None)) > 10


@pytest.mark.parametrize(
    ("dtype", "narrower"), [(F32, F16), (F32, BF16), (F16, BF16)], ids=lambda dtype: str(dtype)
)
def test_a_wide_mask_may_be_rounded_to_the_dtype_of_the_query_and_no_narrower(dtype, narrower):
    call = one_hot_call(dtype, attn_mask=2 * BIAS)
    passes(call, run(call))
    passes(call, run(call.but(attn_mask=(2 * BIAS).to(dtype))))
    with pytest.raises(Violation, match="out at"):
        passes(call, run(call.but(attn_mask=(2 * BIAS).to(narrower))))


@pytest.mark.parametrize(("dtype", "of_mask"), [(F32, F16), (F32, BF16), (F64, F32)])
def test_a_narrow_mask_does_not_widen_the_bound(dtype, of_mask):
    mask = BIAS.to(of_mask)
    narrow = expect(one_hot_call(dtype, attn_mask=mask), Profile()).bound
    assert torch.equal(
        narrow, expect(one_hot_call(dtype, attn_mask=mask.to(dtype)), Profile()).bound
    )


def test_a_mask_that_overflows_in_the_dtype_of_the_query_promises_nothing_where_it_counts():
    mask = torch.zeros(QUERIES, KEYS)
    mask[0, :3] = -1e9  # hidden either way
    mask[1] = -1e9  # a row of equal numbers, or a row that reads nothing
    mask[2, 5] = 1e9  # the only key, or NaN
    is_promised = expect(one_hot_call(F16, attn_mask=mask), Profile()).bound.isfinite()
    rows = is_promised.all(-1)[0, 0, :4]
    assert rows.tolist() == [True, False, False, True]
    everywhere = expect(one_hot_call(F32, attn_mask=mask), Profile()).bound.isfinite()
    assert everywhere.all()


def test_the_gradient_of_a_mask_that_is_rounded_may_be_rounded_too():
    call = one_hot_call(BF16, attn_mask=BIAS.float())
    found = attention(Fused(mask_rounded=True))(call, call.query)["attn_mask"]
    assert found.dtype == F32
    assert torch.equal(found, found.bfloat16().float())
    expected = expect_gradients(call, call.query, Profile()).attn_mask
    check_close(found, expected.exact, expected.bound, what="attn_mask", message="wrong")
