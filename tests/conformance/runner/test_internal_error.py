"""Internal errors: an exception of attnspec is never blamed on the subject."""

import json
from dataclasses import replace

import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.diagnosis import diagnose
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import BROKEN, CONFORMING, UNTRIED, Outcome, Record
from attnspec.conformance.report.verdict import verdict_of
from attnspec.conformance.runner import worker
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.targets import LoadedSubject, Subject
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Case


def attention(query, key, value, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)


def twice(query, key, value, scale=None):
    return 2 * attention(query, key, value, scale)


def law_that(check_, **fields):
    return Law(
        name="a-law-of-this-test",
        clauses=("ATT-1",),
        judges=SubjectKind.ATTENTION,
        check=check_,
        **{"pinned": (Case(queries=2, keys=3, d_head=2, d_value=2),)} | fields,
    )


def raises(subject, case):
    """ATT-1: a law with a mistake."""
    subject.call(draw(case))
    raise KeyError("mistake of the law")


def raises_over_text(subject, case):
    """ATT-1: a law that needs a number."""
    if subject.call(draw(case)).abs().sum() > 1e300:
        raise ZeroDivisionError


def run_of(law, function, monkeypatch):
    """Return the record that a worker makes of a law."""
    known = laws.load() | {law.name: law}
    monkeypatch.setattr(worker.laws, "load", lambda: known)
    loaded = LoadedSubject(kind=SubjectKind.ATTENTION, subject=Subject(declare("mine", function)))
    request = {"law": law.name, "deviation": None, "effort": "smoke", "seed": None}
    monkeypatch.setattr(worker, "shorten_limit", lambda seconds: None)
    return worker._run(loaded, request, lambda tag, body: None)


def test_a_law_that_raises_over_a_correct_function_is_an_internal_error(monkeypatch):
    record = run_of(law_that(raises), attention, monkeypatch)
    assert record.outcome is Outcome.INTERNAL_ERROR
    assert record.reason == "KeyError: 'mistake of the law'"
    assert "Traceback" in record.message
    assert "test_internal_error.py" in record.message
    assert "queries=2" in record.case
    told = verdict_of([record], [])
    assert told == (
        "mine: not decided (1 internal error): attnspec itself failed in 1 law, and in none of 0 "
        "others did the subject"
    )


def test_a_choice_of_cases_that_raises_is_an_internal_error(monkeypatch):
    def design(subject):
        raise IndexError("no such case")

    record = run_of(law_that(raises_over_text, design=design), attention, monkeypatch)
    assert record.outcome is Outcome.INTERNAL_ERROR
    assert record.reason == "IndexError: no such case"


def test_a_law_that_raises_over_what_a_subject_returns_blames_the_subject():
    infinite = Subject(
        replace(declare("mine", attention), attention=lambda *a, **o: attention(*a, **o) * 1e305)
    )
    case = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=torch.float64, seed=1)
    record = check(law_that(raises_over_text, pinned=(case, case.but(seed=2))), infinite, None)
    assert record.outcome is Outcome.ERRORED


def test_an_explanation_that_raises_leaves_the_outcome_and_adds_the_traceback(monkeypatch):
    def fails(record, subject, law):
        raise LookupError("mistake of the diagnosis")

    monkeypatch.setattr(diagnose, "with_diagnosis", fails)
    record = run_of(laws.load()["output-equals-the-definition"], twice, monkeypatch)
    assert record.outcome is Outcome.FAILED
    assert "Then attnspec itself failed:" in record.message
    assert "mistake of the diagnosis" in record.message


def test_a_worker_that_raises_outside_of_a_law_answers(monkeypatch):
    def fails(request, send_note):
        raise OSError("mistake of the worker")

    monkeypatch.setattr(worker, "_reply", fails)
    assert "mistake of the worker" in json.loads(worker.reply({}, print))["internal_error"]


def test_internal_errors_are_neither_broken_laws_nor_conforming():
    assert Outcome.INTERNAL_ERROR in UNTRIED
    assert Outcome.INTERNAL_ERROR not in BROKEN | CONFORMING
    internal = Record(
        subject="mine", law="a", clauses=("ATT-1",), outcome=Outcome.INTERNAL_ERROR, reason="E: no"
    )
    held = replace(internal, law="b", outcome=Outcome.PASSED)
    broken = replace(internal, law="c", outcome=Outcome.FAILED)
    assert "in none of 1 others" in verdict_of([internal, held], [])
    assert "NOT conforming: 1 of 2 laws broken (1 internal error)" in (
        verdict_of([internal, held, broken], [])
    )
