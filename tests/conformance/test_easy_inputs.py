"""Each mutant of a model, a sampler or a tokenizer is right on some easy input: none is dead."""

import pytest
import torch

import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.laws.generation_filters import law_temperature_divides_the_logits
from attnspec.conformance.laws.tokenization import law_decoding_undoes_encoding
from attnspec.conformance.model_case import ModelCase, draw
from attnspec.conformance.model_judge import ask, build, hold_to_oracle
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.sampling_case import LogitsCase
from attnspec.conformance.text_case import TextCase, definition, tokenizer
from attnspec.conformance.violation import Violation
from attnspec.spec import ModelImplementation, SamplerImplementation, TokenizerImplementation

F64, F32 = torch.float64, torch.float32

MODELS = (
    ModelCase(length=4),
    ModelCase(length=1),
    # as the released models are: everything that a configuration can change is as usual
    ModelCase(n_head=2, d_head=4, length=1, dtype=F32),
    # weights so small that only the embeddings are left
    ModelCase(length=1, n_positions=1, initializer_range=1e-3),
)
SAMPLERS = (LogitsCase(logits=(0.0, 1.0, -2.0)), LogitsCase(logits=(0.0, 0.0)))
TEXTS = ("Hello world", "a", "")


def of_kind(kind):
    return {name: each for name, each in planted().items() if isinstance(each.subject, kind)}


def holds(check, *given):
    try:
        check(*given)
    except Violation:
        return False
    return True


def model_is_right(subject, case):
    inputs = draw(case)
    hold_to_oracle(subject, case.config, inputs.state_dict, inputs.input_ids, "wrong")


def model_is_right_without_weights(subject, case):
    inputs = draw(case)
    weights = {name: torch.zeros_like(each) for name, each in inputs.state_dict.items()}
    return not ask(build(subject, case.config, weights), inputs.input_ids, weights).any()


def sampler_is_right(subject, case):
    law_temperature_divides_the_logits(subject, case)


def tokenizer_is_right(subject, text):
    law_decoding_undoes_encoding(subject, TextCase(text=text))


@pytest.mark.parametrize("mutant", of_kind(ModelImplementation))
def test_a_model_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    assert any(
        holds(model_is_right, subject, case) for case in MODELS
    ) or model_is_right_without_weights(subject, MODELS[0])


@pytest.mark.parametrize("mutant", of_kind(SamplerImplementation))
def test_a_sampler_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    assert any(holds(sampler_is_right, subject, case) for case in SAMPLERS)


@pytest.mark.parametrize("mutant", of_kind(TokenizerImplementation))
def test_a_tokenizer_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    decoded = tokenizer(subject, "trained").decode(definition("trained").encode("a"))
    assert any(holds(tokenizer_is_right, subject, text) for text in TEXTS) or decoded == "a"
