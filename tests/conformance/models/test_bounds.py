"""The bound of a whole model: correct computations stay inside, in any order; wrong ones do not."""

import math

import mpmath
import pytest
import torch

from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.bounds.activation import ACTIVATIONS, activation, activation_slope
from attnspec.conformance.models.bounds.backward import gradients
from attnspec.conformance.models.bounds.enclosure import (
    UNKNOWN,
    Arithmetic,
    Enclosure,
    add,
    inner,
    matmul,
    mix,
    multiply,
    spectral_norm,
)
from attnspec.conformance.models.bounds.forward import attention, forward, layer_norm, loss
from attnspec.conformance.models.case import PADDED, PINNED, draw, normal
from attnspec.conformance.models.oracle import Allowed, check_within, is_narrow
from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2

F32, F64 = torch.float32, torch.float64
DOUBLE = [case for case in PINNED if case.dtype == F64]
SINGLE = [case for case in PINNED if case.dtype == F32]


class Shuffled(CompactGPT2):
    """A correct model that computes every sum in another order, and in parts."""

    def linear(self, x, name):
        weight = self.block_parameter(f"{name}.weight")
        order = torch.randperm(weight.shape[0], generator=torch.Generator().manual_seed(1))
        total = self.block_parameter(f"{name}.bias").expand(*x.shape[:-1], weight.shape[1])
        for channel in order:
            total = total + x[..., channel, None] * weight[channel]
        return total

    def layer_norm(self, x, weight, bias):
        mean, count = torch.zeros_like(x[..., :1]), 0
        square = torch.zeros_like(mean)
        for channel in x.flip(-1).split(1, -1):  # Welford's recurrence
            count += 1
            delta = channel - mean
            mean = mean + delta / count
            square = square + delta * (channel - mean)
        scale = (square / count + self.config.layer_norm_epsilon).rsqrt()
        return (x * scale - mean * scale) * weight + bias

    def attend(self, query, key, value, visible):
        top = torch.full_like(query[..., :1], -1e30)
        mass, out = torch.zeros_like(top), torch.zeros_like(query)
        for j in reversed(range(key.shape[2])):  # one key at a time, rescaled as the maximum grows
            score = (query * key[:, :, j, None]).sum(-1, keepdim=True) * self.scale()
            score = score.masked_fill(~visible[..., j, None], -math.inf)
            new = torch.maximum(top, score)
            weight = torch.exp(score - new)
            shrink = torch.exp(top - new)
            mass = mass * shrink + weight
            out = out * shrink + weight * value[:, :, j, None]
            top = new
        return out / mass


def fraction(got, expected, radius):
    error = (got.double() - expected).abs()
    return float(torch.where(error == 0, 0.0, error / radius).max())


@pytest.mark.parametrize("model", [CompactGPT2, Shuffled])
@pytest.mark.parametrize("case", [*PINNED, *PADDED], ids=str)
def test_a_right_model_stays_within_its_radius(model, case):
    inputs = draw(case)
    options = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    passed = forward(
        inputs.config, inputs.state_dict, inputs.input_ids, Arithmetic.of(case.dtype), **options
    )
    with torch.no_grad():
        logits, states = model(inputs.config, inputs.state_dict)(
            inputs.input_ids, output_hidden_states=True, **options
        )
    real = inputs.attention_mask.bool()
    # in float64 the value of the enclosure is rounded as well
    allowed = 1 if case.dtype == F32 else 2
    assert fraction(logits[real], passed.logits.value[real], passed.logits.radius[real]) <= allowed
    for state, enclosed in zip(states, passed.hidden_states, strict=True):
        assert fraction(state[real], enclosed.value[real], enclosed.radius[real]) <= allowed


@pytest.mark.parametrize("model", [CompactGPT2, Shuffled])
@pytest.mark.parametrize("case", PINNED, ids=str)
def test_right_gradients_stay_within_their_radius(model, case):
    inputs = draw(case)
    arithmetic = Arithmetic.of(case.dtype)
    shape = (*inputs.input_ids.shape, case.vocab_size)
    cotangent = normal(case.seed, "cotangent", *shape).to(case.dtype)
    leaves = {name: weight.clone().requires_grad_() for name, weight in inputs.state_dict.items()}
    logits = model(inputs.config, leaves)(inputs.input_ids)
    computed = torch.autograd.grad(logits, list(leaves.values()), cotangent)
    passed = forward(inputs.config, inputs.state_dict, inputs.input_ids, arithmetic)
    enclosed = gradients(
        inputs.config, inputs.state_dict, inputs.input_ids, passed, cotangent, arithmetic
    )
    assert set(enclosed) == set(leaves)
    allowed = 1 if case.dtype == F32 else 2
    for name, gradient in zip(leaves, computed, strict=True):
        assert fraction(gradient, enclosed[name].value, enclosed[name].radius) <= allowed, name


