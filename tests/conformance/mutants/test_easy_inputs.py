"""Each mutant is right on an easy input: none always fails."""

import pytest
import torch

from attnspec.conformance import mutants
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.generation.filters import law_temperature_divides_the_logits
from attnspec.conformance.laws.tokenization.encoding import law_decoding_undoes_encoding
from attnspec.conformance.models.case import ModelCase, draw
from attnspec.conformance.models.oracle import check_against_oracle
from attnspec.conformance.models.subject import build, logits_of
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.text.sampler_cases import LogitsCase
from attnspec.conformance.text.tokenizer_cases import TextCase, tokenizer
from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.conformance.text.words import define
from attnspec.spec import (
    Case,
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    Scheme,
    TokenizerImplementation,
    Values,
)

mutants.load()

F64, F32 = torch.float64, torch.float32

CALLS = (
    Case(queries=1, keys=1, d_head=2, d_value=2, dtype=F32),
    # for mistakes that show even there: no scale, no score, a coarse dtype
    Case(dtype=F32, scale=1.0, values=Values.INTEGERS),
    Case(queries=3, keys=3, d_head=4, d_value=4, dtype=F32),
    Case(queries=1, keys=1, d_head=3, d_value=2, dtype=torch.bfloat16, values=Values.CANCELLATION),
)
MODELS = (
    ModelCase(length=4),
    ModelCase(length=1),
    # as in released models: every configurable option has its usual value
    ModelCase(n_head=2, d_head=4, length=1, dtype=F32),
    # parameters so small that the blocks add almost nothing to the embeddings
    ModelCase(length=1, n_positions=1, initializer_range=1e-3),
)
SAMPLERS = (LogitsCase(logits=(0.0, 1.0, -2.0)), LogitsCase(logits=(0.0, 0.0)))
TEXTS = ("Hello world", "a", "")


def of_kind(kind):
    return {id: mutant for id, mutant in planted().items() if isinstance(mutant.subject, kind)}


def holds(check, *arguments):
    try:
        check(*arguments)
    except Violation:
        return False
    return True


def attention_is_right(subject, case):
    call = subject.draw(case)
    expected = subject.expect(call)  # before a call that may change its operands
    out = subject.run(call)
    # a mutant may return its weights too
    check_oracle(call, out[0] if isinstance(out, tuple) else out, expected, "wrong")


def model_is_right(subject, case):
    inputs = draw(case)
    check_against_oracle(subject, case.config, inputs.state_dict, inputs.input_ids, "wrong")


def model_is_right_with_zero_parameters(subject, case):
    inputs = draw(case)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in inputs.state_dict.items()}
    return not logits_of(build(subject, case.config, zeros), inputs.input_ids, zeros).any()


def sampler_is_right(subject, case):
    law_temperature_divides_the_logits(subject, case)


def vocabulary_of(subject):
    (scheme,) = subject.schemes
    return "trained" if scheme is Scheme.BYTE_PAIR else str(scheme)


def tokenizer_is_right(subject, text):
    law_decoding_undoes_encoding(subject, TextCase(vocabulary=vocabulary_of(subject), text=text))


@pytest.mark.parametrize("mutant", of_kind(Implementation))
def test_an_attention_is_right_on_an_easy_input(mutant):
    subject = Subject(planted()[mutant].subject)
    assert any(holds(attention_is_right, subject, case) for case in CALLS)


@pytest.mark.parametrize("mutant", of_kind(ModelImplementation))
def test_a_model_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    assert any(
        holds(model_is_right, subject, case) for case in MODELS
    ) or model_is_right_with_zero_parameters(subject, MODELS[0])


@pytest.mark.parametrize("mutant", of_kind(SamplerImplementation))
def test_a_sampler_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    assert any(holds(sampler_is_right, subject, case) for case in SAMPLERS)


@pytest.mark.parametrize("mutant", of_kind(TokenizerImplementation))
def test_a_tokenizer_is_right_on_an_easy_input(mutant):
    subject = planted()[mutant].subject
    name = vocabulary_of(subject)
    decoded = tokenizer(subject, name).decode(define(vocabulary(name)).encode("a"))
    assert any(holds(tokenizer_is_right, subject, text) for text in TEXTS) or decoded == "a"
