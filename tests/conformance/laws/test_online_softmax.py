"""Laws of ONL: six orders of operations pass under their profiles, and each mutant is killed."""

import contextlib
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
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


@pytest.mark.rotating(parts=2)
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


@pytest.mark.rotating(parts=4)
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


@pytest.mark.rotating(parts=4)
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
    with pytest.raises(Violation, match="nothing, or too little, is subtracted"):
        judged_count(law, subject, [each for each in law.pinned if each.dtype in FLOATS])


CAUSES = {
    "own-onl-not-divided": "the output is not divided by its sum",
    "own-onl-log-of-sum": "the log-sum-exp lacks the maximum",
    "own-onl-base-two": "the log-sum-exp is to base 2: the profile says e",
    "own-onl-nothing-subtracted": "nothing, or too little, is subtracted from the scores",
    "ONL-01": "nothing, or too little, is subtracted from the scores",
    "own-onl-sum-not-rescaled": "the running sum is not rescaled when the maximum grows",
    "own-onl-output-not-rescaled": "the running output is not rescaled when the maximum grows",
    "own-onl-rescaled-twice": "the running output is rescaled twice when the maximum grows",
    "own-onl-maximum-of-tile": "the maximum of the last tile takes the place of the running one",
    "ONL-02": "the empty places of the last tile count in the sum, with score zero",
    "own-onl-tail-dropped": "a last tile that is shorter is not read",
    "own-onl-log-one-plus": "one more score, of zero, counts in the log-sum-exp",
    # the smallest call that fails has three tiles, of which all but the last are rescaled
    "own-onl-first-tile-kept": "the running sum is not rescaled when the maximum grows",
    "ONL-03": "nothing, or too little, is subtracted from the scores",
    "ONL-04": "hidden scores are −10 000, and not minus infinity",
    "own-onl-in-place": "scores are written to",
    "own-onl-no-row-term": "the product of gradient and output is not subtracted in the backward",
    "own-onl-recomputed-from-maximum": "the backward pass takes the maximum for the log-sum-exp",
    "own-onl-shares-swapped": "the first part has the larger weight",
    "own-onl-larger-kept": "the log-sum-exp is the larger of both",
    "own-onl-empty-finite": "two parts without keys have a finite log-sum-exp",
    "own-onl-merge-overflows": "nothing is subtracted from the log-sum-exps",
    "ONL-09": "lse_a is written to",
    "ONL-05": "a row without visible scores gives NaN",
    "ONL-06": "the log-sum-exp of a row without visible scores is plus infinity",
    "own-onl-shared-maximum": "one maximum is subtracted from all rows",
    "own-onl-nan-dropped": "a NaN score is taken for a hidden one",
    "own-onl-mean-of-parts": "both parts weigh the same",
    "ONL-07": "log-sum-exps are read to base e: the profile says 2",
    "own-onl-empty-as-zero": "the log-sum-exp of a part without keys is taken for zero",
    "ONL-08": "two parts without keys give NaN",
}


UNNAMED = {
    # how far a sum of 16 bits errs depends on its order; the law's message says what happens
    "own-onl-sums-in-storage": "sums over 4096 keys are rounded to 16 bits",
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
    def halved(scores, values):
        out, lse = online_softmax.safe(scores, values)
        return 0.5 * out, lse

    subject = OnlineSoftmaxSubject(
        implementation=OnlineSoftmaxImplementation(
            name="halved", function=halved, dtypes=(torch.float64,)
        )
    )
    law = LAWS["online-softmax-equals-the-definition"]
    with pytest.raises(Violation) as error:
        judged_count(law, subject, law.pinned)
    assert not isinstance(error.value, Explained)
