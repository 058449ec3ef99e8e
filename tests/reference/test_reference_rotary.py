"""Rotary positions of the reference: against complex numbers, conversion, and bad input."""

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.rotary import (
    convert_pairing,
    dynamic_frequencies,
    frequencies,
    llama3_frequencies,
    rotary,
    yarn_frequencies,
)
from attnspec.spec.rotary import Pairing, RotaryScaling, ScalingKind


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def with_complex_numbers(row, position, base, width, pairing):
    """Turn one row, pair by pair, as a product of complex numbers."""
    result = list(row)
    for pair in range(width // 2):
        a, b = (pair, pair + width // 2) if pairing is Pairing.HALF else (2 * pair, 2 * pair + 1)
        angle = position * base ** (-2 * pair / width)
        product = complex(row[a], row[b]) * cmath.exp(1j * angle)
        result[a], result[b] = product.real, product.imag
    return result


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 4, 6]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([10_000.0, 500.0]),
    st.sampled_from(Pairing),
)
@settings(max_examples=40)
def test_rotary_equals_products_of_complex_numbers(seed, width, beyond, base, pairing):
    x = normal(seed, 2, 1, 3, width + beyond)
    positions = torch.tensor([[0, 7, 3], [1, 1, 900]])
    got = rotary(x, positions, rotary_dim=width, base=base, pairing=pairing)
    for sequence in range(2):
        for token in range(3):
            row, position = x[sequence, 0, token].tolist(), int(positions[sequence, token])
            expected = with_complex_numbers(row, position, base, width, pairing)
            assert got[sequence, 0, token].tolist() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("beyond", [0, 2])
def test_a_converted_checkpoint_gives_the_same_scores(heads, beyond):
    d_head, tokens, d_model = 6 + beyond, 5, 7
    inputs = normal(0, tokens, d_model)
    weights = normal(1, heads * d_head, d_model), normal(2, heads * d_head, d_model)
    positions = torch.arange(tokens)[None] + 3

    def scores(weights, pairing):
        q, k = (
            rotary(
                (inputs @ weight.mT).reshape(1, tokens, heads, d_head).transpose(1, 2),
                positions,
                rotary_dim=6,
                pairing=pairing,
            )
            for weight in weights
        )
        return q @ k.mT

    half = scores(weights, Pairing.HALF)
    moved = [convert_pairing(each, heads, 6, Pairing.INTERLEAVED) for each in weights]
    torch.testing.assert_close(scores(moved, Pairing.INTERLEAVED), half)
    assert not torch.allclose(scores(weights, Pairing.INTERLEAVED), half)
    back = convert_pairing(moved[0], heads, 6, Pairing.HALF)
    assert torch.equal(back, weights[0])


def test_yarn_keeps_the_first_frequency_and_divides_the_last():
    rule = RotaryScaling(kind=ScalingKind.YARN, factor=16.0, original_length=4096)
    ratio = yarn_frequencies(128, 10_000.0, rule) / frequencies(128)
    assert float(ratio[0]) == 1
    assert float(ratio[-1]) == pytest.approx(1 / 16)
    assert bool((ratio.diff() <= 0).all())
    assert rule.magnitude == pytest.approx(0.1 * math.log(16) + 1)


def test_llama3_is_continuous_at_both_ends_of_its_mixture():
    rule = RotaryScaling(kind=ScalingKind.LLAMA3, factor=8.0, original_length=8192)
    theta = frequencies(2048, 500_000.0)
    turns = 8192 * theta / (2 * math.pi)
    ratio = llama3_frequencies(2048, 500_000.0, rule) / theta
    assert bool((ratio[turns > 4] == 1).all())
    assert bool((ratio[turns < 1] == 1 / 8).all())
    steepest = (1 - 1 / 8) / 3 * 4 * math.log(500_000.0) / 1024  # of 4 turns, from pair to pair
    assert float(ratio.diff().abs().max()) <= steepest


def test_dynamic_divides_the_last_frequency_by_the_ratio():
    rule = RotaryScaling(kind=ScalingKind.DYNAMIC, factor=4.0, original_length=100)
    for length, ratio in ((1, 1.0), (100, 1.0), (200, 5.0)):
        last = dynamic_frequencies(64, 10_000.0, rule, length)[-1]
        assert float(frequencies(64)[-1] / last) == pytest.approx(ratio)


@pytest.mark.parametrize("kind", ScalingKind)
def test_parameters_of_a_scaling_are_read_back(kind):
    rule = RotaryScaling(kind=kind, factor=2.0, original_length=64 if kind != "linear" else 0)
    assert RotaryScaling.read(rule.parameters()) == rule
    given = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
    assert RotaryScaling.read(given | {"attention_factor": 1.5}).magnitude == 1.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factor": 0.5}, "factor must be finite and at least 1, got 0.5"),
        ({"kind": ScalingKind.YARN}, "original_length must be at least 1 with yarn, got 0"),
        ({"beta_slow": 40.0}, "beta_slow must lie between 0 and beta_fast, got 40.0 and 32.0"),
        ({"low_freq_factor": 0.0}, "low_freq_factor must lie between 0 and high_freq_factor, got"),
    ],
)
def test_a_scaling_out_of_range_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**{"kind": ScalingKind.LINEAR, "factor": 2.0} | fields)


def test_unknown_parameters_of_a_scaling_are_refused():
    with pytest.raises(ValueError, match=r"rope_type must be one of linear, .*, got 'longrope'"):
        RotaryScaling.read({"rope_type": "longrope", "factor": 2.0})
    with pytest.raises(ValueError, match="a scaling lacks factor and rope_type"):
        RotaryScaling.read({})
    with pytest.raises(ValueError, match="unknown parameters of a scaling: mscale"):
        RotaryScaling.read({"rope_type": "linear", "factor": 2.0, "mscale": 1.0})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"rotary_dim": 6}, "rotary_dim must be at most 4, got 6"),
        ({"rotary_dim": 3}, "rotary_dim must be even and positive, got 3"),
        ({"base": 1.0}, "base must be greater than 1, got 1.0"),
        (
            {
                "rotary_dim": 2,
                "scaling": {
                    "rope_type": "dynamic",
                    "factor": 2.0,
                    "original_max_position_embeddings": 1,
                },
            },
            "rotary_dim must be at least 4 with dynamic, got 2",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        rotary(torch.ones(1, 1, 2, 4), torch.tensor([[0, 1]]), **keywords)


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="rows must be 2 times the same number of at least 4"):
        convert_pairing(torch.ones(6), 2, 4, Pairing.HALF)


def test_no_tokens_give_no_tokens():
    x = torch.ones(2, 3, 0, 4)
    assert rotary(x, torch.zeros(2, 0, dtype=torch.long)).shape == x.shape
