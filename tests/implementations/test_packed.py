"""Packed and paged attentions conform under the profiles that they declare."""

import contextlib
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec import implementations
from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort

NAMES = [each for each in implementations.operator_names() if each.startswith("packed_")]
LAWS = {name: law for name, law in laws.load().items() if law.judges == "packed"}
PAGED = {name: law for name, law in laws.load().items() if law.judges == "paged"}
NOT_CLAIMED = {
    "packed_eager": {"SEQ-14"},
    "packed_nested": {"SEQ-2", "SEQ-3", "SEQ-4", "SEQ-5", "SEQ-6", "SEQ-7", "SEQ-13", "SEQ-14"},
    "packed_flex": {"SEQ-6", "SEQ-14", "SEQ-15", "SEQ-16"},
}
"""The clauses of which each says nothing: what it does not take, or does not declare."""


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        # flex_attention says that it is not compiled, and nested tensors that they are a prototype
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", NAMES)
def test_a_law_holds(name, law):
    record = check(LAWS[law], subject_of_operator(implementations.load_operator(name)), None)
    is_silent = LAWS[law].clauses[0] in NOT_CLAIMED[name]
    assert record.outcome is (Outcome.NOT_CLAIMED if is_silent else Outcome.PASSED), record.message


@pytest.mark.parametrize("law", PAGED)
@pytest.mark.parametrize("name", ["paged_eager", "paged_transformers"])
def test_a_law_of_pages_holds(name, law):
    if name == "paged_transformers":
        pytest.importorskip("transformers")
    subject = subject_of_operator(implementations.load_operator(name))
    record = check(PAGED[law], subject, Effort.SMOKE, seed=0)
    assert record.outcome is Outcome.PASSED, record.message


@pytest.mark.parametrize("name", ["packed_eager", "packed_nested"])
@settings(max_examples=40)
@given(data=st.data())
def test_drawn_cases_pass(name, data):
    subject = subject_of_operator(implementations.load_operator(name))
    law = data.draw(st.sampled_from([law for law in LAWS.values() if law.explore is not None]))
    if law.needs - subject.implementation.features:
        return
    options = {"softcap", "sinks", "alibi"}
    if "SEQ-6" in law.clauses and not options & subject.implementation.features:
        return  # no case has an option that is not claimed
    if "SEQ-4" in law.clauses and name == "packed_nested":
        return
    case = data.draw(law.explore(subject))
    with contextlib.suppress(NotClaimed):
        law.check(subject, case)


def test_nested_tensors_take_no_window():
    packed = implementations.load_operator("packed_nested").function
    x, offsets = torch.ones(2, 1, 4), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="window_size must be"):
        packed(x, x, x, offsets, offsets, 2, 2, window_size=(-1, 0))


def test_heads_that_are_shared_need_the_flag():
    packed = implementations.load_operator("packed_eager").function
    offsets = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match="need enable_gqa"):
        packed(torch.ones(2, 2, 4), *2 * (torch.ones(2, 1, 4),), offsets, offsets, 2, 2)
