"""Gated MLPs and experts of the reference, against scalar loops and automatic differentiation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.experts import choose, experts, router
from attnspec.reference.gated_mlp import gated_mlp, pack, unpack
from attnspec.reference.scalar_experts import scalar_experts, scalar_gated_mlp, scalar_router
from attnspec.spec.experts import RouterScores
from attnspec.spec.gated_mlp import GateForm, GatePacking

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
packings = [packing for packing in GatePacking if packing is not GatePacking.SEPARATE]


def normal(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def mlp_weights(
    seed: int, d_model: int, d_inner: int, *lead: int, biased: bool
) -> dict[str, torch.Tensor]:
    weights = {
        "gate": normal(seed + 1, *lead, d_inner, d_model, scale=3.0),
        "up": normal(seed + 2, *lead, d_inner, d_model, scale=5.0),
        "down": normal(seed + 3, *lead, d_model, d_inner),
    }
    if biased:
        weights["gate_bias"] = normal(seed + 4, *lead, d_inner)
        weights["up_bias"] = normal(seed + 5, *lead, d_inner)
        weights["down_bias"] = normal(seed + 6, *lead, d_model)
    return weights


@pytest.mark.parametrize("form", GateForm)
@given(seeds, st.integers(0, 4), sizes, sizes, st.booleans())
@settings(max_examples=15)
def test_a_gated_mlp_equals_scalar_loops(form, seed, tokens, d_model, d_inner, biased):
    x, weights = normal(seed, tokens, d_model), mlp_weights(seed, d_model, d_inner, biased=biased)
    expected = scalar_gated_mlp(x.numpy(), **arrays(weights), form=form)
    got = gated_mlp(x, **weights, form=form)
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scores", RouterScores)
@given(seeds, st.integers(0, 4), sizes, st.data(), st.booleans(), st.booleans())
@settings(max_examples=15)
def test_a_router_equals_scalar_loops(scores, seed, tokens, count, data, biased, renormalized):
    top_k = data.draw(st.integers(1, count))
    x, weight = normal(seed, tokens, 3), normal(seed + 1, count, 3)
    bias = normal(seed + 2, count) if biased else None
    options = {"scores": scores, "renormalized": renormalized}
    got, indices = router(x, weight, top_k, bias=bias, **options)
    expected, chosen = scalar_router(
        x.numpy(), weight.numpy(), top_k, bias=None if bias is None else bias.numpy(), **options
    )
    assert torch.equal(indices, torch.from_numpy(chosen))
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", [GateForm.SWIGLU, GateForm.CLAMPED])
@given(seeds, st.integers(0, 4), sizes, st.data(), st.booleans(), st.booleans())
@settings(max_examples=15)
def test_experts_equal_scalar_loops(form, seed, tokens, count, data, biased, is_shared):
    top_k = data.draw(st.integers(1, count))
    x, scores = normal(seed, tokens, 3), normal(seed + 9, tokens, top_k)
    indices = choose(normal(seed + 8, tokens, count), top_k)
    weights = mlp_weights(seed, 3, 4, count, biased=biased)
    shared = mlp_weights(seed + 20, 3, 2, biased=False) if is_shared else None
    got = experts(x, indices, scores, **weights, shared=shared, form=form)
    expected = scalar_experts(
        x.numpy(),
        indices.numpy(),
        scores.numpy(),
        **arrays(weights),
        shared=arrays(shared) if shared else None,
        form=form,
    )
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-11, atol=1e-10)


def test_equal_logits_choose_the_lower_index():
    assert choose(torch.tensor([[1.0, 2.0, 2.0, 2.0]]), 2).tolist() == [[1, 2]]


@pytest.mark.parametrize("top_k", [0, 4])
def test_a_choice_out_of_range_is_refused(top_k):
    with pytest.raises(ValueError, match=rf"top_k must lie in \[1, 3\], got {top_k}"):
        choose(torch.zeros(1, 3), top_k)


@pytest.mark.parametrize("packing", packings)
def test_unpacking_is_the_inverse_of_packing(packing):
    gate, up = normal(0, 3, 2), normal(1, 3, 2)
    packed = pack(gate, up, packing)
    for got, expected in zip(unpack(packed, packing), (gate, up), strict=True):
        assert torch.equal(got, expected)
    assert sorted(packed[:, 0].tolist()) == sorted([*gate[:, 0].tolist(), *up[:, 0].tolist()])
    bias, _ = unpack(pack(gate[:, 0], up[:, 0], packing), packing)
    assert torch.equal(bias, gate[:, 0])


def test_a_packing_needs_one_matrix_with_an_even_number_of_rows():
    with pytest.raises(ValueError, match="packing must be an order of one matrix, got separate"):
        pack(normal(0, 2, 2), normal(1, 2, 2), GatePacking.SEPARATE)
    with pytest.raises(ValueError, match="packing must be an order of one matrix, got separate"):
        unpack(normal(0, 2, 2), GatePacking.SEPARATE)
    with pytest.raises(ValueError, match="even number of rows, got 3"):
        unpack(normal(0, 3, 2), GatePacking.GATE_FIRST)


def test_the_packings_differ():
    gate, up = normal(0, 2, 1), normal(1, 2, 1)
    packed = {tuple(pack(gate, up, packing).flatten().tolist()) for packing in packings}
    assert len(packed) == len(packings)