@pytest.mark.parametrize("case", DOUBLE, ids=str)
def test_float64_bounds_are_far_below_the_values(case):
    inputs = draw(case)
    allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids)
    logits = allowed.model.logits
    assert float(allowed.logits.max() / logits.value.abs().max()) < 1e-7
    cotangent = normal(case.seed, "cotangent", *logits.value.shape)
    reverse = gradients(
        inputs.config, inputs.state_dict, inputs.input_ids, allowed.model, cotangent, allowed.fine
    )
    for gradient in reverse.values():
        assert float(gradient.radius.max() / gradient.value.abs().max()) < 1e-2


@pytest.mark.parametrize("case", [case for case in SINGLE if case.n_layer == 1], ids=str)
def test_float32_bounds_of_one_layer_are_narrow(case):
    inputs = draw(case)
    allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids)
    assert float(allowed.logits.max() / allowed.model.logits.value.abs().max()) < 1e-2


def test_the_gate_adds_the_oracles_own_error():
    for case in PINNED[:2]:
        inputs = draw(case)
        allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids)
        own = forward(
            inputs.config, inputs.state_dict, inputs.input_ids, Arithmetic.of(case.dtype)
        ).logits.radius
        if case.dtype == F64:
            assert torch.equal(allowed.logits, 2 * own)
        else:
            assert (allowed.logits > own).all()
            assert (allowed.logits < 1.001 * own).all()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: torch.full_like(x, math.nan),
        torch.zeros_like,
        lambda x: x + 1e-3,
        lambda x: x.index_fill(-1, torch.tensor([1]), math.nan),
        lambda x: x.index_add(-1, torch.tensor([1]), torch.full((*x.shape[:-1], 1), 1e-6).double()),
        lambda x: x.flip(1),
        lambda x: torch.full_like(x, math.inf),
    ],
    ids=["nan", "zeros", "shifted", "one-nan", "one-element", "reversed", "infinite"],
)
def test_garbage_is_rejected(spoil):
    inputs = draw(DOUBLE[1])
    allowed = Allowed(inputs.config, inputs.state_dict, inputs.input_ids)
    right = allowed.model.logits.value
    check_within(right, right, allowed.logits, what="logits", message="right")
    with pytest.raises(Violation):
        check_within(spoil(right), right, allowed.logits, what="logits", message="wrong")


def test_a_gate_as_wide_as_the_values_is_not_narrow():
    values = torch.tensor([1.0, -2.0])
    assert is_narrow(torch.tensor([0.1, 0.1]), values)
    assert not is_narrow(torch.tensor([0.1, 0.3]), values)
    assert not is_narrow(torch.tensor([0.0, math.inf]), values)


def moved(enclosure, seed):
    """Return a point of an enclosure, within radius and norm, near its edge."""
    step = normal(seed, "step", *enclosure.value.shape).clamp(-1, 1) * enclosure.radius
    length = step.norm(dim=-1, keepdim=True)
    return enclosure.value + step * torch.minimum(
        torch.ones_like(length), enclosure.slack / length.clamp(min=1e-300)
    )


def box(seed, *shape, size=1e-3):
    radius = size * normal(seed, "radius", *shape).abs()
    return Enclosure(normal(seed, "value", *shape), radius, 0.5 * radius.norm(dim=-1, keepdim=True))


EXACT = Arithmetic(u=2.0**-53, floor=0.0)


@pytest.mark.parametrize("seed", range(20))
def test_exact_steps_on_moved_operands_stay_inside(seed):
    a, b, c = box(seed, 2, 3, 5), box(seed + 100, 2, 5, 4), box(seed + 200, 2, 3, 5)
    x, y, z = moved(a, seed), moved(b, seed), moved(c, seed)
    gain, bias = normal(seed, "gain", 5), normal(seed, "bias", 5)
    results = {
        "add": (add(a, c, EXACT), x + z),
        "multiply": (multiply(a, c, EXACT), x * z),
        "matmul": (matmul(a, b, EXACT), x @ y),
        "mix": (mix(a, b, EXACT), x @ y),
        "inner": (inner(a, c, EXACT), x @ z.mT),
        "layer_norm": (
            layer_norm(a, gain, bias, 1e-5, EXACT).result,
            torch.nn.functional.layer_norm(x, (5,), gain, bias, 1e-5),
        ),
    }
    for name in ACTIVATIONS:
        results[name] = (activation(a, name, EXACT), ACTIVATIONS[name].value(x))
        results[f"{name} slope"] = (activation_slope(a, name, EXACT), ACTIVATIONS[name].slope(x))
    for name, (enclosed, got) in results.items():
        off = (got - enclosed.value).abs()
        assert (off <= enclosed.radius).all(), name
        assert (off.norm(dim=-1, keepdim=True) <= enclosed.slack).all(), name


