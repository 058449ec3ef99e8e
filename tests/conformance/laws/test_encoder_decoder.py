"""Laws of the encoder-decoder: correct ones pass, each mutant is killed and explained."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.encoder_decoder import correct
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.encoder_decoder import mistakes
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.conformance.operators.encoder_decoder.steps import Steps
from attnspec.conformance.operators.encoder_decoder.subject import EncoderDecoderSubject
from attnspec.implementations import huggingface_bart, torch_transformer
from attnspec.reference.encoder_decoder import build
from attnspec.reference.operator_implementations import ENCODER_DECODER
from attnspec.spec.encoder_decoder import (
    EncoderDecoderImplementation,
    EncoderDecoderProfile,
    Sinusoids,
)

for module in ("laws.encoder_decoder.definition", "laws.encoder_decoder.reading"):
    importlib.import_module(f"attnspec.conformance.{module}")
importlib.import_module("attnspec.conformance.mutants.encoder_decoder.mistakes")
LAWS = {name: law for name, law in registered().items() if law.judges == "encoder_decoder"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, EncoderDecoderImplementation)
}
HALVES = EncoderDecoderProfile(sinusoids=Sinusoids.HALVES)


def subject_of(base, **declared) -> EncoderDecoderSubject:
    implementation = EncoderDecoderImplementation(
        name="it",
        function=base,
        **{"features": EncoderDecoderImplementation.FEATURES, **declared},
    )
    return EncoderDecoderSubject(implementation=implementation)


CORRECT = {
    "steps": subject_of(Steps),
    # in a function of its own, so that torch's functions do not judge it
    "reference": subject_of(lambda config, weights: build(config, weights)),
    "halves": subject_of(lambda config, weights: Steps(config, weights, HALVES), profile=HALVES),
}


@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_one_passes_and_the_pass_is_evidence(which, name):
    law = LAWS[name]
    # operations are counted, and parameters compared, without a bound
    exact = {"CRS-18", "CRS-20"} & set(law.clauses)
    count = judged_count(law, CORRECT[which], law.pinned)
    assert exact or count == len(law.pinned)


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=12)
@given(data=st.data())
def test_correct_ones_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = CORRECT[data.draw(st.sampled_from(sorted(CORRECT)))]
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.rotating(parts=10)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(
    "implementation",
    [ENCODER_DECODER, torch_transformer.IMPLEMENTATION, huggingface_bart.IMPLEMENTATION],
    ids=lambda each: each.name,
)
def test_the_reference_and_libraries_pass(implementation, name):
    """Torch's functions judge the reference."""
    law = LAWS[name]
    subject = EncoderDecoderSubject(implementation=implementation)
    if implementation.unavailable() or law.needs - implementation.features:
        return
    for case in map(subject.fit, law.pinned):
        if subject.refuses(case) is None:
            law.check(subject, case)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    law = LAWS[mutant.killed_by]
    subject = EncoderDecoderSubject(implementation=mutant.subject)
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


CASE = EncoderDecoderCase(
    encoder_layers=2,
    decoder_layers=2,
    encoder_heads=2,
    decoder_heads=4,
    d_model=8,
    source=5,
    target=4,
    act="gelu",
    seed=1,
)
STAGES = {
    mistakes.NoScale: "the embeddings of the encoder: the rows of tokens are not scaled",
    mistakes.PreNorm: "block 0 of the encoder: LayerNorm precedes each branch",
    mistakes.NotCausal: "block 0 of the decoder: the decoder has no causal mask",
    mistakes.ReadsEmbeddings: "block 0 of the decoder: cross-attention reads the embeddings",
    mistakes.TanhGELU: "block 0 of the encoder: the activation is the tanh form of GELU",
    mistakes.ScaledHead: "the head: the logits are divided by the root of the channels",
}


@pytest.mark.parametrize("base", STAGES, ids=lambda base: base.__name__)
def test_the_first_stage_that_diverges_is_named_with_its_cause(base):
    with pytest.raises(Explained, match=STAGES[base]):
        subject_of(base).judge_case(CASE, "wrong")


def test_two_mistakes_of_a_block_are_both_named():
    both = type("Both", (mistakes.NotCausal, mistakes.NoCrossResidual), {})
    cause = r"the decoder has no causal mask and the states are not added to the cross-attention"
    with pytest.raises(Explained, match=cause):
        subject_of(both).judge_case(CASE.but(decoder_layers=1), "wrong")


def test_a_mistake_of_steps_is_named():
    with pytest.raises(Explained, match="the steps: each step counts positions from zero"):
        subject_of(mistakes.StepsFromZero).judge_case(CASE.but(chunks=(2, 2)), "wrong")


def test_sinusoids_in_another_order_are_wrong_unless_declared():
    made = lambda config, weights: Steps(config, weights, HALVES)  # noqa: E731
    with pytest.raises(Violation):
        subject_of(made).judge_case(CASE, "wrong")
    subject_of(made, profile=HALVES).judge_case(CASE, "wrong")


def test_a_case_is_fitted_to_the_positions_that_are_claimed():
    subject = EncoderDecoderSubject(implementation=huggingface_bart.IMPLEMENTATION)
    assert subject.fit(CASE).learned
    assert not CORRECT["steps"].fit(CASE).learned


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("options", [{}, {"learned": True}, {"norm_first": True}])
def test_a_bound_of_six_blocks_in_float32_is_far_below_the_logits(options):
    subject = CORRECT["steps"]
    for seed in range(3):
        case = CASE.but(
            encoder_layers=6, decoder_layers=6, dtype=torch.float32, seed=seed, **options
        )
        weights, inputs = case.draw_parameters(), case.draw()
        expected = subject.expect(case, weights, inputs)["logits"]
        assert float(expected.bound.max()) < 2e-3 * float(expected.value.abs().max())
        got = subject.call(case, weights, inputs)["logits"].double()
        assert bool(((got - expected.value).abs() <= expected.bound).all())


def test_the_declaration_of_mutants_has_every_feature():
    assert correct().features == EncoderDecoderImplementation.FEATURES
