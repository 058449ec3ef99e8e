"""Laws of routers and experts: correct ones pass in every profile, each mutant is killed."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.experts import correct_experts, correct_router
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.experts.subject import ExpertsSubject
from attnspec.reference.experts import experts, router
from attnspec.spec.experts import (
    ExpertsImplementation,
    RouterImplementation,
    RouterProfile,
    RouterScores,
    RouterTies,
)
from attnspec.spec.gated_mlp import GateForm, GatePacking

for module in ("laws.experts.router", "laws.experts.definition"):
    importlib.import_module(f"attnspec.conformance.{module}")
for module in ("mutants.experts.router", "mutants.experts.mistakes"):
    importlib.import_module(f"attnspec.conformance.{module}")
LAWS = {name: law for name, law in registered().items() if law.judges in ("router", "experts")}
ROUTER = [name for name, law in LAWS.items() if law.judges == "router"]
EXPERTS = [name for name, law in LAWS.items() if law.judges == "experts"]
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, RouterImplementation | ExpertsImplementation)
}
PROFILES = [
    RouterProfile(scores=scores, renormalized=renormalized, ties=ties)
    for scores in RouterScores
    for renormalized in (False, True)
    for ties in RouterTies
]


def subject_of(implementation):
    is_router = isinstance(implementation, RouterImplementation)
    return (RouterSubject if is_router else ExpertsSubject)(implementation=implementation)


def claimed(law, subject):
    return [case for case in law.pinned if subject.refuses(case) is None]


@pytest.mark.parametrize("name", ROUTER)
@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_a_correct_router_passes_and_the_pass_is_evidence(profile, name):
    law, subject = LAWS[name], subject_of(correct_router("it", profile))
    cases = claimed(law, subject)
    assert len(cases) == len(law.pinned)
    assert judged_count(law, subject, cases) == len(cases)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize(
    ("form", "packing"),
    [
        (GateForm.SWIGLU, GatePacking.SEPARATE),
        (GateForm.SWIGLU, GatePacking.GATE_FIRST),
        (GateForm.CLAMPED, GatePacking.INTERLEAVED),
        (GateForm.GEGLU_TANH, GatePacking.UP_FIRST),
    ],
)
def test_correct_experts_pass_and_the_pass_is_evidence(form, packing, name):
    law, subject = LAWS[name], subject_of(correct_experts("it", form, packing))
    cases = claimed(law, subject)
    assert len(cases) == len(law.pinned)
    assert judged_count(law, subject, cases) == len(cases)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=20)
@given(data=st.data())
def test_correct_subjects_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    if law.judges == "router":
        implementation = correct_router("it", data.draw(st.sampled_from(PROFILES)))
    else:
        implementation = correct_experts("it", data.draw(st.sampled_from(GateForm)))
    subject = subject_of(implementation)
    case = data.draw(law.explore(subject))
    with contextlib.suppress(NotClaimed):
        law.check(subject, case)


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Scalar loops and the closed forms of the bound judge it."""
    implementation = {
        "router": RouterImplementation(
            name="reference",
            function=router,
            features=frozenset({"bias"}),
            dtypes=(torch.float64, torch.float32),
            profile=RouterProfile(ties=RouterTies.LOWEST),
        ),
        "experts": ExpertsImplementation(
            name="reference",
            function=experts,
            features=frozenset({"bias", "shared"}),
            dtypes=(torch.float64, torch.float32),
        ),
    }[LAWS[name].judges]
    subject = subject_of(implementation)
    assert judged_count(LAWS[name], subject, claimed(LAWS[name], subject)) > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = subject_of(mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-router-softmax-after", "softmax is taken over the chosen experts, after the choice"),
        ("own-router-softmax-before", "softmax is taken over all experts, before the choice"),
        ("own-router-not-renormalized", "the scores do not sum to one"),
        ("own-router-renormalized", "the scores are renormalized, which the profile denies"),
        ("own-router-bias", "the bias of the router is forgotten"),
        ("own-experts-down-bias", "the down_bias of an expert is forgotten"),
        ("own-experts-capacity", "a token's result changes if other tokens are absent"),
        ("own-experts-tile-rest", "groups of .* tokens give a wrong result"),
    ],
)
def test_a_failure_leads_with_the_cause(name, message):
    mutant = MUTANTS[name]
    law = LAWS[mutant.killed_by]
    with pytest.raises(Violation, match=message):
        judged_count(law, subject_of(mutant.subject), law.pinned)


def returning(scores, indices):
    def route(x, weight, top_k):
        return scores(x, top_k), indices(x, top_k)

    return subject_of(RouterImplementation(name="it", function=route))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (lambda x, k: torch.zeros(len(x), k, dtype=torch.long), "chosen twice"),
        (lambda x, k: torch.arange(k).expand(len(x), k) + 99, "outside \\[0, 5\\)"),
        (lambda x, k: torch.arange(k + 1).expand(len(x), k + 1), "must have shape \\(3, 2\\)"),
        (lambda x, k: torch.rand(len(x), k), "tensor of integers"),
    ],
)
def test_indices_of_a_wrong_form_are_named(indices, message):
    subject = returning(lambda x, k: torch.full((len(x), k), 0.5, dtype=x.dtype), indices)
    law = LAWS["router-chooses-the-largest-logits"]
    with pytest.raises(Violation, match=message):
        law.check(subject, law.pinned[1])
