"""Laws of packed attention: correct ones pass under each profile, each mutant is killed."""

import contextlib
import importlib
import os
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trying import judged_count

from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.packed import PROFILE, PlainPacked, correct
from attnspec.conformance.mutants.bases.parts import InParts
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.packed.subject import PackedSubject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.reference.operator_implementations import PACKED
from attnspec.spec.packed import (
    CAUSAL,
    EmptySequences,
    IndexType,
    LseLayout,
    Merging,
    OutsideRows,
    PackedImplementation,
    RoundedParts,
)
from attnspec.spec.profiles import EmptyRow, MaskedNonfinite

for _chapter in ("definition", "gradients", "neighbours", "refusals", "in_regimes", "parts"):
    importlib.import_module(f"attnspec.conformance.laws.packed.{_chapter}")
for _chapter in ("neighbours", "sequences", "refusals", "in_regimes", "parts"):
    importlib.import_module(f"attnspec.conformance.mutants.packed.{_chapter}")
LAWS = {name: law for name, law in registered().items() if law.judges == "packed"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if getattr(mutant.subject, "operator", "") == PackedImplementation.operator
}
INVARIANCE = "declared-batch-invariance-holds-bit-for-bit"


class EmptyRows(PlainPacked):
    """A packed attention with another result for rows that read nothing."""

    answer = EmptyRow.NAN

    def softmax(self, scores):
        weights, lse = super().softmax(scores)
        empty = (lse == -torch.inf)[..., None]
        keys = max(scores.shape[-1], 1)
        fill = torch.nan if self.answer is EmptyRow.NAN else 1 / keys
        return weights.masked_fill(empty, fill), lse


class MeanRows(EmptyRows):
    answer = EmptyRow.MEAN


class SpreadsNaN(PlainPacked):
    """A packed attention that multiplies values of other sequences by zero."""

    def sequence(self, b, query, key, value):
        out, lse = super().sequence(b, query, key, value)
        return out + self.value.sum() * 0, lse


SUBJECTS = {
    "plain": correct("plain"),
    "tokens first": correct("it", profile=replace(PROFILE, lse_layout=LseLayout.TOKENS_FIRST)),
    "batch invariant": correct("it", profile=replace(PROFILE, batch_invariant=True)),
    "empty rows nan": correct("it", EmptyRows, replace(PROFILE, empty_row=EmptyRow.NAN)),
    "empty rows mean": correct("it", MeanRows, replace(PROFILE, empty_row=EmptyRow.MEAN)),
    "spreads nan": correct(
        "it", SpreadsNaN, replace(PROFILE, neighbours=MaskedNonfinite.PROPAGATES)
    ),
    "no empty sequences": correct(
        "it", profile=replace(PROFILE, empty_sequences=EmptySequences.UNDEFINED)
    ),
    "int64 offsets": correct("it", profile=replace(PROFILE, index_type=IndexType.INT64)),
    "rounded parts": correct(
        "it",
        InParts,
        replace(PROFILE, partial_outputs=RoundedParts(size=16, merging=Merging.RUNNING)),
    ),
    "outside undefined": correct(
        "it", profile=replace(PROFILE, outside_rows=OutsideRows.UNDEFINED)
    ),
}


def subject_of(implementation):
    return PackedSubject(implementation=implementation)


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_correct_packed_attention_passes_and_the_pass_is_evidence(subject, name):
    law, judged = LAWS[name], subject_of(SUBJECTS[subject])
    cases = [case for case in law.pinned if judged.refuses(case) is None]
    restricted = ("no empty sequences", "rounded parts")
    has_all = len(cases) == len(law.pinned) or subject in restricted
    assert has_all
    said = judged_count(law, judged, cases)
    is_judged = name != INVARIANCE or subject == "batch invariant"
    assert said == (len(cases) if is_judged else 0)


