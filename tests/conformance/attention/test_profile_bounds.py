"""Oracle and bound under other groupings of heads, and a softcap after the bias."""

import itertools

import pytest
import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import expect, expect_scalar
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.attention.oracle_lse_gradients import expect_lse_gradients
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.evidence.soundness import dense
from attnspec.conformance.evidence.soundness.cases import draw_call
from attnspec.conformance.evidence.soundness.measure import DTYPES
from attnspec.conformance.evidence.soundness.variants import attention
from attnspec.conformance.mutants.attention_options.softcap import CapAfterBias
from attnspec.conformance.mutants.heads.groups import RepeatedByTurns
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.spec import (
    Float64Precision,
    Grouping,
    Profile,
    Rounding,
    RoundingLevel,
    SoftcapOrder,
)

SEEDS = range(24)
OTHER = {"grouping": Grouping.INTERLEAVED, "softcap_order": SoftcapOrder.AFTER_BIAS}
EAGER = Rounding(level=RoundingLevel.EAGER)


class Wide(CapAfterBias, RepeatedByTurns, dense.LibrarySoftmax):
    """A correct attention of the other profile that rounds once, at the end."""


class Shuffled(CapAfterBias, RepeatedByTurns, dense.ShuffledKeys):
    """The same with sums over keys in another order."""


class Narrow(CapAfterBias, RepeatedByTurns, dense.NarrowLibrarySoftmax):
    """The same in the storage type throughout."""


class DividedFirst(RepeatedByTurns, dense.LibrarySoftmax):
    """The same, forming the argument of tanh as a sum of quotients."""

    def __call__(self, *operands, softcap=None, **options):
        self.softcap = softcap
        return super().__call__(*operands, softcap=softcap, **options)

    def cap(self, scores, softcap):
        return scores / softcap

    def add_alibi(self, scores, slopes):
        return super().add_alibi(scores, slopes if self.softcap is None else slopes / self.softcap)

    def add_bias(self, scores, bias):
        return super().add_bias(scores, bias if self.softcap is None else bias * (1 / self.softcap))

    def hide(self, scores, visible):
        scores = scores if self.softcap is None else self.softcap * torch.tanh(scores)
        return super().hide(scores, visible)


VARIANTS = {
    "wide": (Wide(), Rounding()),
    "shuffled": (Shuffled(), Rounding()),
    "divided first": (DividedFirst(), Rounding()),
    "narrow": (Narrow(), EAGER),
}


def capped(seed, dtype):
    """Return a call with a softcap, its incoming gradient, and mostly a bias."""
    drawn = draw_call(seed, dtype, longest=40)
    call = drawn.call.but(softcap=(0.5, 2.0, 20.0)[seed % 3])
    if seed % 2:
        slopes = torch.linspace(0.2, 0.7, call.query.shape[1])
        call = call.but(alibi_slopes=slopes.to(call.value.dtype))
    return call, drawn.grad


def shares(name, seed, dtype):
    """Return the share of its bound that each result of a variant uses, at most."""
    steps, rounding = VARIANTS[name]
    profile = Profile(**OTHER, rounding=rounding)
    call, grad = capped(seed, dtype)
    with torch.no_grad():
        expected = expect(call, profile)
    gradients = expect_gradients(call, grad, profile)
    results = attention(steps)(call, grad)
    used = {
        "out": check_close(results["out"], expected.out, expected.bound, what="out", message=name)
    }
    for operand in ("query", "key", "value", "attn_mask"):
        gradient = getattr(gradients, operand)
        if gradient is not None:
            used[operand] = check_close(
                results[operand],
                gradient.exact,
                gradient.bound,
                what=operand,
                message=name,
                may_be_nan=gradient.may_be_nan,
            )
    return used


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_correct_attentions_of_another_profile_stay_within_the_bound(name, dtype):
    for seed in SEEDS:
        shares(name, seed, dtype)


