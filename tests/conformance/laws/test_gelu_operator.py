"""Laws of a GELU on its own: correct ones pass under every profile, mutants are killed."""

import contextlib
import functools
import importlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.gelu.subject import GELUSubject
from attnspec.reference.operator_implementations import GELU
from attnspec.spec.gelu import Approximate, GELUImplementation, GELUProfile
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision

importlib.import_module("attnspec.conformance.laws.activation.operator")
importlib.import_module("attnspec.conformance.mutants.activation.operator")
LAWS = {name: law for name, law in registered().items() if law.judges == "gelu"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, GELUImplementation)
}
CORRECT = {
    "exact": (functional.gelu, GELUProfile()),
    "tanh": (
        functools.partial(functional.gelu, approximate="tanh"),
        GELUProfile(approximate=Approximate.TANH),
    ),
    "steps": (
        lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
        GELUProfile(working=Working.STORAGE),
    ),
    "steps of tanh": (
        lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        GELUProfile(approximate=Approximate.TANH, working=Working.STORAGE),
    ),
    "narrowed": (
        lambda x: functional.gelu(x.float()).to(x.dtype),
        GELUProfile(float64_precision=Float64Precision.FLOAT32),
    ),
}


def subject_of(function, profile) -> GELUSubject:
    declared = GELUImplementation(name="it", function=function, profile=profile)
    return GELUSubject(implementation=declared)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_gelu_passes(which, name):
    law, subject = LAWS[name], subject_of(*CORRECT[which])
    assert judged_count(law, subject, law.pinned) == len(law.pinned)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_gelus_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = subject_of(*data.draw(st.sampled_from(list(CORRECT.values()))))
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Python's erfc and tanh judge it."""
    subject = GELUSubject(implementation=GELU)
    assert subject.is_reference
    law = LAWS[name]
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = GELUSubject(implementation=mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-gelu-tanh-for-erf", "the tanh form: the profile says approximate=none"),
        ("own-gelu-erf-for-tanh", "the exact form, by erf: the profile says approximate=tanh"),
        ("own-gelu-quick", r"this is x times the logistic function of 1.702 x \(quick_gelu\), not"),
        ("own-gelu-cube", "this is the tanh form with 0.44715 for 0.044715, not GELU"),
        ("own-gelu-steps-in-storage", "right only under working=storage: the profile says float32"),
    ],
)
def test_each_failure_leads_with_the_cause(name, message):
    subject = GELUSubject(implementation=MUTANTS[name].subject)
    messages = {}
    for law in LAWS.values():
        try:
            judged_count(law, subject, law.pinned)
        except Violation as error:
            messages[law.name] = str(error)
    assert MUTANTS[name].killed_by in messages
    assert [each for each in messages.values() if not re.match(message, each)] == []
