"""Sampling and generation."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.generation import generate, next_token_probabilities, sample
from attnspec.reference.model import GPT2, build
from attnspec.reference.parameters import parameter_shapes
from attnspec.spec import GPT2Config

CONFIG = GPT2Config(vocab_size=23, n_positions=16, n_embd=8, n_layer=2, n_head=2)


@pytest.fixture(scope="module")
def model() -> GPT2:
    """Build a small model with random parameters, so large that logits differ."""
    source = torch.Generator().manual_seed(0)
    shapes = parameter_shapes(CONFIG)
    return build(
        CONFIG,
        {
            name: torch.randn(shape, dtype=torch.float64, generator=source)
            for name, shape in shapes.items()
        },
    )


logits = st.lists(st.sampled_from([-30.0, -2.0, -1.0, 0.0, 0.5, 3.0]), min_size=1, max_size=8)


@given(
    logits,
    st.sampled_from([0.3, 1.0, 5.0]),
    st.none() | st.integers(1, 9),
    st.none() | st.sampled_from([0.01, 0.4, 0.9, 1.0]),
    st.none() | st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_probabilities_follow_their_definition(
    drawn: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> None:
    got = next_token_probabilities(
        torch.tensor(drawn), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    masses = [math.exp((logit - max(drawn)) / temperature) for logit in drawn]
    kept = list(range(len(drawn)))
    if top_k is not None and top_k < len(drawn):
        least = sorted(drawn)[-top_k]
        kept = [token for token in kept if drawn[token] >= least]
    if top_p is not None and top_p < 1:
        whole, sum_before, order = sum(masses[token] for token in kept), 0.0, kept
        kept = []
        for token in sorted(order, key=lambda token: -drawn[token]):
            if sum_before >= top_p * whole:
                break
            kept.append(token)
            sum_before += masses[token]
    if min_p is not None:
        kept = [token for token in kept if masses[token] >= min_p]
    whole = sum(masses[token] for token in kept)
    expected = [masses[token] / whole if token in kept else 0.0 for token in range(len(drawn))]
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-13, abs=0)


def test_ties_are_kept_by_top_k_and_cut_at_low_ids_by_top_p() -> None:
    tied = torch.tensor([1.0, 2.0, 2.0, 2.0])
    assert (next_token_probabilities(tied, top_k=1) > 0).tolist() == [False, True, True, True]
    assert (next_token_probabilities(tied, top_p=0.5) > 0).tolist() == [False, True, True, False]


def test_extreme_logits_and_temperatures_stay_finite() -> None:
    wild = torch.tensor([[-torch.inf, 1e30, 9e29], [0.0, -1e30, -torch.inf]])
    sharp = next_token_probabilities(wild, temperature=1e-300)
    assert sharp.tolist() == [[0, 1, 0], [1, 0, 0]]
    flat = next_token_probabilities(wild[1], temperature=1e300)
    assert flat.tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be finite and positive, got 0.0"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"top_k": 0}, "top_k must be at least 1 or None, got 0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\] or be None, got 0.0"),
        ({"top_p": 1.1}, "top_p must lie in"),
        ({"min_p": -0.1}, r"min_p must lie in \[0, 1\] or be None, got -0.1"),
        ({"min_p": math.nan}, "min_p must lie in"),
        ({"max_new_tokens": -1}, "max_new_tokens must not be negative, got -1"),
        ({"max_new_tokens": 14}, r"3 tokens of prompt and 14 .* 16 positions; at most 13 new"),
        ({"input_ids": []}, "prompt must hold at least one token"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.long)}, "input_ids must be one sequence"),
        ({"greedy": True, "top_k": 3}, "greedy draws nothing"),
        ({"greedy": True, "min_p": 0.1}, "greedy draws nothing"),
    ],
)
def test_bad_settings_are_refused_at_once(
    model: GPT2, options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"input_ids": [1, 2, 3], "max_new_tokens": 2}
    with pytest.raises(ValueError, match=message):
        generate(model, **(arguments | options))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_without_a_distribution_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="logits must not be"):
        next_token_probabilities(torch.tensor([0.0, bad]))
    with pytest.raises(ValueError, match="logits must not be"):
        next_token_probabilities(torch.tensor([-math.inf, -math.inf]))


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, 22), min_size=1, max_size=6),
    st.sampled_from(
        [{"greedy": True}, {"seed": 3}, {"seed": 4, "top_k": 5, "temperature": 0.7}, {"top_p": 0.9}]
    ),
)
def test_with_and_without_a_cache_the_tokens_are_equal(
    model: GPT2, prompt: list[int], options: dict[str, Any]
) -> None:
    options = {"seed": 0} | options
    runs = [
        list(generate(model, prompt, max_new_tokens=10, use_cache=use_cache, **options))
        for use_cache in (True, False, True)
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 10


def test_greedy_takes_the_likeliest_each_time(model: GPT2) -> None:
    tokens = [5, 7]
    for token in generate(model, torch.tensor([tokens]), max_new_tokens=14, greedy=True):
        assert token == int(model(torch.tensor([tokens]))[0, -1].argmax())
        tokens.append(token)
    assert len(tokens) == CONFIG.n_positions


def test_seeds_matter_and_stop_tokens_stop(model: GPT2) -> None:
    runs = [tuple(generate(model, [1], max_new_tokens=12, seed=seed)) for seed in range(9)]
    assert len(set(runs)) > 1
    assert runs[0] == tuple(generate(model, [1], max_new_tokens=12, seed=0))
    stop = runs[0][4]
    stopped = tuple(generate(model, [1], max_new_tokens=12, seed=0, stop_tokens=[stop]))
    assert stopped == runs[0][: runs[0].index(stop)]
    assert list(generate(model, [1], max_new_tokens=0)) == []


def test_greedy_takes_the_lowest_of_equals_and_the_logits_see_all_tokens() -> None:
    seen: list[list[int]] = []

    def next_logits(tokens: Any) -> torch.Tensor:
        seen.append(list(tokens))
        return torch.tensor([0.0, 2.0, 2.0])

    assert list(sample(next_logits, [2], max_new_tokens=2, greedy=True)) == [1, 1]
    assert seen == [[2], [2, 1]]


def test_draws_follow_the_probabilities() -> None:
    wanted = torch.tensor([0.5, 0.3, 0.2, 0.0])
    drawn = list(sample(lambda _: wanted.log(), [0], max_new_tokens=4000, seed=1))
    for token, probability in enumerate(wanted.tolist()):
        # Hoeffding: off by more than 0.06 once in 10^12 seeds.
        assert abs(drawn.count(token) / 4000 - probability) < 0.06
    assert 3 not in drawn
