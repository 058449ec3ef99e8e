"""Laws of gated MLPs: correct ones pass in every form and packing, each mutant is killed."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.gated_mlp import correct
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.gated_mlp.subject import GatedMLPSubject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.spec.gated_mlp import (
    GatedMLPImplementation,
    GatedMLPProfile,
    GateForm,
    GatePacking,
)

importlib.import_module("attnspec.conformance.laws.gated_mlp.definition")
importlib.import_module("attnspec.conformance.mutants.gated_mlp.mistakes")
LAWS = {name: law for name, law in registered().items() if law.judges == "gated_mlp"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, GatedMLPImplementation)
}


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("packing", GatePacking)
@pytest.mark.parametrize("form", GateForm)
def test_a_correct_gated_mlp_passes_and_the_pass_is_evidence(form, packing, name):
    law, subject = LAWS[name], GatedMLPSubject(implementation=correct("it", form, packing))
    cases = [case for case in law.pinned if subject.refuses(case) is None]
    assert len(cases) == len(law.pinned)
    clamps = "GLU-4" in law.clauses
    judged = judged_count(law, subject, cases)
    assert judged == (len(cases) if not clamps or form is GateForm.CLAMPED else 0)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=15)
@given(data=st.data())
def test_correct_gated_mlps_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    form, packing = data.draw(st.sampled_from(GateForm)), data.draw(st.sampled_from(GatePacking))
    subject = GatedMLPSubject(implementation=correct("it", form, packing))
    case = data.draw(law.explore(subject))
    with contextlib.suppress(NotClaimed):
        law.check(subject, case)


@pytest.mark.parametrize("form", GateForm)
@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name, form):
    """Scalar loops judge it, and closed forms its gradients."""

    def reference(x, gate, up, down, **biases):
        return gated_mlp(x, gate, up, down, **biases, form=form)

    implementation = GatedMLPImplementation(
        name="reference",
        function=reference if form is not GateForm.SWIGLU else gated_mlp,
        features=frozenset({"bias"}),
        dtypes=(torch.float64, torch.float32),
        profile=GatedMLPProfile(form=form),
    )
    subject = GatedMLPSubject(implementation=implementation)
    assert subject.is_reference == (form is GateForm.SWIGLU)
    law = LAWS[name]
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = GatedMLPSubject(implementation=mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-gate-up-swapped", "gate and up are swapped: the profile says separate"),
        ("own-packed-up-first", "gate and up are swapped: the profile says gate_first"),
        ("own-gate-up-halves", "the rows of gate and up are read as gate_first"),
        ("own-geglu-erf", "the function of gate and up is geglu_erf: the profile says geglu_tanh"),
        ("own-gated-mlp-down-bias", "down_bias is forgotten"),
        ("own-gated-mlp-up-bias", "up_bias is forgotten"),
        ("own-clamped-gate-below", "gate -9 and up 2 are not clamped at 7"),
        ("own-clamped-up-above", "gate 3 and up -50 are not clamped at 7"),
    ],
)
def test_a_failure_leads_with_the_cause(name, message):
    mutant = MUTANTS[name]
    law = LAWS[mutant.killed_by]
    subject = GatedMLPSubject(implementation=mutant.subject)
    with pytest.raises(Violation, match=message):
        judged_count(law, subject, law.pinned)


def test_each_law_that_swapped_gates_break_names_them():
    subject = GatedMLPSubject(implementation=MUTANTS["own-gate-up-swapped"].subject)
    records = [check(law, subject, Effort.SMOKE) for law in LAWS.values()]
    failed = [record for record in records if record.outcome is Outcome.FAILED]
    assert len(failed) > 3
    assert {record.cause for record in failed} == {
        "gate and up are swapped: the profile says separate"
    }


def test_biases_that_are_not_claimed_are_not_passed():
    def plain(x, gate, up, down):
        return torch.nn.functional.linear(torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT), down)

    subject = GatedMLPSubject(implementation=GatedMLPImplementation(name="plain", function=plain))
    for law in LAWS.values():
        cases = [case for case in law.pinned if subject.refuses(case) is None]
        assert bool(cases) == ("bias" not in law.needs), law.name
        judged_count(law, subject, cases)
