"""Laws of a LayerNorm on its own: correct ones pass under every profile, mutants are killed."""

import contextlib
import importlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.layer_norm import (
    PlainLayerNorm,
    WithExplicitBackward,
    correct,
)
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.layer_norm.case import LayerNormCase
from attnspec.conformance.operators.layer_norm.subject import LayerNormSubject
from attnspec.reference.operator_implementations import LAYER_NORM
from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile, Saved
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import RoundingToStorage

importlib.import_module("attnspec.conformance.laws.layer_norm.operator")
importlib.import_module("attnspec.conformance.mutants.layer_norm.operator")
LAWS = {name: law for name, law in registered().items() if law.judges == "layer_norm"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, LayerNormImplementation)
}


def cast_first(x, shape, weight, bias, eps):
    ones, zeros = torch.ones_like(weight), torch.zeros_like(bias)
    return PlainLayerNorm()(x, shape, ones, zeros, eps) * weight + bias


def naive(x, shape, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


CORRECT = {
    "torch": (functional.layer_norm, LayerNormProfile(saved=Saved.STORAGE)),
    "plain": (PlainLayerNorm(), LayerNormProfile()),
    "explicit": (WithExplicitBackward(), LayerNormProfile()),
    "cast first": (cast_first, LayerNormProfile(rounding=RoundingToStorage.BEFORE_GAIN)),
    "naive": (naive, LayerNormProfile(working=Working.STORAGE)),
}


def subject_of(function, profile) -> LayerNormSubject:
    declared = LayerNormImplementation(name="it", function=function, profile=profile)
    return LayerNormSubject(implementation=declared)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_layer_norm_passes(which, name):
    law, subject = LAWS[name], subject_of(*CORRECT[which])
    assert judged_count(law, subject, law.pinned) == len(law.pinned)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_layer_norms_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = subject_of(*data.draw(st.sampled_from(list(CORRECT.values()))))
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Torch's function judges it."""
    subject = LayerNormSubject(implementation=LAYER_NORM)
    assert subject.is_reference
    law = LAWS[name]
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = LayerNormSubject(implementation=mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-ln-unbiased", "the variance is divided by one less than the channels"),
        ("own-ln-no-mean", "the mean is not subtracted: this is RMSNorm plus a bias"),
        ("own-ln-bias-first", "the bias is added before the gain"),
        ("own-ln-one-pass", "rows far from zero are normalized wrongly, and right once their"),
        ("own-ln-fixed-epsilon", "epsilon is 1e-05 whatever the caller says"),
        ("own-ln-no-epsilon", "(a row of equal numbers gives NaN: )?epsilon is not added"),
        ("own-ln-of-all-rows", "the variance is that of all rows"),
        ("own-ln-moments-in-storage", "right only under working=storage: the profile says float32"),
        ("own-ln-cast-before-gain", "right only under rounding=before_gain"),
    ],
)
def test_each_failure_leads_with_the_cause(name, message):
    subject = LayerNormSubject(implementation=MUTANTS[name].subject)
    messages = {}
    for law in LAWS.values():
        try:
            judged_count(law, subject, law.pinned)
        except Violation as error:
            messages[law.name] = str(error)
    assert MUTANTS[name].killed_by in messages
    assert [each for each in messages.values() if not re.match(message, each)] == []


def test_statistics_that_are_wrong_in_16_bits_alone_are_named():
    def lost(x, shape, weight, bias, eps):
        rows = x - 1 if x.dtype == torch.bfloat16 and bool(x.mean() > 10) else x
        first = 0.5 if x.dtype == torch.bfloat16 else 1.0
        return correct().function(rows, shape, weight * first, bias, eps)

    subject = subject_of(lost, LayerNormProfile())
    case = LayerNormCase(shape=(3,), channels=64, dtype=torch.bfloat16)
    with pytest.raises(Explained, match="mean or variance is wrong in bfloat16 and right in flo"):
        LAWS["a-layer-norm-equals-the-definition"].check(subject, case)
    LAWS["a-layer-norm-equals-the-definition"].check(subject, case.but(dtype=torch.float32))


def test_float64_in_float32_is_named_and_allowed_where_it_is_declared():
    def narrowed(x, shape, weight, bias, eps):
        out = functional.layer_norm(x.float(), shape, weight.float(), bias.float(), eps)
        return out.to(x.dtype)

    law = LAWS["a-layer-norm-equals-the-definition"]
    case = LayerNormCase(shape=(3,), channels=64)
    with pytest.raises(Explained, match="results in float64 have the accuracy of float32"):
        law.check(subject_of(narrowed, LayerNormProfile()), case)
    declared = LayerNormProfile(float64_precision=Float64Precision.FLOAT32)
    law.check(subject_of(narrowed, declared), case)
