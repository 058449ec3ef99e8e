"""No law rejects a correct attention of any profile, or calls one in a way that it refuses.

Every law on every subject takes minutes, so each run of the tests takes one part of the laws.
"""

import pytest
import torch
from parts import VARIABLE, selected
from restrictions import ANSWERS, REFUSALS, Refused, profiles, restricted, subjects

from attnspec.conformance import laws
from attnspec.conformance.attention.describe import cases_of
from attnspec.conformance.attention.memoize import memoize_oracle
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.pairwise import pairwise
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import (
    Case,
    CausalAlignment,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

PARTS = 90
SLOTS = 4
"""Tests that share a part, so that several workers can run it at once."""
LARGEST = 2**22
"""The size of the largest case that is tried: long sequences take seconds on each subject."""

LAWS = [law for law in laws.load().values() if law.judges is SubjectKind.ATTENTION]
# law by law: subjects with one profile share the results of the oracle
EXPECT = memoize_oracle(expect, kept=1024)
EXPECT_GRADIENTS = memoize_oracle(expect_gradients, kept=512)


def test_every_law_has_its_part():
    buckets = [LAWS[start :: PARTS * SLOTS] for start in range(PARTS * SLOTS)]
    assert sorted(law.name for bucket in buckets for law in bucket) == sorted(
        law.name for law in LAWS
    )


@pytest.mark.parametrize("slot", range(SLOTS))
def test_no_law_rejects_or_misuses_a_correct_attention(slot):
    accepted = {Outcome.PASSED, Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE}
    failures = []
    tried = [
        Subject(make(), oracle=EXPECT, oracle_gradients=EXPECT_GRADIENTS, largest=LARGEST)
        for make in subjects().values()
    ]
    with_answers = {name for name, _ in profiles()}
    for part in selected(PARTS):
        for law in LAWS[slot * PARTS + part :: PARTS * SLOTS]:
            for subject in tried:
                # what a profile allows depends on sizes that only drawn cases have
                is_drawn = subject.name in with_answers and not callable(law.wide)
                effort = Effort.STANDARD if is_drawn else None
                record = check(law, subject, effort, repeats=1)
                if record.outcome not in accepted:
                    failures.append(
                        f"part {part} (repeat it with {VARIABLE}={part}): {law.name} on the "
                        f"reference, {subject.name}: {record.outcome}\n{record.message}"
                    )
    assert not failures, "\n\n".join(failures)


def test_pairs_of_answers_are_complete():
    rows = pairwise(ANSWERS)
    for one, two in ((a, b) for a in ANSWERS for b in ANSWERS if a < b):
        pairs = {(row[one], row[two]) for row in rows}
        assert pairs == {(x, y) for x in ANSWERS[one] for y in ANSWERS[two]}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_restriction_refuses_pinned_cases_and_their_calls(name):
    refusal = REFUSALS[name]
    subject, free = Subject(restricted(name, refusal)), Subject(restricted("free", type(refusal)()))
    cases = [case for law in LAWS for case in law.pinned if isinstance(case, Case)]
    small = [case for case in cases if free.refuses(case) is None and case.queries * case.keys < 99]
    refused = [case for case in small if refusal.of_case(case)]
    assert refused or {"dropout", "backward"} & set(name.split())
    for case in refused[:5]:
        if not case.backward:  # a case of gradients is drawn without them
            call = free.draw(case)
            with pytest.raises(Refused):
                subject.implementation.attention(
                    call.query, call.key, call.value, **call.keywords()
                )


def test_a_law_of_another_call_that_is_refused_is_not_claimed():
    law = laws.load()["a-window-side-beyond-the-keys-hides-no-key"]
    name = "a window with an open side"
    record = check(law, Subject(restricted(name, REFUSALS[name])), None)
    assert record.outcome is Outcome.NOT_CLAIMED, record.message
    assert name in record.reason


def test_views_that_a_law_makes_are_contiguous_for_a_subject_that_takes_no_others():
    name = "operands that are not contiguous"
    for law in ("two-halves-merge-into-the-whole", "an-extension-changes-no-earlier-row"):
        record = check(laws.load()[law], Subject(restricted(name, REFUSALS[name])), None)
        assert record.outcome is Outcome.PASSED, record.message


@pytest.mark.parametrize(
    "case",
    [
        Case(batch=2, heads=4, kv_heads=2, queries=3, keys=5, d_head=8, d_value=4, scale=0.5),
        Case(queries=3, keys=5, d_head=8, d_value=8, mask=Mask(), is_causal=True, softcap=2.0),
        Case(batch=2, heads=2, kv_heads=2, queries=3, keys=5, mask=Mask(shape=MaskShape.KEYS)),
        Case(heads=3, kv_heads=3, queries=4, keys=4, mask=Mask(shape=MaskShape.RANK_3)),
        Case(queries=4, keys=4, d_head=8, layouts=Layouts(key=Layout.SLICED)),
        Case(queries=4, keys=4, d_head=8, layouts=Layouts(query=Layout.TRANSPOSED)),
        Case(heads=2, kv_heads=2, queries=4, keys=4, layouts=Layouts(value=Layout.EXPANDED)),
        Case(batch=2, queries=4, keys=4, layouts=Layouts(key=Layout.EXPANDED_BATCH)),
        Case(queries=4, keys=4, d_head=8, layouts=Layouts(query=Layout.UNALIGNED)),
        Case(heads=2, kv_heads=2, queries=3, keys=5, mask=Mask(shape=MaskShape.KEYS_OF_HEADS)),
        Case(queries=3, keys=5, mask=Mask(shape=MaskShape.QUERIES)),
        Case(queries=2, keys=2, sinks=True, alibi=True, return_lse=True, window=(1, None)),
    ],
    ids=str,
)
def test_a_call_is_described_by_its_case(case):
    subject = Subject(subjects()[f"without {Feature.DROPOUT}"]())
    assert cases_of(subject.draw(case), CausalAlignment.UPPER_LEFT) == [case]


def test_a_mask_that_adds_numbers_and_empties_a_row_has_two_descriptions():
    case = Case(queries=2, keys=2, mask=Mask(kind=MaskKind.FLOAT))
    call = Subject(subjects()[f"without {Feature.DROPOUT}"]()).draw(case)
    call = call.but(attn_mask=torch.tensor([[-torch.inf, -torch.inf], [1.0, 0.0]]).double())
    patterns = {one.mask.pattern for one in cases_of(call, CausalAlignment.UPPER_LEFT)}
    assert patterns == {MaskPattern.BIAS, MaskPattern.EMPTY_ROWS}


def test_improper_arguments_have_no_description():
    call = Subject(subjects()[f"without {Feature.DROPOUT}"]()).draw(Case(queries=2, keys=2))
    alignment = CausalAlignment.UPPER_LEFT
    assert not cases_of(call.but(query=call.query[0]), alignment)
    assert not cases_of(call.but(attn_mask=torch.ones(2, 2, dtype=torch.int64)), alignment)
    assert not cases_of(call.but(attn_mask=torch.ones(2)), alignment)
    assert not cases_of(
        call.but(query=call.query.repeat(1, 3, 1, 1), key=call.key.repeat(1, 2, 1, 1)), alignment
    )
