"""Exploration: what is kept from run to run, and what is not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from attnspec.conformance import laws
from attnspec.conformance.attention.strategies import PATIENCE, cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import BUDGETS, Effort
from attnspec.conformance.runner.explore import explore

THOROUGH = replace(BUDGETS[Effort.THOROUGH], examples=200, shrinking=5.0)


def explored(budget, seed, name):
    """The cases that are tried until one is too large, the smallest of those last."""
    seen = []

    def attempt(case):
        seen.append(case)
        assert case < 1000

    with pytest.raises(AssertionError):
        explore(attempt, st.integers(0, 10**6), budget, 1, seed, name)
    return seen


def test_a_thorough_run_begins_with_what_failed_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert explored(THOROUGH, 1, "a law")[-1] == 1000
    assert explored(THOROUGH, 2, "a law")[0] == 1000


def test_laws_do_not_share_what_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    explored(THOROUGH, 1, "a law")
    assert explored(THOROUGH, 2, "another law")[0] != 1000


def test_other_efforts_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = replace(BUDGETS[Effort.STANDARD], examples=200)
    assert explored(budget, None, "a law") == explored(budget, None, "a law")
    assert not list(tmp_path.iterdir())


def test_cases_do_not_depend_on_the_modules_that_are_imported(monkeypatch):
    """Hypothesis draws numbers from the source of modules that are not installed, if it may."""
    parsed = []
    local = providers._get_local_constants
    monkeypatch.setattr(providers, "_get_local_constants", lambda: parsed.append(1) or local())
    budget = replace(BUDGETS[Effort.STANDARD], examples=200)
    drawn = []
    explore(drawn.append, st.integers(0, 10**6), budget, 1)
    assert len(drawn) == 200
    assert parsed == []
    # a user's own tests draw as before
    given(st.integers(0, 10**6))(settings(max_examples=200, database=None)(lambda number: None))()
    assert parsed


def subject_that_claims(condition):
    """A correct subject that refuses cases, and the cases that it was asked about."""
    asked = []

    def supports(case):
        asked.append(case)
        return None if condition(case) else "not this one"

    return Subject(replace(dense("picky", Dense()), supports=supports)), asked


def test_a_law_without_a_claimed_case_is_left_soon():
    subject, asked = subject_that_claims(lambda case: False)
    explore(lambda case: None, cases()(subject), BUDGETS[Effort.STANDARD], 1)
    # a drawn case is changed in a few ways before it is given up
    assert PATIENCE <= len(asked) < 100 * PATIENCE
    record = check(laws.load()["scale-multiplies-the-scores"], subject, Effort.SMOKE)
    assert (record.outcome, record.reason) == (Outcome.NOT_CLAIMED, "not this one")


def test_a_law_with_few_claimed_cases_is_explored():
    subject, asked = subject_that_claims(lambda case: case.keys == 5 and case.d_head == 8)
    tried = []
    explore(tried.append, cases()(subject), BUDGETS[Effort.STANDARD], 1)
    assert len(tried) > 5
    assert all(case.keys == 5 for case in tried)
    assert len(asked) > 10 * len(tried)
