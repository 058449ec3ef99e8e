"""The laws of GEN: the rules by which they accept distributions, frequencies and tokens."""

import math

import pytest
import torch

from attnspec.conformance.comparison.frequencies import check_frequencies, relative_entropy
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.generation.model import NEW_TOKENS, generate_greedily
from attnspec.conformance.models.case import PINNED, draw
from attnspec.conformance.mutants.bases.sampler import Sampler, sampler
from attnspec.conformance.text.distribution import check_distribution, sizes
from attnspec.conformance.text.sampler_cases import ScriptCase
from attnspec.reference.generation import generate
from attnspec.reference.model import MODEL
from attnspec.spec import SamplerImplementation, Sampling


@pytest.mark.parametrize(
    ("scaled", "sampling", "allowed"),
    [
        ([2.0, 1.0, 0.0], Sampling(), {3}),
        ([2.0, 1.0, 0.0], Sampling(top_k=2), {2}),
        ([2.0, 1.0, 0.0], Sampling(top_k=3), {3}),
        ([2.0, 1.0, 0.0], Sampling(top_k=9), {3}),
        ([2.0, 1.0, 1.0, 1.0, 0.0], Sampling(top_k=2), {2, 3, 4}),
        ([2.0, 2.0, 1.0], Sampling(top_k=1), {1, 2}),
        ([0.0] * 4, Sampling(top_p=0.4), {2}),
        ([0.0] * 4, Sampling(top_p=0.5), {2, 3}),
        ([0.0] * 4, Sampling(top_p=1e-9), {1}),
        ([0.0] * 4, Sampling(top_p=1.0), {4}),
        ([3.0, 0.0], Sampling(top_p=0.5), {1}),
        ([1.125, 0.0, -0.125, -0.5], Sampling(top_k=2, top_p=0.7), {1}),
        ([1.125, 0.0, -0.125, -0.5], Sampling(top_p=0.7), {2}),
    ],
)
def test_sizes_are_those_of_the_clauses(scaled, sampling, allowed):
    assert sizes(scaled, sampling, 1e-9) == allowed


LOGITS = torch.tensor([1.0, 0.0, -1.0, -torch.inf], dtype=torch.float64)


def test_the_rule_accepts_softmax_in_both_types():
    for logits in (LOGITS, LOGITS.float()):
        check_distribution(logits.softmax(-1), logits, Sampling())
        check_distribution(logits.double().softmax(-1), logits, Sampling())


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1e-300, 0.5, 1.0])
def test_the_rule_refuses_a_single_wrong_element(place, wrong):
    probabilities = LOGITS.softmax(-1)
    probabilities[place] = wrong
    with pytest.raises(Violation):
        check_distribution(probabilities, LOGITS, Sampling())


@pytest.mark.parametrize(
    "garbage",
    [
        torch.full((4,), torch.nan, dtype=torch.float64),
        torch.zeros(4, dtype=torch.float64),
        LOGITS.softmax(-1)[:3],
        LOGITS.softmax(-1).float(),
        LOGITS.softmax(-1)[None],
        2 * LOGITS.softmax(-1),
        LOGITS.softmax(-1).flip(0),
        LOGITS.softmax(-1) * (1 + 1e-13),
        LOGITS.softmax(-1).tolist(),
        None,
    ],
)
def test_the_rule_refuses_garbage(garbage):
    with pytest.raises(Violation):
        check_distribution(garbage, LOGITS, Sampling())


def test_the_rule_refuses_too_few_and_too_many_tokens():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
    kept = {
        size: logits.masked_fill(torch.arange(4) >= size, -torch.inf).softmax(-1)
        for size in (1, 2, 3)
    }
    check_distribution(kept[2], logits, Sampling(top_k=2))
    for size in (1, 3):
        with pytest.raises(Violation, match="2 tokens must be kept"):
            check_distribution(kept[size], logits, Sampling(top_k=2))
    with pytest.raises(Violation, match="most probable"):
        check_distribution(kept[2][[0, 2, 1, 3]], logits, Sampling(top_k=2))


@pytest.mark.parametrize(
    ("heads", "flips", "alarm"),
    [(500, 1000, False), (600, 1000, False), (700, 1000, True), (0, 1000, True)],
)
def test_frequencies_are_judged_by_their_probability(heads, flips, alarm):
    outcomes = ["head"] * heads + ["tail"] * (flips - heads)
    fair = {"head": 0.5, "tail": 0.5}
    if alarm:
        with pytest.raises(Violation):
            check_frequencies(outcomes, fair, "coin")
    else:
        check_frequencies(outcomes, fair, "coin")


def test_frequencies_refuse_impossible_outcomes():
    with pytest.raises(Violation, match="edge"):
        check_frequencies(["edge"], {"head": 1.0}, "coin")
    with pytest.raises(Violation):
        check_frequencies(["head", "tail"], {"head": 1.0, "tail": 0.0}, "coin")


def test_the_limit_of_frequencies_bounds_the_exact_false_alarm():
    """Compare the exact binomial tail with the Chernoff bound that the check relies on."""
    n, p = 200, 0.3
    for count in (0, 20, 40, 80, 100, 140, 200):
        side = range(count, n + 1) if count > n * p else range(count + 1)
        tail = math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in side)
        assert tail <= math.exp(-n * relative_entropy(count / n, p)) * (1 + 1e-12)


def test_scripts_depend_on_every_id_and_make_ties():
    case = ScriptCase(vocab=6)
    assert case.next_logits([1, 2]).tolist() != case.next_logits([2, 1]).tolist()
    assert case.next_logits([1, 2]).tolist() != case.next_logits([2]).tolist()
    assert len(set(ScriptCase(levels=1).next_logits([0]).tolist())) == 1


@pytest.mark.parametrize("case", [case for case in PINNED if case.n_layer][::3], ids=str)
@pytest.mark.parametrize("cached", [False, True])
def test_the_generation_of_the_reference_equals_that_of_the_laws(case, cached):
    case = case.but(batch=1, n_positions=case.length + NEW_TOKENS)
    inputs = draw(case)
    model = MODEL.build(inputs.config, inputs.state_dict)
    prompt = inputs.input_ids[0].tolist()
    expected = generate_greedily(model, prompt, NEW_TOKENS, inputs.state_dict, cached=cached)
    tokens = generate(model, prompt, max_new_tokens=NEW_TOKENS, greedy=True, use_cache=cached)
    assert list(tokens) == expected


def test_generated_tokens_tell_models_apart():
    """Laws that compare tokens need models with different tokens."""
    seen = set()
    for case in PINNED[4::2]:
        inputs = draw(case.but(batch=1, n_positions=case.length + NEW_TOKENS))
        model = MODEL.build(inputs.config, inputs.state_dict)
        prompt = inputs.input_ids[0].tolist()
        seen.add(
            tuple(generate_greedily(model, prompt, NEW_TOKENS, inputs.state_dict, cached=False))
        )
    assert len(seen) >= 6
    assert sum(len(set(tokens)) > 1 for tokens in seen) >= 4


def test_a_sampler_is_declared_as_data():
    declared = sampler("correct", Sampler())
    assert isinstance(declared, SamplerImplementation)
    assert declared.supports(Sampling()) is None
    assert str(Sampling(top_k=3, top_p=0.5)) == "temperature=1.0 top_k=3 top_p=0.5"
