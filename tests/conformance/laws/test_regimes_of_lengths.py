"""Regimes of lengths: every two meet in a call, and a kernel that is wrong in them fails."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from trying import judged_count

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.regimes_of_lengths import (
    AXES,
    OPERATIONS,
    call_of,
    design,
    operations,
)
from attnspec.conformance.mutants.bases.dense import dense
from attnspec.conformance.mutants.bases.lengths import LENGTHS, Ragged
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import EmptyRow, Feature

LAW = laws.load()["lengths-in-every-two-regimes-equal-the-definition"]
CLASSES = [(axis, each.name) for axis, members in AXES.items() for each in members]
PAIRS = [
    (("length", "one"), ("window", "right")),
    (("length", "none"), ("sinks", "yes")),
    (("length", "whole tiles"), ("d_head", "256")),
    (("keys", "over 1000"), ("mode", "backward")),
    (("group", "odd over 8"), ("mask", "float")),
    (("batch", "over 16"), ("dtype", "bfloat16")),
    (("queries", "2 to 8"), ("query_offset", "yes")),
    (("mode", "no grad"), ("alibi", "yes")),
]


def subject_of(attention=None, **claims):
    base = dense("ragged", attention or Ragged())
    base = replace(base, features=base.features | frozenset(LENGTHS))
    return Subject(replace(base, **claims))


def wrong_where(*regimes):
    return subject_of(wrong_at(Ragged(), call_of, AXES, *regimes))


@pytest.mark.parametrize("regime", CLASSES, ids=str)
def test_a_mistake_in_one_class_is_found_by_the_pinned_cases(regime):
    subject = wrong_where(regime)
    with pytest.raises(Violation):
        judged_count(LAW, subject, LAW.pinned)


@pytest.mark.parametrize("regimes", PAIRS, ids=str)
def test_a_mistake_where_two_classes_meet_is_found(regimes):
    subject = wrong_where(*regimes)
    with pytest.raises(Violation):
        judged_count(LAW, subject, design(subject, 1).cases)


def test_any_two_classes_meet():
    chosen = design(subject_of(), 1)
    every = {
        frozenset((one, other))
        for left, right in combinations(AXES.values(), 2)
        for one in left
        for other in right
    }
    assert {" with ".join(sorted(map(str, each))) for each in every - chosen.claimed} == set()
    assert len(chosen.cases) < 90


@pytest.mark.parametrize("seed", [1, 2])
def test_every_pair_is_called_and_judged(seed):
    record = check(LAW, subject_of(), Effort.STANDARD, seed)
    assert record.outcome is Outcome.PASSED, record.message
    assert record.coverage["missing"] == []
    assert record.coverage["not tried"] == {}
    assert record.coverage["called"] == record.coverage["claimed"] > 1500


CLAIMS = {
    "16 bits": {"dtypes": (torch.float16, torch.bfloat16)},
    "multiples of 64": {
        "supports": lambda case: "d_head" if case.d_head % 64 or case.d_head > 128 else None
    },
    "lengths alone": {"features": frozenset({Feature.KEY_LENGTHS})},
    "decoding alone": {"supports": lambda case: "queries" if case.queries > 1 else None},
    "nothing empty": {"supports": lambda case: "empty" if case.key_lengths == "empty" else None},
}


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_cases_are_claimed(claims):
    subject = subject_of(**claims)
    chosen = design(subject, 1)
    assert len(chosen.cases) > 20
    assert all(subject.refuses(case) is None for case in chosen.cases)
    assert max(map(operations, chosen.cases)) <= OPERATIONS
    assert chosen.claimed


def test_gradients_of_rows_that_read_nothing_are_tried_only_if_they_are_defined():
    profile = subject_of().implementation.profile
    undefined = subject_of(profile=replace(profile, empty_row=EmptyRow.NAN))
    for subject, expected in ((subject_of(), True), (undefined, False)):
        kinds = {(case.key_lengths, case.backward) for case in design(subject, 1).cases}
        assert (("empty", True) in kinds) is expected
        assert {("empty", False), ("ragged", True)} <= kinds


def test_sizes_change_with_the_seed_and_shapes_that_are_compiled_stay():
    one, other = (design(subject_of(), seed).cases for seed in (1, 2))
    assert {case.keys for case in one} != {case.keys for case in other}
    assert design(subject_of(compiles_each_shape=True), 1).cases == ()
