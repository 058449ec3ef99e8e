"""Laws of additive attention: correct ones pass, each mutant is killed."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.additive_attention import correct
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.additive_attention.subject import AdditiveAttentionSubject
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.reference.operator_implementations import ADDITIVE_ATTENTION
from attnspec.spec.additive_attention import (
    AdditiveAttentionImplementation,
    AdditiveAttentionProfile,
)
from attnspec.spec.profiles import Float64Precision

importlib.import_module("attnspec.conformance.laws.additive_attention.definition")
importlib.import_module("attnspec.conformance.mutants.additive_attention.mistakes")
LAWS = {name: law for name, law in registered().items() if law.judges == "additive_attention"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, AdditiveAttentionImplementation)
}


def in_storage(query, key, value, w_query, w_key, w_score, *, bias=None, mask=None):
    """Rounds every step to the storage type."""
    hidden = (query @ w_query.mT)[:, :, None] + (key @ w_key.mT)[:, None]
    scores = torch.tanh(hidden if bias is None else hidden + bias) @ w_score
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return torch.softmax(scores, -1) @ value


def narrowed(*operands, bias=None, mask=None):
    """Computes float64 in float32."""
    dtype = operands[0].dtype
    bias = None if bias is None else bias.float()
    return in_storage(*(each.float() for each in operands), bias=bias, mask=mask).to(dtype)


def subject_of(function, precision=Float64Precision.FLOAT64, **claims) -> AdditiveAttentionSubject:
    declared = AdditiveAttentionImplementation(
        name="it",
        function=function,
        features=AdditiveAttentionImplementation.FEATURES,
        profile=AdditiveAttentionProfile(float64_precision=precision),
        **claims,
    )
    return AdditiveAttentionSubject(implementation=declared)


CORRECT = {
    "plain": subject_of_operator(correct()),
    "in_storage": subject_of(in_storage),
    "narrowed": subject_of(narrowed, Float64Precision.FLOAT32),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_additive_attention_passes_and_the_pass_is_evidence(which, name):
    law, subject = LAWS[name], CORRECT[which]
    assert judged_count(law, subject, law.pinned) == len(law.pinned)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_additive_attentions_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = CORRECT[data.draw(st.sampled_from(sorted(CORRECT)))]
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Scalar loops judge it."""
    subject = AdditiveAttentionSubject(implementation=ADDITIVE_ATTENTION)
    assert subject.is_reference
    law = LAWS[name]
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    law = LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject_of_operator(mutant.subject), law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


def test_float64_in_float32_fails_where_it_is_not_declared():
    law = LAWS["additive-attention-equals-the-definition"]
    with pytest.raises(Violation):
        judged_count(law, subject_of(narrowed), law.pinned)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_one_element_off_by_a_tenth_exceeds_the_bound(dtype):
    subject = CORRECT["plain"]
    law = LAWS["additive-attention-equals-the-definition"]
    tensors = law.pinned[3].but(dtype=dtype).draw()
    expected, got = subject.expect(tensors), subject.call(tensors).double()
    assert bool(((got - expected.value).abs() <= expected.bound).all())
    largest = expected.value.abs().argmax()
    assert float(0.1 * expected.value.abs().flatten()[largest]) > float(
        expected.bound.flatten()[largest]
    )


CAUSES = {
    "ADD-04": "the tanh is left out",
    "own-add-logistic": "the hidden channels are those of a logistic function",
    "ADD-03": "the softmax runs over the queries",
    "own-add-masked-weights": "padding is hidden after the softmax, and the weights do not sum",
    "ADD-01": "padding is attended like real states",
    "own-add-polarity": "the mask is read as true for padding",
    "own-add-centred-keys": "the mean key is subtracted from every key",
    "own-add-product": "projected queries and keys are multiplied",
    "own-add-scaled": "scores are divided by the root of the hidden channels",
    "ADD-02": "the bias is forgotten",
    "own-add-bias-twice": "the bias is added twice",
    "own-add-zeroed-scores": "the score of padding is zero",
    "own-add-lowered-scores": "the score of padding is lowered by 100, and may count",
    "own-add-overflowing-tanh": "exponentials inside the tanh overflow",
    "own-add-unstable-softmax": "nothing is subtracted from the scores, and exponentials overflow",
    "own-add-first-text": "the keys of the first text serve all of them",
    "own-add-shared-query": "the mean of all queries of a text is the query",
    "own-add-in-place": "value is written to",
    "own-add-constant-queries": "the gradient of query and w_query is half of the right one",
    "own-add-slope-of-output": "the backward pass takes 1 − tanh for the slope of tanh",
}
UNNAMED = {
    # a score may grow with the place by any amount; the law's message says what happens
    "own-add-recency": "the order of the states changes the output",
}


def test_each_mutant_has_a_cause_or_a_reason_for_none():
    assert CAUSES.keys() | UNNAMED.keys() == MUTANTS.keys()
    assert not CAUSES.keys() & UNNAMED.keys()


@pytest.mark.parametrize("name", UNNAMED)
def test_a_mistake_without_a_name_has_the_message_of_its_law(name):
    law, subject = LAWS[MUTANTS[name].killed_by], subject_of_operator(MUTANTS[name].subject)
    with pytest.raises(Violation, match=f"^{UNNAMED[name]}") as error:
        judged_count(law, subject, law.pinned)
    assert not isinstance(error.value, Explained)


@pytest.mark.parametrize("name", CAUSES)
def test_a_known_mistake_is_the_cause_of_the_failure(name):
    law, subject = LAWS[MUTANTS[name].killed_by], subject_of_operator(MUTANTS[name].subject)
    with pytest.raises(Explained, match=f"^{CAUSES[name]}"):
        judged_count(law, subject, law.pinned)


def test_a_mistake_that_is_not_listed_has_no_name():
    def halved(*operands, **options):
        return 0.5 * ADDITIVE_ATTENTION.function(*operands, **options)

    law = LAWS["additive-attention-equals-the-definition"]
    with pytest.raises(Violation) as error:
        judged_count(law, subject_of(halved), law.pinned)
    assert not isinstance(error.value, Explained)
