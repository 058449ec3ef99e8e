"""Laws of the encoder: correct BERTs pass, each mutant is killed and explained."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.bert import correct
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.bert import mistakes
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.conformance.operators.bert.subject import BertSubject
from attnspec.reference.encoder import build
from attnspec.reference.operator_implementations import BERT
from attnspec.spec.encoder import BertImplementation

importlib.import_module("attnspec.conformance.laws.encoder.definition")
importlib.import_module("attnspec.conformance.mutants.encoder.mistakes")
LAWS = {name: law for name, law in registered().items() if law.judges == "bert"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, BertImplementation)
}


def subject_of(base) -> BertSubject:
    return BertSubject(implementation=correct(base=base))


CORRECT = {
    "steps": subject_of(Steps),
    # in a function of its own, so that torch's functions do not judge it
    "reference": subject_of(lambda config, weights: build(config, weights)),
}


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_bert_passes_and_the_pass_is_evidence(which, name):
    law = LAWS[name]
    assert judged_count(law, CORRECT[which], law.pinned) == len(law.pinned)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=12)
@given(data=st.data())
def test_correct_berts_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = CORRECT[data.draw(st.sampled_from(sorted(CORRECT)))]
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.rotating(parts=2)
@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Torch's functions judge it."""
    subject = BertSubject(implementation=BERT)
    assert subject.is_reference
    judged_count(LAWS[name], subject, LAWS[name].pinned)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    law, subject = LAWS[mutant.killed_by], BertSubject(implementation=mutant.subject)
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


STAGES = {
    mistakes.NoTypes: "the embeddings: token types are ignored",
    mistakes.PreNorm: "block 0: LayerNorm precedes each branch",
    mistakes.Causal: "block 0: a causal mask hides later tokens",
    mistakes.TanhGELU: "block 0: the activation is the tanh form of GELU",
    mistakes.PoolsMean: "the pooler: the pooler reads the mean of all positions",
    mistakes.NoHeadNorm: "the head: the head has no LayerNorm",
}
CASE = BertCase(layers=2, heads=2, length=5, typed=True, pooled=True, seed=1)


@pytest.mark.parametrize("base", STAGES, ids=lambda base: base.__name__)
def test_the_first_stage_that_diverges_is_named_with_its_cause(base):
    with pytest.raises(Explained, match=STAGES[base]):
        subject_of(base).judge_case(CASE, "wrong")


def test_two_mistakes_of_a_block_are_both_named():
    both = type("Both", (mistakes.Causal, mistakes.ScaleOfModel), {})
    cause = r"block 0: a causal mask hides later tokens and scores are scaled by the width of"
    with pytest.raises(Explained, match=cause):
        subject_of(both).judge_case(CASE, "wrong")


def test_mistakes_of_several_stages_are_named_one_after_another():
    all_three = type("Three", (mistakes.NoTypes, mistakes.PreNorm, mistakes.NoHeadBias), {})
    two = type("Two", (mistakes.PreNorm, mistakes.NoHeadBias), {})
    with pytest.raises(Explained, match="the embeddings: token types are ignored"):
        subject_of(all_three).judge_case(CASE, "wrong")
    with pytest.raises(Explained, match="block 0: LayerNorm precedes each branch"):
        subject_of(two).judge_case(CASE, "wrong")
    with pytest.raises(Explained, match="the head: the head has no bias"):
        subject_of(mistakes.NoHeadBias).judge_case(CASE, "wrong")


def test_without_hidden_states_the_logits_tell_the_cause():
    declared = BertImplementation(name="it", function=mistakes.PreNorm, features=frozenset())
    subject = BertSubject(implementation=declared)
    with pytest.raises(Explained, match="LayerNorm precedes each branch") as error:
        subject.judge_case(BertCase(length=4), "wrong")
    assert str(error.value).startswith("LayerNorm")


def test_a_mistake_that_is_not_listed_has_its_stage():
    class Doubled(Steps):
        def feed_forward(self, name, x):
            return 2 * super().feed_forward(name, x)

    with pytest.raises(Explained, match="block 0 is the first stage that diverges"):
        subject_of(Doubled).judge_case(CASE, "wrong")


@pytest.mark.parametrize(("dtype", "share"), [(torch.float64, 1e-11), (torch.float32, 5e-3)])
def test_a_bound_of_six_blocks_is_far_below_the_logits(dtype, share):
    subject = CORRECT["steps"]
    for seed in range(5):
        case = BertCase(layers=6, heads=2, length=5, dtype=dtype, seed=seed)
        weights, inputs = case.draw_parameters(), case.draw()
        expected = subject.expect(case, weights, inputs)["logits"]
        assert float(expected.bound.max()) < share * float(expected.value.abs().max())
        got = subject.call(case, weights, inputs)["logits"].double()
        assert bool(((got - expected.value).abs() <= expected.bound).all())