@pytest.mark.rotating(parts=5)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("subject", ["plain", "empty rows nan", "batch invariant", "rounded parts"])
@settings(max_examples=10)
@given(data=st.data())
def test_correct_packed_attentions_pass_drawn_cases(subject, name, data):
    law, judged = LAWS[name], subject_of(SUBJECTS[subject])
    of_gradients = law.clauses[0] in ("SEQ-15", "SEQ-16")
    if law.explore is None or (of_gradients and not judged.implementation.has_gradients):
        return
    case = data.draw(law.explore(judged))
    with contextlib.suppress(NotClaimed):
        law.check(judged, case)


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Scalar loops judge it, and closed forms its gradients."""
    law, judged = LAWS[name], subject_of(PACKED)
    assert judged.is_reference
    small = [case for case in law.pinned if sum(case.queries) * sum(case.keys) <= 2000]
    assert small
    said = judged_count(law, judged, [judged.fit(case) for case in small])
    assert said == len(small)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = subject_of(mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises((Violation, Raised)):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("PKD-01", "each query reads the keys of all sequences"),
        ("PKD-03", "positions count from max_k: the diagonal is that of the longest sequence"),
        ("PKD-04", "the window has one key too many on the left"),
        ("own-packed-upper-left", "positions count from the start of each sequence"),
        ("own-packed-one-key-more", "each sequence reads one key too many"),
        ("own-packed-interleaved", "query head h reads key/value head h % kv_heads"),
        ("own-packed-softcap-dropped", "softcap is ignored"),
    ],
)
def test_a_failure_leads_with_the_cause(name, cause):
    mutant = MUTANTS[name]
    record = check(LAWS[mutant.killed_by], subject_of(mutant.subject), None)
    assert record.cause.startswith(cause)


def test_rows_that_are_right_are_not_explained():
    """Of one sequence, reading the keys of all sequences is right."""
    record = check(LAWS[MUTANTS["PKD-09"].killed_by], subject_of(MUTANTS["PKD-09"].subject), None)
    assert record.cause == ""
    assert "not zero, as the profile says" in record.reason


def test_the_snippet_of_a_failure_repeats_it():
    mutant = MUTANTS["own-packed-upper-left"]
    subject = subject_of(mutant.subject)
    subject.import_code = (
        "from attnspec.conformance.mutants.bases.packed import PlainPacked; packed = PlainPacked()"
    )
    record = check(LAWS[mutant.killed_by], subject, None)
    names = {}
    exec(record.snippet.replace("print(out)", "pass"), names)
    right = PlainPacked()(
        *(names[each] for each in ("query", "key", "value", "cu_seq_q", "cu_seq_k")),
        2,
        2,
        window_size=CAUSAL,
    )
    assert torch.equal(names["out"], right)


def test_a_case_says_what_differs_from_the_smallest():
    case = PackedCase(queries=(0, 2), keys=(3, 2), window=CAUSAL, dtype=torch.float32)
    assert str(case) == "queries=0,2 keys=3,2 dtype=float32 window=-1,0"


def test_an_integer_type_that_is_not_declared_is_not_tried():
    subject = subject_of(SUBJECTS["int64 offsets"])
    case = PackedCase(indices=torch.int32)
    assert subject.refuses(case) == "integer type not declared: int32"
    assert subject.refuses(case.but(indices=torch.int64)) is None
    assert PackedCase().draw(subject.profile).cu_seq_q.dtype == torch.int64
    assert "indices=int32" in str(case)


def test_sequences_and_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="as many sequences"):
        PackedCase(queries=(1,), keys=(1, 2))
    with pytest.raises(ValueError, match="do not share"):
        PackedCase(heads=3, kv_heads=2)


def test_an_invalid_call_that_crashes_is_a_violation_and_ends_no_run():
    class Crashes(PlainPacked):
        def lengths(self, lengths, longest):
            if bool((lengths < 0).any()):
                os.kill(os.getpid(), signal.SIGSEGV)
            super().lengths(lengths, longest)

    name = "lengths-that-do-not-fit-are-refused"
    record = check(LAWS[name], subject_of(correct("it", Crashes)), None)
    assert record.outcome is Outcome.FAILED
    assert "queries that fall is not refused: its process died by SIGSEGV" in record.reason


def test_without_the_claim_no_invalid_call_is_made():
    declared = correct("it")
    declared = replace(declared, features=declared.features - {"validates"})
    record = check(LAWS["lengths-that-do-not-fit-are-refused"], subject_of(declared), None)
    assert record.outcome is Outcome.NOT_CLAIMED
