"""Beam search on models: with and without a cache, and beside Hugging Face's `generate`."""

import math
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GPT2LMHeadModel
from transformers import GPT2Config as HuggingFaceConfig

from attnspec.reference.beam_search import beam_search, generate_beams, log_probabilities
from attnspec.reference.generation import generate
from attnspec.reference.model import GPT2, build
from attnspec.spec import EarlyStopping, GPT2Config

SIZES = {"vocab_size": 23, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
PAD = 9
RULES: dict[EarlyStopping, bool | str] = {
    EarlyStopping.NEVER: "never",
    EarlyStopping.HEURISTIC: False,
    EarlyStopping.FULL: True,
}


@pytest.fixture(scope="module")
def models() -> tuple[GPT2, Any]:
    """Build a small model twice: the reference and Hugging Face's, with equal parameters."""
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(HuggingFaceConfig(**SIZES, initializer_range=0.7)).double().eval()
    names = theirs.state_dict()
    weights = {name: names[name] for name in names if name != "lm_head.weight"}
    return build(GPT2Config(**SIZES), weights), theirs


@pytest.mark.rotating(parts=2)
@pytest.mark.parametrize("rule", EarlyStopping)
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("stops", [(), (3,), (3, 11)])
def test_hypotheses_are_those_of_hugging_face(
    models: tuple[GPT2, Any], rule: EarlyStopping, penalty: float, stops: tuple[int, ...]
) -> None:
    ours, theirs = models
    for beams, prompt in ((2, [5, 7, 1]), (3, [0]), (5, [22, 4])):
        found = generate_beams(
            ours,
            prompt,
            max_new_tokens=8,
            beams=beams,
            length_penalty=penalty,
            early_stopping=rule,
            stop_tokens=stops,
        )
        ids = torch.tensor([prompt])
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                max_new_tokens=8,
                num_beams=beams,
                num_return_sequences=beams,
                length_penalty=penalty,
                early_stopping=RULES[rule],
                eos_token_id=list(stops) or None,
                pad_token_id=PAD,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            ),
        )
        rows = out.sequences[:, len(prompt) :].tolist()
        for each, row, score in zip(found, rows, out.sequences_scores.tolist(), strict=True):
            assert list(each.tokens) == row[: len(each.tokens)]
            assert set(row[len(each.tokens) :]) <= {PAD}
            # Hugging Face adds log-probabilities in float32
            assert each.score == pytest.approx(score, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_with_and_without_a_cache_the_hypotheses_are_equal(
    models: tuple[GPT2, Any], beams: int
) -> None:
    search = {"max_new_tokens": 9, "beams": beams, "stop_tokens": [3]}
    cached, plain = (
        generate_beams(models[0], [1, 2, 3], use_cache=use_cache, **search)
        for use_cache in (True, False)
    )
    assert [each.tokens for each in cached] == [each.tokens for each in plain]
    for one, other in zip(cached, plain, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-12)


def test_one_beam_is_greedy(models: tuple[GPT2, Any]) -> None:
    (found,) = generate_beams(models[0], [4, 2], max_new_tokens=9, beams=1)
    assert list(found.tokens) == list(generate(models[0], [4, 2], max_new_tokens=9, greedy=True))


def test_more_beams_can_find_a_less_probable_text() -> None:
    """GEN-15 promises no text as probable as the greedy one: here is one that leaves the beam."""
    steps = {
        (): [0.4, 0.3, 0.3],
        (0,): [0.34, 0.33, 0.33],
        (1,): [0.5, 0.5, 0.0],
        (2,): [0.5, 0.5, 0.0],
        (0, 0): [1.0, 0.0, 0.0],
    }

    def next_logits(ids: Any) -> torch.Tensor:
        return torch.tensor(steps.get(tuple(ids[1:]), [0.4, 0.3, 0.3])).double().log()

    found = {
        beams: beam_search(next_logits, [0], max_new_tokens=3, beams=beams)[0] for beams in (1, 2)
    }
    assert found[1].tokens == (0, 0, 0)
    assert found[2].score < found[1].score


def test_hypotheses_without_probability_are_not_found() -> None:
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    found = beam_search(lambda ids: certain, [0], max_new_tokens=3, beams=2)
    assert [(each.tokens, each.score) for each in found] == [((0, 0, 0), 0.0)]
    (ended,) = beam_search(lambda ids: certain, [0], max_new_tokens=3, beams=2, stop_tokens=[0])
    assert ended.tokens == (0,)
    assert beam_search(lambda ids: certain, [0], max_new_tokens=0, beams=2) == []


def test_log_probabilities_are_exact_for_large_logits() -> None:
    got = log_probabilities(torch.tensor([1000.0, 1000.0, -torch.inf]))
    assert got.tolist() == [-math.log(2), -math.log(2), -math.inf]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be at least 1, got 0"),
        ({"length_penalty": math.nan}, "length_penalty must be finite"),
        ({"length_penalty": 2000.0}, "and so must max_new_tokens to its power"),
        ({"length_penalty": -2000.0}, "and so must max_new_tokens to its power"),
        ({"max_new_tokens": -1}, "max_new_tokens must not be negative"),
        ({"max_new_tokens": 22}, "do not fit into the model's 24 positions"),
        ({"input_ids": []}, "the prompt must hold at least one token"),
    ],
)
def test_bad_settings_are_refused(
    models: tuple[GPT2, Any], options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"input_ids": [1, 2, 3], "max_new_tokens": 2, "beams": 2}
    with pytest.raises(ValueError, match=message):
        generate_beams(models[0], **(arguments | options))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_without_a_distribution_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="logits must not be"):
        beam_search(lambda ids: torch.tensor([0.0, bad]), [0], max_new_tokens=2, beams=2)
