"""Tests of smaller failures: a record has the smallest call that fails, whatever else happens."""

import json
import sys

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner import worker
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.in_workers import TaskRunner
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import PlannedSubject, Task, TypedClaims
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.spec import Feature

VALUE = "output-equals-the-definition"


def record_of(attention, law=VALUE, **claims) -> Record:
    """Return the record of a law on a function."""
    claims = Claims(**{"features": frozenset(), "dtypes": (torch.float32,)} | claims)
    subject = Subject(declare("mine", attention, claims, "cpu"))
    loaded = LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)
    return run_in_process(Task(law=laws.load()[law], subject=loaded), Effort.SMOKE)


@pytest.mark.rotating(parts=4)
def test_the_smallest_call_is_reported_with_the_sizes_that_matter():
    def attention(query, key, value, scale=None):
        wrong = 1.01 if query.shape[-1] == 128 else 1.0
        return wrong * scaled_dot_product_attention(query, key, value, scale=scale)

    record = record_of(attention)
    assert record.outcome is Outcome.FAILED
    assert record.case.startswith("batch=1 heads=1 queries=1 keys=1 d_head=128 d_value=1 ")
    sizes = "d_head: fails at 128, passes at 64, 127, 129, 255, 256 and 257"
    assert record.sizes == (sizes,)
    assert f"Case     {record.case}\nSizes    {sizes}\n" in record.message
    assert "(1 of 1 elements wrong)" in record.message
    assert record.mismatch is not None
    assert Record.from_json(record.to_json()).sizes == record.sizes


def test_the_message_has_one_case_and_its_explanation():
    def attention(query, key, value, is_causal=False, scale=None):
        scale = (query.shape[-1] ** -0.5 if scale is None else scale) ** 2
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)

    record = record_of(attention, features=frozenset({Feature.CAUSAL}))
    assert record.looks_like
    assert record.message.count("Case     ") == 1
    assert record.message.count("looks like") == 1
    assert "queries=1" in record.case


def test_a_smaller_failure_is_of_the_same_kind():
    def attention(query, key, value, scale=None):
        if query.shape[2] == 1:
            raise RuntimeError("decoding is not implemented")
        return 1.01 * scaled_dot_product_attention(query, key, value, scale=scale)

    record = record_of(attention)
    assert record.outcome is Outcome.FAILED
    assert "queries=2" in record.case
    assert "the output differs from the definition" in record.reason


def test_the_answer_of_a_profile_explains_the_smaller_failure_too():
    def attention(query, key, value, is_causal=False, scale=None):
        alignment = "lower_right"
        return scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale, causal_alignment=alignment
        )

    record = record_of(
        attention, "a-causal-row-attends-its-prefix", features=frozenset({Feature.CAUSAL})
    )
    assert record.holds_under == "causal_alignment=lower_right"
    assert "queries=1 keys=2" in record.case


def test_what_cannot_be_shrunk_is_reported_as_it_is():
    calls = []

    def attention(query, key, value, scale=None):
        calls.append(query.shape)
        if query.shape[2] < 2:
            raise RuntimeError("out of memory")
        return torch.zeros_like(query)

    record = record_of(attention)
    assert record.outcome is Outcome.FAILED
    assert "queries=2" in record.case


HOSTILE = """
import os
import time
from attnspec.reference import scaled_dot_product_attention

def attention(query, key, value, scale=None):
    if query.shape[2] == 1 and key.shape[2] == 3:
        {0}
    return 1.01 * scaled_dot_product_attention(query, key, value, scale=scale)
"""


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("action", "ending"),
    [
        ("os._exit(3)", "Then, on another call, it ended its process, with exit status 3"),
        ("time.sleep(600)", "Then, on another call, timed out after"),
    ],
)
def test_a_record_survives_the_search_for_a_smaller_case(tmp_path, monkeypatch, action, ending):
    (tmp_path / "unkind.py").write_text(HOSTILE.format(action))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if "sleep" in action:  # importing the catalogue of mutants takes seconds
        monkeypatch.setattr(worker, "EXPLAINING", 5.0)
    claims = TypedClaims(features="", dtypes="float32")
    subject = PlannedSubject(
        target="unkind.py:attention", name="unkind.py:attention", claims=claims, device="cpu"
    )
    runner = TaskRunner(Effort.SMOKE, None, 60.0)
    record = runner.run(Task(law=laws.load()[VALUE], subject=subject))
    runner.end()
    assert record.outcome is Outcome.FAILED
    assert "queries=2 keys=3" in record.case
    assert ending in record.message
    assert json.loads(record.to_json())["sizes"] == []


def test_a_call_that_raises_shrinks_too():
    def attention(query, key, value, scale=None):
        if query.shape[2] > 2:
            raise RuntimeError(f"no kernel for {query.shape[2]} queries")
        return scaled_dot_product_attention(query, key, value, scale=scale)

    record = record_of(attention)
    assert record.outcome is Outcome.ERRORED
    assert record.case.startswith("batch=1 heads=1 queries=3 keys=1 ")
    assert record.sizes == ("queries: fails at 3, 4, 5, 6 and 7, passes at 1 and 2",)
    assert record.reason == "RuntimeError: no kernel for 3 queries"
