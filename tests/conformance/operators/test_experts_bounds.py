"""The bounds of a router and of experts: correct computations stay inside, wrong ones do not."""

import pytest
import torch
from torch.nn import functional

from attnspec.conformance.operators.experts import bounds
from attnspec.conformance.operators.precision import Precision
from attnspec.reference.experts import choose, experts, router
from attnspec.spec.experts import RouterProfile, RouterScores
from attnspec.spec.gated_mlp import GateForm
from attnspec.spec.profiles import Float64Precision

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PROFILES = [
    RouterProfile(scores=scores, renormalized=renormalized)
    for scores in RouterScores
    for renormalized in (False, True)
]


def normal(seed, *shape, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def limit(dtype):
    return 2 if dtype == torch.float64 else 1


def fraction(got, expected, radius):
    return float(((got.double() - expected).abs() / radius).nan_to_num(0.0).max())


def torch_router(x, weight, top_k, profile, bias=None, *, wide=False):
    """The computation of transformers, with softmax in float32 as in Mixtral if wide."""
    logits = functional.linear(x, weight, bias)
    given = logits.float() if wide else logits
    if profile.scores is RouterScores.SIGMOID:
        scores, indices = torch.topk(torch.sigmoid(given), top_k)
    elif profile.scores is RouterScores.SOFTMAX_ALL:
        scores, indices = torch.topk(torch.softmax(given, -1), top_k)
    else:
        top, indices = torch.topk(given, top_k)
        scores = torch.softmax(top, -1)
    if profile.renormalized:
        scores = scores / scores.sum(-1, keepdim=True)
    return scores, indices


def routed(seed, dtype, scale=1.0, count=7):
    x, weight = normal(seed, 5, 11), normal(seed + 1, count, 11, scale=scale)
    return x.to(dtype), weight.to(dtype), normal(seed + 2, count).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_correct_routers_stay_inside(profile, dtype):
    for seed in range(6):
        x, weight, bias = routed(seed, dtype, scale=(0.1, 1.0, 3.0)[seed % 3])
        precision = Precision.of(dtype)
        enclosed = bounds.logits(x, weight, bias, precision)
        for wide in (False, True) if dtype.itemsize == 2 else (False,):
            scores, indices = torch_router(x, weight, 3, profile, bias, wide=wide)
            compared = bounds.compared(enclosed, profile, precision)
            assert bool(bounds.is_allowed(compared, indices).all())
            allowed = bounds.scores(enclosed, indices, profile, precision).chosen
            if profile.scores is not RouterScores.SIGMOID and profile.renormalized:
                assert float((allowed.value.sum(-1) - 1).abs().max()) < 1e-14
            assert fraction(scores, allowed.value, allowed.radius) < limit(dtype)


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_the_reference_router_has_the_value_of_the_bound(profile):
    x, weight, bias = routed(1, torch.float64)
    scores, indices = router(
        x, weight, 3, bias=bias, scores=profile.scores, renormalized=profile.renormalized
    )
    precision = Precision.of(torch.float64)
    enclosed = bounds.logits(x, weight, bias, precision)
    allowed = bounds.scores(enclosed, indices, profile, precision).chosen
    torch.testing.assert_close(allowed.value, scores, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("profile", PROFILES[:4], ids=str)
def test_scores_computed_in_float32_need_that_profile(profile):
    """A router of float64 with a softmax in float32, as Mixtral ships it, is outside and inside."""
    x, weight, _ = routed(0, torch.float64)
    precision = Precision.of(torch.float64)
    enclosed = bounds.logits(x, weight, None, precision)
    scores, indices = torch_router(x, weight, 3, profile, wide=True)
    double = bounds.scores(enclosed, indices, profile, precision).chosen
    assert fraction(scores, double.value, double.radius) > 100
    single = RouterProfile(
        scores=profile.scores,
        renormalized=profile.renormalized,
        scores_precision=Float64Precision.FLOAT32,
    )
    allowed = bounds.scores(enclosed, indices, single, precision).chosen
    assert fraction(scores, allowed.value, allowed.radius) < 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_gradients_of_correct_routers_stay_inside(profile, dtype):
    for seed in range(6):
        x, weight, bias = routed(seed, dtype, scale=(0.1, 1.0, 3.0)[seed % 3])
        precision = Precision.of(dtype)
        own = [each.clone().requires_grad_() for each in (x, weight, bias)]
        scores, indices = torch_router(own[0], own[1], 3, profile, own[2])
        v = normal(seed + 30, 5, 3).to(dtype)
        scores.backward(v)
        enclosed = bounds.logits(x, weight, bias, precision)
        given = bounds.scores(enclosed, indices, profile, precision)
        allowed = bounds.router_backward(x, weight, given, indices, v, profile, precision)
        leaves = [each.double().clone().requires_grad_() for each in (x, weight, bias)]
        exact_scores, exact = router(
            leaves[0], leaves[1], 3, bias=leaves[2], scores=profile.scores,
            renormalized=profile.renormalized,
        )  # fmt: skip
        if not torch.equal(exact, indices):
            continue  # near-ties in 16 bits
        exact_scores.backward(v.double())
        for name, leaf, expected in zip(("x", "weight", "bias"), own, leaves, strict=True):
            torch.testing.assert_close(allowed[name].value, expected.grad, rtol=1e-11, atol=1e-12)
            assert fraction(leaf.grad, expected.grad, allowed[name].radius) < limit(dtype), name


def test_near_ties_have_two_allowed_choices():
    precision = Precision.of(torch.float32)
    x, weight = torch.ones(1, 2), torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.5]])
    weight[1, 1] += 2.0**-22
    enclosed = bounds.logits(x, weight, None, precision)
    allowed = [bool(bounds.is_allowed(enclosed, torch.tensor([[e]]))) for e in range(3)]
    assert allowed == [True, True, False]
    pairs = [bool(bounds.is_allowed(enclosed, torch.tensor([[0, e]]))) for e in (1, 2)]
    assert pairs == [True, False]


