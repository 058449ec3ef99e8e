"""Exploration: what is kept from run to run, and what is not."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

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
