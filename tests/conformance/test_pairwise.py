"""Pairwise designs, and the law that tries them."""

import itertools
from dataclasses import replace

import pytest
import torch

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import registered
from attnspec.conformance.laws.attention_pairs import AXES, case_of, design
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.pairwise import pairwise
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import Case, Feature

LAW = registered()["options-combine"]
MUTANTS = {name: each for name, each in planted().items() if LAW.name in each.kills}
EASY = Case(queries=3, keys=3, d_head=4, d_value=4, dtype=torch.float32)
SMALL = {"a": (1, 2, 3), "b": (True, False), "c": ("x", "y", "z", "w"), "d": (None, 0)}


def met(rows, axes):
    return {
        ((left, row[left]), (right, row[right]))
        for row in rows
        for left, right in itertools.combinations(axes, 2)
    }


def every_pair(axes):
    return {
        ((left, one), (right, two))
        for left, right in itertools.combinations(axes, 2)
        for one in axes[left]
        for two in axes[right]
    }


def test_every_pair_meets_in_few_rows():
    rows = pairwise(SMALL)
    assert met(rows, SMALL) == every_pair(SMALL)
    assert 12 <= len(rows) <= 16


def test_rows_are_the_same_every_time():
    assert pairwise(SMALL) == pairwise(SMALL)


def test_refused_pairs_are_left_out_and_nothing_else():
    rows = pairwise(SMALL, lambda row: not (row["a"] == 2 and row["c"] == "y"))
    assert met(rows, SMALL) == every_pair(SMALL) - {(("a", 2), ("c", "y"))}


def test_a_refused_value_is_left_out():
    rows = pairwise(SMALL, lambda row: row["c"] != "z")
    assert {row["c"] for row in rows} == {"x", "y", "w"}
    without = SMALL | {"c": ("x", "y", "w")}
    assert met(rows, SMALL) == every_pair(without)


def test_three_values_that_exclude_each_other_end():
    rows = pairwise(SMALL, lambda row: (row["a"], row["b"], row["d"]) != (3, False, 0))
    assert met(rows, SMALL) == every_pair(SMALL)


def test_one_axis_has_no_pairs():
    assert pairwise({"a": (1, 2)}) == []


@pytest.mark.parametrize("name", ["eager", "sdpa_math", "sdpa_flash"])
def test_the_design_holds_every_pair_that_is_claimed(name):
    subject = Subject(load(name))
    first = {axis: values[0] for axis, values in AXES.items()}

    def claimed(**changes):
        return subject.refuses(case_of(first | changes)) is None

    cases = design(subject)
    assert all(subject.refuses(case) is None for case in cases)
    rows = pairwise(AXES, lambda row: subject.refuses(case_of(row)) is None)
    assert [case_of(row) for row in rows] == cases
    due = {
        pair
        for pair in every_pair(AXES)
        if claimed(**dict(pair)) and all(claimed(**dict([each])) for each in pair)
    }
    assert met(rows, AXES) == due


@pytest.mark.parametrize(
    "subject",
    [
        Subject(replace(dense("dense", Dense()), features=frozenset(Feature))),
        Subject(replace(dense("tiled", Tiled()), features=frozenset(Feature))),
        Subject(REFERENCE),
        Subject(load("eager")),
    ],
    ids=lambda subject: subject.name,
)
def test_right_attention_passes(subject):
    record = check(LAW, subject, Effort.SMOKE)
    assert record.outcome is Outcome.PASSED, record.message
    assert record.examples > 60


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_are_right_where_nothing_meets_and_are_killed(mutant):
    subject = Subject(mutant.subject)
    LAW.check(subject, EASY)
    record = check(LAW, subject, Effort.SMOKE)
    assert record.outcome is Outcome.FAILED, record