def test_a_wrong_score_is_outside():
    x, weight, _ = routed(0, torch.float32)
    precision = Precision.of(torch.float32)
    enclosed = bounds.logits(x, weight, None, precision)
    before = RouterProfile(scores=RouterScores.SOFTMAX_ALL)
    scores, indices = torch_router(x, weight, 3, RouterProfile())
    allowed = bounds.scores(enclosed, indices, before, precision).chosen
    assert bool(((scores - allowed.value).abs() > 10 * allowed.radius).all())


def expert_tensors(seed, dtype, count=4, d_model=6, d_inner=5, tokens=7, top_k=2):
    tensors = {
        "x": normal(seed, tokens, d_model),
        "scores": normal(seed + 7, tokens, top_k).abs(),
        "gate": normal(seed + 1, count, d_inner, d_model),
        "up": normal(seed + 2, count, d_inner, d_model),
        "down": normal(seed + 3, count, d_model, d_inner),
        "gate_bias": normal(seed + 4, count, d_inner),
        "up_bias": normal(seed + 5, count, d_inner),
        "down_bias": normal(seed + 6, count, d_model),
    }
    logits = normal(seed + 8, tokens, count)
    logits[:, 1] -= 100  # an expert without tokens
    return {name: each.to(dtype) for name, each in tensors.items()}, choose(logits, top_k)


def torch_experts(form, indices, x, scores, gate, up, down, gate_bias, up_bias, down_bias):
    """The loop of transformers over the experts that are hit."""
    out = torch.zeros_like(x)
    for expert in indices.unique().tolist():
        token, place = torch.where(indices == expert)
        g = functional.linear(x[token], gate[expert], gate_bias[expert])
        u = functional.linear(x[token], up[expert], up_bias[expert])
        if form is GateForm.CLAMPED:
            g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
            hidden = (u + 1) * (g * torch.sigmoid(g * 1.702))
        else:
            hidden = functional.silu(g) * u
        part = functional.linear(hidden, down[expert], down_bias[expert])
        out = out.index_add(0, token, part * scores[token, place, None])
    return out


