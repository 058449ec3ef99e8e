"""Lengths and offsets: what is drawn for them, three definitions that agree, and their laws."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnspec.conformance import laws
from attnspec.conformance.attention.describe import cases_of
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import check_oracle, expect, expect_scalar
from attnspec.conformance.attention.part import Part
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    KeyLengths,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
)

LAWS = {name: law for name, law in laws.load().items() if law.clauses[0].startswith("LEN")}
ATTENTION = REFERENCE.attention
OPTIONS = (
    {},
    {"is_causal": True},
    {"window": (2, 1)},
    {"alibi": True, "is_causal": True, "softcap": 2.0, "sinks": True},
    {"mask": Mask(shape=MaskShape.BATCH)},
    {
        "mask": Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL),
        "window": (3, 0),
        "return_lse": True,
    },
)
CASES = st.builds(
    lambda options, **fields: Case(heads=4, kv_heads=2, d_head=4, d_value=3, **options, **fields),
    options=st.sampled_from(OPTIONS),
    batch=st.integers(1, 6),
    queries=st.sampled_from((1, 3, 5, 9)),
    keys=st.sampled_from((1, 4, 7, 12)),
    key_lengths=st.sampled_from((None, *KeyLengths)),
    query_offset=st.booleans(),
    seed=st.integers(0, 20),
)


SUBJECTS = [
    replace(
        REFERENCE,
        name=f"reference {alignment} {empty_row}",
        attention=partial(ATTENTION, causal_alignment=alignment, empty_row=empty_row),
        profile=replace(REFERENCE.profile, causal_alignment=alignment, empty_row=empty_row),
    )
    for alignment in CausalAlignment
    for empty_row in EmptyRow
]


@given(CASES)
def test_lengths_and_offsets_are_drawn_within_the_keys(case):
    call = draw(case)
    lengths = torch.full((case.batch,), case.keys)
    if case.key_lengths is not None:
        lengths = call.key_lengths.long()
        assert call.key_lengths.dtype in (torch.int32, torch.int64)
        assert 0 <= int(lengths.min()) <= int(lengths.max()) <= case.keys
        assert (int(lengths[0]) == 0) == (case.key_lengths is KeyLengths.EMPTY)
        assert bool((lengths[1:] > 0).all())
    if case.query_offset:
        last = call.query_offset + case.queries
        assert bool((call.query_offset >= 0).all())
        assert bool((last <= lengths.clamp(min=case.queries)).all())
    kinds = {each.key_lengths for each in cases_of(call, CausalAlignment.UPPER_LEFT)}
    assert kinds == {case.key_lengths}


def test_neighbours_have_other_lengths_and_some_element_has_all_keys():
    lengths = draw(Case(batch=5, keys=12, key_lengths=KeyLengths.RAGGED)).key_lengths.tolist()
    assert len(set(lengths)) == 5
    assert max(lengths) == 12


@given(CASES, st.sampled_from(CausalAlignment))
def test_the_definitions_agree(case, alignment):
    call, profile = draw(case), Profile(causal_alignment=alignment)
    expected, scalar = expect(call, profile), expect_scalar(call, profile)
    torch.testing.assert_close(expected.out, scalar.out, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected.lse, scalar.lse, rtol=0, atol=1e-12)
    out = ATTENTION(call.query, call.key, call.value, causal_alignment=alignment, **call.keywords())
    check_oracle(call, out[0] if case.return_lse else out, expected, "the reference differs")


def test_a_part_of_a_call_keeps_its_lengths():
    case = Case(batch=4, keys=9, key_lengths=KeyLengths.RAGGED, query_offset=True)
    call, profile = draw(case), Profile()
    part = Part.of(call, torch.tensor([1, 3]), torch.tensor([0]), profile.grouping)
    expected = expect(call, profile)
    torch.testing.assert_close(expect(part.call(call), profile).out, expected.out[[1, 3]])


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("implementation", SUBJECTS, ids=lambda each: each.name)
def test_correct_attentions_pass(implementation, law):
    record = check(law, Subject(implementation), Effort.SMOKE, 0)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message
    # with other outputs of empty rows their gradients have no definition
    assert record.outcome is Outcome.PASSED or Feature.BACKWARD in law.needs


@pytest.mark.parametrize("attention", [ATTENTION, load("eager").attention])
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("key_lengths", [3, 6]),
        ("key_lengths", [-1, 3]),
        ("key_lengths", [3]),
        ("query_offset", [0, -1]),
        ("query_offset", [0, 0, 0]),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(attention, name, numbers):
    call = draw(Case(batch=2, keys=5))
    with pytest.raises(ValueError, match=name):
        attention(call.query, call.key, call.value, **{name: torch.tensor(numbers)})


def test_numbers_that_are_no_integers_are_refused_by_name():
    call = draw(Case(batch=2, keys=5))
    with pytest.raises(TypeError, match="key_lengths must be int32 or int64"):
        ATTENTION(call.query, call.key, call.value, key_lengths=torch.tensor([1.0, 2.0]))