@pytest.mark.parametrize("seed", SEEDS)
def test_reference_scalar_definition_and_oracle_agree_on_other_profiles(seed):
    call, grad = capped(seed, torch.float64)
    for grouping, order in itertools.product(Grouping, SoftcapOrder):
        answers = {"grouping": grouping, "softcap_order": order}
        profile = Profile(**answers)
        one, two = expect(call, profile), expect_scalar(call, profile)
        torch.testing.assert_close(one.out, two.out, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(one.lse, two.lse, rtol=1e-11, atol=1e-11)
        options = call.but(return_lse=False).keywords()
        out = scaled_dot_product_attention(call.query, call.key, call.value, **options, **answers)
        check_close(out, one.out, one.bound, what="out", message="reference")
        by_reference = expect_gradients(call, grad, profile)
        by_formula = expect_gradients(call, grad, profile, by_formula=True)
        for name in ("query", "key", "value", "attn_mask"):
            first, second = getattr(by_reference, name), getattr(by_formula, name)
            if first is not None:
                close = (first.exact - second.exact).abs() <= first.bound + second.bound
                assert bool(close.all()), name


def test_the_answers_differ_on_a_call_with_groups_and_a_bias():
    call = capped(1, torch.float64)[0]
    key, value = call.key[:, :1].repeat(1, 2, 1, 1), call.value[:, :1].repeat(1, 2, 1, 1)
    key[:, 1] *= -1
    call = call.but(
        query=call.query[:, :1].repeat(1, 4, 1, 1),
        key=key,
        value=value,
        attn_mask=None,
        sinks=None,
        alibi_slopes=torch.ones(4, dtype=torch.float64),
    )
    results = [
        expect(call, Profile(grouping=grouping, softcap_order=order)).out
        for grouping, order in itertools.product(Grouping, SoftcapOrder)
    ]
    for one, two in itertools.combinations(results, 2):
        assert not torch.allclose(one, two)


def test_a_sum_far_below_the_range_is_out_of_range_if_the_softcap_follows():
    ones = torch.ones(1, 1, 1, 2)
    bias = torch.tensor([[0.0, -3e38]])
    call = Call(query=ones, key=ones.mT.contiguous(), value=ones.mT.contiguous(), attn_mask=bias)
    call = call.but(query=ones[..., :1], softcap=1.0)
    assert bool(expect(call, Profile(**OTHER)).bound.isinf().all())
    assert not bool(expect(call, Profile()).bound.isinf().any())


def test_gradients_of_the_log_sum_exp_are_summed_over_interleaved_groups():
    call = capped(1, torch.float64)[0].but(attn_mask=None, is_causal=False, window=None)
    heads = 6
    call = call.but(
        query=call.query[:, :1].repeat(1, heads, 1, 1) * torch.arange(1, heads + 1)[:, None, None],
        key=torch.cat([call.key[:, :1], -call.key[:, :1]], 1),
        value=torch.cat([call.value[:, :1], -call.value[:, :1]], 1),
        sinks=None,
        alibi_slopes=None,
    )
    grad = torch.ones(call.query.shape[:3], dtype=torch.float64)
    profile = Profile(grouping=Grouping.INTERLEAVED)
    expected = expect_lse_gradients(call, grad, profile)["key"]
    key = call.key.clone().requires_grad_()
    _, lse = scaled_dot_product_attention(
        call.query,
        key,
        call.value,
        enable_gqa=True,
        scale=call.scale,
        softcap=call.softcap,
        return_lse=True,
        grouping=Grouping.INTERLEAVED,
    )
    (found,) = torch.autograd.grad(lse, key, grad)
    check_close(found, expected.exact, expected.bound, what="key", message="lse")


IN_FLOAT32 = Profile(float64_precision=Float64Precision.FLOAT32)


class Narrowing:
    """A correct attention that converts tensors of float64 to float32, by a library's softmax."""

    def __init__(self, value_dtype=torch.float32):
        self.attention, self.value_dtype = dense.LibrarySoftmax(), value_dtype

    def __call__(self, query, key, value, **options):
        options = {
            name: each.float()
            if isinstance(each, torch.Tensor) and each.is_floating_point()
            else each
            for name, each in options.items()
        }
        value = value.to(self.value_dtype).float()
        result = self.attention(query.float(), key.float(), value, **options)
        return tuple(each.double() for each in result)


def shares_in_float32(steps, seed, profile):
    """Return the shares of the bound of output and gradients that an attention uses in float64."""
    drawn = draw_call(seed, torch.float64, longest=40)
    call, grad = drawn.call, drawn.grad
    with torch.no_grad():
        expected = expect(call, profile)
    gradients = expect_gradients(call, grad, profile)
    results = attention(steps)(call, grad)
    pairs = [(results["out"], expected.out, expected.bound)] + [
        (results[name], getattr(gradients, name).exact, getattr(gradients, name).bound)
        for name in ("query", "key", "value", "attn_mask")
        if getattr(gradients, name) is not None
    ]
    return [
        float(torch.where(bound.isfinite() & (bound > 0), (got - exact).abs() / bound, 0.0).max())
        for got, exact, bound in pairs
        if got.numel()
    ]


def test_float64_computed_in_float32_is_within_its_own_bound_alone():
    own, default = (
        [max(shares_in_float32(Narrowing(), seed, profile)) for seed in SEEDS]
        for profile in (IN_FLOAT32, Profile())
    )
    assert max(own) <= 1
    assert sum(share > 1 for share in default) > len(default) / 2


def test_a_coarser_type_than_float32_exceeds_that_bound():
    shares = [max(shares_in_float32(Narrowing(torch.bfloat16), seed, IN_FLOAT32)) for seed in SEEDS]
    assert sum(share > 1 for share in shares) > len(shares) / 2


def test_numbers_beyond_float32_promise_nothing():
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    call = Call(query=ones, key=ones, value=ones)
    for name in ("query", "key", "value"):
        huge = call.but(**{name: ones * torch.tensor([1.0, 1e300], dtype=torch.float64)})
        assert bool(expect(huge, IN_FLOAT32).bound.isinf().all())
    assert not bool(expect(call, IN_FLOAT32).bound.isinf().any())