def dense(form, indices, x, scores, **weights):
    """Every expert on every token, weighted by zero where it was not chosen."""
    count = len(weights["gate"])
    table = torch.zeros(len(x), count, dtype=x.dtype).scatter(1, indices, scores)
    every = torch.arange(count).expand(len(x), count)
    return torch_experts(form, every, x, table, **weights)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [GateForm.SWIGLU, GateForm.CLAMPED])
def test_correct_experts_and_their_gradients_stay_inside(form, dtype):
    for seed in range(4):
        tensors, indices = expert_tensors(seed, dtype)
        weights = {name: each for name, each in tensors.items() if name not in ("x", "scores")}
        precision = Precision.of(dtype)
        bound = bounds.forward(
            tensors["x"], indices, tensors["scores"], weights, None, form, precision
        )
        leaves = {name: each.double().clone().requires_grad_() for name, each in tensors.items()}
        exact = experts(indices=indices, **leaves, form=form)
        torch.testing.assert_close(bound.out.value, exact.detach(), rtol=1e-12, atol=1e-12)
        v = normal(seed + 60, *exact.shape).to(dtype)
        exact.backward(v.double())
        allowed = bounds.backward(bound, tensors["scores"], v.double(), precision)
        assert allowed.keys() == leaves.keys()
        for way in (torch_experts, dense):
            own = {name: each.clone().requires_grad_() for name, each in tensors.items()}
            got = way(form, indices, **own)
            assert fraction(got.detach(), exact.detach(), bound.out.radius) < limit(dtype)
            got.backward(v)
            for name, leaf in own.items():
                torch.testing.assert_close(
                    allowed[name].value, leaves[name].grad, rtol=1e-10, atol=1e-11
                )
                used = fraction(leaf.grad, leaves[name].grad, allowed[name].radius)
                assert used < limit(dtype), (way.__name__, name)


def test_a_shared_expert_is_enclosed():
    tensors, indices = expert_tensors(0, torch.float64)
    weights = {name: each for name, each in tensors.items() if name not in ("x", "scores")}
    shared = {
        "gate": normal(20, 3, 6), "up": normal(21, 3, 6), "down": normal(22, 6, 3)
    }  # fmt: skip
    precision = Precision.of(torch.float64)
    enclosed = bounds.forward(
        tensors["x"], indices, tensors["scores"], weights, shared, GateForm.SWIGLU, precision
    )
    leaves = {name: each.clone().requires_grad_() for name, each in tensors.items()}
    own = {name: each.clone().requires_grad_() for name, each in shared.items()}
    exact = experts(indices=indices, **leaves, shared=own)
    assert fraction(exact.detach(), enclosed.out.value, enclosed.out.radius) < 2
    v = normal(60, *exact.shape)
    exact.backward(v)
    allowed = bounds.backward(enclosed, tensors["scores"], v, precision)
    for name, leaf in own.items():
        assert (
            fraction(leaf.grad, allowed[f"shared_{name}"].value, allowed[f"shared_{name}"].radius)
            < 2
        )


def test_one_wrong_bias_is_outside():
    tensors, indices = expert_tensors(0, torch.float32)
    weights = {name: each for name, each in tensors.items() if name not in ("x", "scores")}
    bound = bounds.forward(
        tensors["x"], indices, tensors["scores"], weights, None, GateForm.SWIGLU,
        Precision.of(torch.float32),
    ).out  # fmt: skip
    weights["down_bias"] = weights["down_bias"].clone()
    weights["down_bias"][0, 2] = 0
    got = torch_experts(GateForm.SWIGLU, indices, tensors["x"], tensors["scores"], **weights)
    outside = (got.double() - bound.value).abs() > 100 * bound.radius
    assert bool(outside[:, 2].any())
    assert not bool(outside[:, [0, 1, 3, 4, 5]].any())
