"""Affine forms hold every state within them, and are about as narrow as they can be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure
from attnspec.conformance.operators.affine import (
    activate_form,
    add_forms,
    attend_form,
    map_form,
    normalize_form,
    start,
)

EXACT = Arithmetic(u=0.0, floor=0.0)
BATCH, LENGTH, WIDTH = 2, 3, 4


def normal(draws, *shape):
    return torch.randn(*shape, generator=draws, dtype=torch.float64)


def split(x):
    return x.unflatten(-1, (2, -1)).transpose(-3, -2)


class Step:
    """A function of states, and the same function of forms."""

    def __init__(self, draws):
        self.matrices = [normal(draws, WIDTH, WIDTH) for _ in range(3)]
        self.bias, self.gain = normal(draws, WIDTH), normal(draws, WIDTH)
        self.visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]

    def linear(self, x):
        return x @ self.matrices[0] + self.bias

    def linear_form(self, x):
        return map_form(x, self.matrices[0], self.bias, EXACT)

    def norm(self, x):
        return functional.layer_norm(x, (WIDTH,), self.gain, self.bias, 0.1)

    def norm_form(self, x):
        return normalize_form(x, self.gain, self.bias, 0.1, EXACT)

    def gelu(self, x):
        return functional.gelu(x)

    def gelu_form(self, x):
        return activate_form(x, "gelu", EXACT)

    def relu(self, x):
        return functional.relu(x)

    def relu_form(self, x):
        return activate_form(x, "relu", EXACT)

    def attention(self, x):
        q, k, v = (split(x @ matrix) for matrix in self.matrices)
        scores = (q @ k.mT).masked_fill(~self.visible, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2)

    def attention_form(self, x):
        zero = torch.zeros(WIDTH, dtype=torch.float64)
        q, k, v = (map_form(x, matrix, zero, EXACT).map(split) for matrix in self.matrices)
        visible = self.visible.expand(BATCH, 1, -1, -1)
        exact = Arithmetic(u=0.0, floor=0.0, elementary=0.0)
        mixed = attend_form(q, k, v, visible, 1.0, exact)
        return mixed.map(lambda y: y.transpose(-3, -2).flatten(-2))

    def block(self, x):
        return self.norm(x + self.attention(x))

    def block_form(self, x):
        return self.norm_form(add_forms(x, self.attention_form(x), EXACT))


STEPS = ("linear", "norm", "gelu", "relu", "attention", "block")


def moves(f, x, radius, draws):
    """Yield changes of a state within its radius: drawn ones, and the worst to first order."""
    for _ in range(5):
        yield radius * (2 * torch.rand(x.shape, generator=draws, dtype=torch.float64) - 1)
        yield radius * torch.sign(normal(draws, *x.shape))
    for place in range(0, LENGTH * WIDTH, 5):
        leaf = x.clone().requires_grad_()
        found = torch.autograd.grad(f(leaf).flatten(1)[:, place].sum(), leaf)[0]
        yield radius * torch.sign(found)
        yield -radius * torch.sign(found)


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**16), size=st.sampled_from([1e-6, 1e-3, 0.03, 0.2, 1.0]))
def test_every_state_of_a_form_is_held_by_its_image(name, seed, size):
    draws = torch.Generator().manual_seed(seed)
    step = Step(draws)
    f, of_form = getattr(step, name), getattr(step, f"{name}_form")
    x = normal(draws, BATCH, LENGTH, WIDTH)
    radius = size * torch.rand(x.shape, generator=draws, dtype=torch.float64)
    image = of_form(start(Enclosure(x, radius)))
    assert torch.allclose(image.value, f(x))
    for move in moves(f, x, radius, draws):
        moved = f(x + move)
        assert bool(((moved - image.value).abs() <= image.radius * (1 + 1e-9) + 1e-12).all())


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**16))
def test_a_small_radius_is_reached(name, seed):
    """Of a smooth step, the worst change to first order uses all of the radius."""
    draws = torch.Generator().manual_seed(seed)
    step = Step(draws)
    f, of_form = getattr(step, name), getattr(step, f"{name}_form")
    x = normal(draws, BATCH, LENGTH, WIDTH)
    radius = torch.full_like(x, 1e-7)
    image = of_form(start(Enclosure(x, radius)))
    reached = torch.zeros_like(x)
    for move in moves(f, x, radius, draws):
        reached = torch.maximum(reached, (f(x + move) - image.value).abs())
    judged = reached.flatten(1)[:, ::5]
    assert bool((judged >= 0.9 * image.radius.flatten(1)[:, ::5] - 1e-13).all())


def test_errors_that_cancel_are_no_error():
    """A state less itself, the second computed as its map by a matrix of minus one."""
    x = start(Enclosure(torch.ones(1, 1, 2).double(), torch.full((1, 1, 2), 0.5).double()))
    less = map_form(x, -torch.eye(2).double(), torch.zeros(2).double(), EXACT)
    assert float(add_forms(x, less, EXACT).radius.max()) == 0
    assert float(less.radius.min()) == pytest.approx(0.5)
