"""Pairwise designs, and the cases that the law of options tries by one."""

import itertools

import pytest

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.attention.pairs import AXES, case_of, design
from attnspec.conformance.laws.helpers.pairwise import each_once, pairwise
from attnspec.implementations import load

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
    rows = pairwise(SMALL, lambda row: not (row.get("a") == 2 and row.get("c") == "y"))
    assert met(rows, SMALL) == every_pair(SMALL) - {(("a", 2), ("c", "y"))}


def test_a_refused_value_is_left_out():
    rows = pairwise(SMALL, lambda row: row.get("c") != "z")
    assert {row["c"] for row in rows} == {"x", "y", "w"}
    without = SMALL | {"c": ("x", "y", "w")}
    assert met(rows, SMALL) == every_pair(without)


def test_three_values_that_exclude_each_other_end():
    rows = pairwise(SMALL, lambda row: (row.get("a"), row.get("b"), row.get("d")) != (3, False, 0))
    assert met(rows, SMALL) == every_pair(SMALL)


def test_earlier_rows_are_kept_and_what_they_miss_is_added():
    earlier = pairwise(SMALL)[:7]
    rows = pairwise(SMALL, earlier=earlier)
    assert rows[:7] == earlier
    assert met(rows, SMALL) == every_pair(SMALL)


@pytest.mark.parametrize("design", [pairwise, each_once])
def test_earlier_rows_of_other_values_are_adapted(design):
    def allowed(row):
        return (row.get("a"), row.get("b")) != (1, True)

    more = SMALL | {"a": (1, 2, 3, 4, 5), "c": ("x", "q")}
    rows = design(SMALL, allowed, earlier=[*design(more), {"a": 9}, {"e": 1}])
    assert all(map(allowed, rows))
    assert len(rows) <= 16
    whole = design(SMALL, allowed)
    assert design is each_once or met(rows, SMALL) == met(whole, SMALL)
    assert {tuple(row) for row in rows} == {tuple(SMALL)}


def test_earlier_rows_without_anything_new_are_left_out():
    rows = pairwise(SMALL)
    assert pairwise(SMALL, earlier=rows + rows) == rows


def test_a_value_that_goes_with_no_value_of_another_axis_is_left_out():
    def allowed(row):
        return not (row.get("a") == 1 and "b" in row)

    assert {row["a"] for row in pairwise(SMALL, allowed)} == {2, 3}
    assert {row["a"] for row in each_once(SMALL, allowed)} == {2, 3}


def test_every_value_is_in_one_of_few_rows():
    rows = each_once(SMALL)
    assert all({row[axis] for row in rows} >= {*values} - {None} for axis, values in SMALL.items())
    assert len(rows) == 4


def test_every_value_is_in_a_row_that_is_allowed():
    def allowed(row):
        return not (row.get("a") == 3 and row.get("b") is not False)

    rows = each_once(SMALL, lambda row: "b" not in row or allowed(row))
    assert all(map(allowed, rows))
    assert {row["a"] for row in rows} == {1, 2, 3}


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
    rows = pairwise(AXES, lambda row: claimed(**row))
    assert [case_of(row) for row in rows] == cases
    expected = {
        pair
        for pair in every_pair(AXES)
        if claimed(**dict(pair)) and all(claimed(**dict([each])) for each in pair)
    }
    assert met(rows, AXES) == expected
