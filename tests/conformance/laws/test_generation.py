"""The laws of GEN: the rules by which they accept distributions, frequencies and tokens."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.comparison.frequencies import check_frequencies, relative_entropy
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.generation.model import NEW_TOKENS, generate_greedily
from attnspec.conformance.models.case import PINNED, draw
from attnspec.conformance.mutants.bases.sampler import Sampler, sampler
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.text.beams import Errors, expected_hypotheses, flat
from attnspec.conformance.text.distribution import check_distribution, sizes
from attnspec.conformance.text.sampler_cases import ScriptCase
from attnspec.reference.beam_search import beam_search
from attnspec.reference.generation import generate
from attnspec.reference.model import MODEL
from attnspec.spec import (
    EarlyStopping,
    Hypothesis,
    SamplerFeature,
    SamplerImplementation,
    Sampling,
)

LAWS = laws.load()


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
        ([2.0, 1.0, 0.0], Sampling(min_p=0.0), {3}),
        ([2.0, 1.0, 0.0], Sampling(min_p=0.3), {2}),
        ([2.0, 1.0, 0.0], Sampling(min_p=1.0), {1}),
        ([2.0, 2.0, 0.0], Sampling(min_p=1.0), {2}),
        ([2.0, 2.0, 2.0 - 1e-10, 0.0], Sampling(min_p=1.0), {2, 3}),
        ([1.0, 0.0], Sampling(min_p=math.exp(-1)), {1, 2}),
        ([1.125, 0.0, -0.125, -0.5], Sampling(top_p=0.6, min_p=0.31), {2}),
        ([1.125, 0.0, -0.125, -0.5], Sampling(top_k=3, min_p=0.1), {3}),
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
    assert str(Sampling(min_p=0.0)) == "temperature=1.0 min_p=0.0"


def test_a_claim_of_beam_search_needs_the_function():
    declared = sampler("correct", Sampler())
    for change in ({"beam_search": None}, {"features": frozenset({SamplerFeature.MIN_P})}):
        with pytest.raises(ValueError, match="correct: the feature beam_search needs"):
            replace(declared, **change)


def test_laws_of_features_that_a_sampler_does_not_claim_are_not_tried():
    plain = replace(sampler("plain", Sampler()), features=frozenset(), beam_search=None)
    for name in ("min-p-comes-last", "beam-search-keeps-the-best-continuations"):
        record = check(LAWS[name], plain, None)
        assert record.outcome is Outcome.NOT_CLAIMED
    record = check(LAWS["settings-out-of-range-are-refused"], plain, None)
    assert record.outcome is Outcome.PASSED


class TestBeams:
    """Tests of the definition of a beam search against a search among all texts."""

    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -0.5])
    def test_a_wide_beam_that_stops_never_finds_the_best_finished_text(self, seed, penalty):
        case = flat(
            vocab=3,
            beams=27,
            max_new_tokens=3,
            stop_tokens=(2,),
            length_penalty=penalty,
            early_stopping=EarlyStopping.NEVER,
            seed=seed,
        )
        short = [tokens for n in range(1, 4) for tokens in itertools.product(range(3), repeat=n)]
        ends = [tokens for tokens in short if 2 not in tokens[:-1] and tokens[-1] == 2]
        ends += [tokens for tokens in short if len(tokens) == 3 and 2 not in tokens]
        best = max(ends, key=case.score)
        found = beam_search(
            case.script.next_logits,
            list(case.prompt),
            max_new_tokens=3,
            beams=27,
            length_penalty=penalty,
            early_stopping=EarlyStopping.NEVER,
            stop_tokens={2},
        )
        assert found[0].tokens == best
        assert found[0].score == pytest.approx(case.score(best), rel=1e-12)
        assert sorted(each.tokens for each in found) == sorted(ends)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_the_errors_of_correct_sums_are_within_their_bound(self, dtype):
        for seed in range(40):
            case = flat(vocab=9, max_new_tokens=6, seed=seed)
            tokens = tuple(case.script.greedy())
            steps = [
                case.script.next_logits([*case.prompt, *tokens[:n]]).to(dtype).log_softmax(-1)[t]
                for n, t in enumerate(tokens)
            ]
            total = torch.zeros((), dtype=dtype)
            for step in steps:
                total = total + step
            bound = Errors(case, dtype).of_sum(case.sum(tokens), len(tokens))
            assert abs(float(total) - case.sum(tokens)) <= bound
            assert bound < (1e-3 if dtype is torch.float32 else 1e-11)

    def test_a_case_whose_hypotheses_tie_says_nothing(self):
        case = flat(levels=1)
        with pytest.raises(NotClaimed, match="closer than the errors"):
            expected_hypotheses(case, torch.float64)

    def test_too_few_hypotheses_say_nothing(self):
        with pytest.raises(NotClaimed, match="fewer hypotheses than beams"):
            expected_hypotheses(flat(vocab=2, beams=9), torch.float64)

    def test_few_pinned_cases_are_open(self):
        for name in ("beam-search-keeps-the-best-continuations", "a-beam-search-ends-by-its-rule"):
            for case in LAWS[name].pinned:
                assert len(expected_hypotheses(case, torch.float32)) == case.beams.beams

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            ([Hypothesis((0, 1, 2), -1.0), Hypothesis((0, 1, 3), -2.0)], "4 tokens or ends"),
            ([Hypothesis((0, 1, 5, 5), -1.0)] * 2, "first stop token"),
            ([Hypothesis((0, 1, 2, 3), -1.0)] * 2, "2 different hypotheses"),
            ([Hypothesis((0, 1, 2, 3), -1.0)], "2 different hypotheses"),
            ([Hypothesis((0, 1, 2, 9), -1.0)] * 2, "gives hypotheses of ids"),
            ([Hypothesis((), -1.0)] * 2, "4 tokens or ends"),
            ([(0, 1, 2, 3)] * 2, "gives hypotheses of ids"),
        ],
    )
    def test_a_result_of_a_wrong_form_is_rejected(self, found, message):
        wrong = replace(sampler("wrong", Sampler()), beam_search=lambda *_, **__: found)
        with pytest.raises(Violation, match=message):
            LAWS["a-stop-token-finishes-a-hypothesis"].check(wrong, flat(stop_tokens=(5,)))
