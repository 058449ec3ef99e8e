"""Laws of ONL: six orders of operations pass under their profiles, and each mutant is killed."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.online_softmax import correct_merge, correct_softmax
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.online_softmax.subject import (
    OnlineSoftmaxSubject,
    SoftmaxMergeSubject,
)
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.reference import online_softmax
from attnspec.reference.operator_implementations import ONLINE_SOFTMAX, SOFTMAX_MERGE
from attnspec.spec.online_softmax import (
    Kept,
    LogBase,
    OnlineSoftmaxImplementation,
    OnlineSoftmaxProfile,
    SoftmaxMergeImplementation,
)

for name in ("laws.online_softmax.rows", "laws.online_softmax.merging"):
    importlib.import_module(f"attnspec.conformance.{name}")
for name in ("mutants.online_softmax.rows", "mutants.online_softmax.merging"):
    importlib.import_module(f"attnspec.conformance.{name}")
KINDS = ("online_softmax", "softmax_merge")
LAWS = {name: law for name, law in registered().items() if law.judges in KINDS}
OF_ROWS = [name for name, law in LAWS.items() if law.judges == "online_softmax"]
OF_MERGES = [name for name, law in LAWS.items() if law.judges == "softmax_merge"]
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, OnlineSoftmaxImplementation | SoftmaxMergeImplementation)
}
KEPT = {"naive": Kept.SUM, "split": Kept.LOG_SUM_EXP}
WAYS = ("naive", "safe", "online", "tiled", "split", "recomputing")
FLOATS = (torch.float64, torch.float32)


def way(name: str) -> OnlineSoftmaxSubject:
    """The subject of a function of the reference, under the profile that it follows."""
    profile = OnlineSoftmaxProfile(keeps=KEPT.get(name, Kept.MAXIMUM))
    function = getattr(online_softmax, name)
    # in a function of its own, so that the definition judges it and not torch
    declared = OnlineSoftmaxImplementation(
        name=name, function=lambda *both: function(*both), dtypes=FLOATS, profile=profile
    )
    return OnlineSoftmaxSubject(implementation=declared)


@pytest.mark.parametrize("law", OF_ROWS)
@pytest.mark.parametrize("name", WAYS)
def test_each_way_passes_and_the_pass_is_evidence(name, law):
    subject, law = way(name), LAWS[law]
    cases = [case for case in law.pinned if subject.refuses(case) is None]
    assert judged_count(law, subject, cases) == len(cases)
    assert cases or "ONL-13" in law.clauses


@pytest.mark.parametrize("law", OF_ROWS)
@pytest.mark.parametrize("base", LogBase)
def test_a_correct_softmax_passes_in_every_type(base, law):
    subject = subject_of_operator(correct_softmax(profile=OnlineSoftmaxProfile(base=base)))
    assert judged_count(LAWS[law], subject, LAWS[law].pinned) == len(LAWS[law].pinned)


@pytest.mark.parametrize("law", OF_MERGES)
@pytest.mark.parametrize("base", LogBase)
def test_a_correct_merge_passes_in_every_type(base, law):
    subject = subject_of_operator(correct_merge(log=base))
    assert judged_count(LAWS[law], subject, LAWS[law].pinned) == len(LAWS[law].pinned)


def balanced(out_a, lse_a, out_b, lse_b):
    """Moves from the first part towards the second, by a logistic function."""
    lse = torch.logaddexp(lse_a, lse_b)
    share = torch.sigmoid(torch.where(lse == -torch.inf, 0.0, lse_b - lse_a))[..., None]
    out = out_a.to(lse.dtype) + share * (out_b.to(lse.dtype) - out_a.to(lse.dtype))
    return out.to(out_a.dtype), lse


@pytest.mark.parametrize("law", OF_MERGES)
def test_a_merge_by_differences_passes(law):
    subject = subject_of_operator(SoftmaxMergeImplementation(name="it", function=balanced))
    assert judged_count(LAWS[law], subject, LAWS[law].pinned) == len(LAWS[law].pinned)


@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=20)
@given(data=st.data())
def test_correct_subjects_pass_drawn_cases(law, data):
    law = LAWS[law]
    if law.explore is None:
        return
    if law.judges == "online_softmax":
        ways = [way(each) for each in WAYS]
        subject = data.draw(st.sampled_from([*ways, subject_of_operator(correct_softmax())]))
    else:
        others = SoftmaxMergeImplementation(name="it", function=balanced)
        subject = subject_of_operator(data.draw(st.sampled_from([correct_merge(), others])))
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize("law", LAWS)
def test_the_reference_passes(law):
    """Torch's functions judge it."""
    law = LAWS[law]
    declared = ONLINE_SOFTMAX if law.judges == "online_softmax" else SOFTMAX_MERGE
    subject = subject_of_operator(declared)
    assert isinstance(subject, OnlineSoftmaxSubject | SoftmaxMergeSubject)
    assert subject.is_reference
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    law = LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject_of_operator(mutant.subject), law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


def test_a_naive_softmax_fails_where_it_declares_a_maximum():
    declared = OnlineSoftmaxImplementation(name="it", function=online_softmax.naive, dtypes=FLOATS)
    law = LAWS["large-scores-neither-overflow-nor-vanish"]
    subject = OnlineSoftmaxSubject(implementation=declared)
    with pytest.raises(Violation, match="overflow or vanish"):
        judged_count(law, subject, [each for each in law.pinned if each.dtype in FLOATS])