@pytest.mark.parametrize("seed", range(10))
def test_attention_on_moved_operands_stays_inside(seed):
    q, k, v = (box(seed + 100 * n, 1, 2, 4, 3) for n in range(3))
    visible = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    enclosed = attention(q, k, v, visible, 0.7, EXACT)
    scores = 0.7 * moved(q, seed) @ moved(k, seed).mT
    p = scores.masked_fill(~visible, -math.inf).softmax(-1)
    assert ((p - enclosed.weights.value).abs() <= enclosed.weights.radius).all()
    off = (p @ moved(v, seed) - enclosed.result.value).abs()
    assert (off <= enclosed.result.radius).all()
    assert (off.norm(dim=-1, keepdim=True) <= enclosed.result.slack).all()


def test_attention_is_enclosed_in_chunks_of_queries_as_in_one(monkeypatch):
    q, k, v = (box(number, 2, 3, 5, 4) for number in range(3))
    visible = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    whole = attention(q, k, v, visible, 0.7, EXACT).result
    monkeypatch.setattr("attnspec.conformance.models.bounds.forward.CHUNK", 2 * 2 * 3 * 5 * 4)
    in_chunks = attention(q, k, v, visible, 0.7, EXACT).result
    for one, other in zip(vars(whole).values(), vars(in_chunks).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)


def test_a_row_whose_spread_drowns_in_its_error_promises_nothing():
    x = Enclosure(torch.ones(1, 4, dtype=F64), torch.full((1, 4), 0.1, dtype=F64))
    one, zero = torch.ones(4), torch.zeros(4)
    assert (layer_norm(x, one, zero, 1e-12, EXACT).result.radius >= UNKNOWN).all()
    # and still a gain of zero gives the bias
    assert (layer_norm(x, zero, one, 1e-12, EXACT).result.radius < 1e-12).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_slopes_and_bends_match_their_definitions(name):
    f = ACTIVATIONS[name]
    exact = {
        "gelu_new": lambda x: x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi)
                                                       * (x + mpmath.mpf("0.044715") * x**3))),
        "gelu": lambda x: x * mpmath.ncdf(x),
        "relu": lambda x: max(x, mpmath.mpf(0)),
        "silu": lambda x: x / (1 + mpmath.exp(-x)),
        "tanh": mpmath.tanh,
    }[name]  # fmt: skip
    points = [number / 16 + 1 / 64 for number in range(-96, 97)]
    x = torch.tensor(points, dtype=F64)
    value, slope = f.value(x), f.slope(x)
    error, slope_error = f.error(x, 4.0) * 2**-53, f.slope_error(x, 4.0) * 2**-53
    for n, point in enumerate(points):
        at = mpmath.mpf(point)
        assert abs(float(exact(at) - mpmath.mpf(float(value[n])))) <= float(error[n]) + 1e-300
        with mpmath.workdps(30):
            derivative = mpmath.diff(exact, at)
            assert abs(float(derivative - float(slope[n]))) <= float(slope_error[n]) + 1e-12
            assert abs(mpmath.diff(exact, at, 2)) <= f.curvature + 1e-9


def test_the_bound_of_the_loss_holds_and_is_narrow():
    z = normal(0, "logits", 2, 3, 7)
    labels = torch.tensor([[0, 3, 6], [1, 1, 2]])
    radius = 1e-6 * normal(0, "radius", 2, 3, 7).abs()
    exact, bound = loss(Enclosure(z, radius), labels, EXACT)
    for seed in range(20):
        sign = normal(seed, "sign", 2, 3, 7).sign()
        other = torch.nn.functional.cross_entropy(
            (z + sign * radius).flatten(0, 1), labels.flatten()
        )
        assert abs(float(other - exact)) <= float(bound)
    assert float(bound) < 1e-5


def test_a_dtype_without_a_bound_is_refused():
    with pytest.raises(ValueError, match="float32 or float64"):
        Arithmetic.of(torch.bfloat16)


@pytest.mark.parametrize("shape", [(513, 600), (600, 513)])
def test_the_norm_of_a_wide_matrix_is_its_largest_singular_value(shape):
    matrix = normal(0, "matrix", *shape)
    exact = torch.linalg.matrix_norm(matrix, ord=2)
    assert spectral_norm(matrix).shape == (1, 1)
    assert torch.allclose(spectral_norm(matrix), exact, rtol=1e-10, atol=0)
