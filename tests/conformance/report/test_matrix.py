"""The matrix of clauses in a terminal: one table, or one for each kind of subject."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from attnspec.conformance.report.matrix import (
    FLOAT64_UNCLAIMED,
    WIDEST,
    coverage,
    figures,
    print_matrix,
    run_notes,
)
from attnspec.conformance.report.record import DEVIATING, HIDDEN, Outcome, Record
from attnspec.spec.contract import refused_dtype

CLAUSES = {"mask": ("MSK-1", "MSK-2"), "norm": ("RMS-1",)}


def printed(subjects: dict[str, str]) -> str:
    records = [
        Record(subject=name, law=f"law-of-{clause}", clauses=(clause,), outcome=Outcome.PASSED)
        for name, kind in subjects.items()
        for clause in CLAUSES[kind]
    ]
    stream = io.StringIO()
    print_matrix(records, Console(file=stream, width=400))
    return stream.getvalue()


@pytest.mark.parametrize("count", [WIDEST, WIDEST + 1])
def test_many_subjects_have_a_table_for_each_kind(count):
    kinds = {f"subject_{number}": "mask" if number else "norm" for number in range(count)}
    text = printed(kinds)
    assert text.count("Clause by implementation") == (1 if count <= WIDEST else 2)
    for clauses in CLAUSES.values():
        for clause in clauses:
            assert text.count(clause) == 1
    heads = [line for line in text.splitlines() if "┃clause" in line]
    of_norms = [line for line in heads if "subject_0" in line]
    assert len(of_norms) == 1
    assert ("subject_1" in of_norms[0]) == (count <= WIDEST)


OF_REGIMES = Record(
    subject="it",
    law="a-law",
    clauses=("NUM-18",),
    outcome=Outcome.PASSED,
    coverage={
        "backward": True,
        "claimed": 10,
        "called": 9,
        "missing": ["batch: 1 with heads: 8"],
        "not tried": {
            "needs 1.5 GiB": ["keys: over 65 000 with queries: 1"],
            "needs 17.0 GiB": ["heads: 8 with keys: over 65 000"],
        },
    },
    figures={"longest call: queries and keys": 5120.0, "longest call: keys of one query": 9.0},
)


def test_pairs_that_were_not_called_are_grouped_by_reason_and_regime():
    assert coverage([OF_REGIMES]) == [
        "it: 1 pairs not called with a backward pass: missing",
        "  batch: 1 with heads: 8",
        "it: 2 pairs not called with a backward pass: needs 1.5 to 17 GiB",
        "  keys: over 65 000 with heads: 8; queries: 1",
    ]


def test_the_pairs_that_were_called_are_told_with_what_no_call_could_show():
    unjudged = {HIDDEN: ["a with b", "a with c"], DEVIATING: ["b with c"]}
    reasons = {**OF_REGIMES.coverage["not tried"], **unjudged}
    record = replace(OF_REGIMES, coverage={**OF_REGIMES.coverage, "not tried": reasons})
    line = (
        "regimes: it: 9 of 10 claimed pairs were called with a backward pass, "
        "2 are too large to try, 2 have results that no bound can judge, 1 meet a known deviation"
    )
    assert line in run_notes([record])


def test_the_largest_calls_of_an_implementation_are_told_in_one_line():
    shorter = replace(
        OF_REGIMES,
        figures={"longest call: queries and keys": 7.0, "longest call: scores of all heads": 7.2e7},
    )
    told = (
        "largest calls: it: 72 million scores of all heads, 5120 queries and keys, "
        "9 keys of one query"
    )
    assert told in run_notes([OF_REGIMES, shorter])
    assert figures([OF_REGIMES]) == []


def test_the_calls_at_sizes_that_a_user_gave_are_counted():
    name = "calls at given sizes: heads=3,keys=4"
    record = replace(OF_REGIMES, figures={name: 3.0, f"{name} with gradients": 0.0})
    line = "your sizes: it: heads=3,keys=4: 3 calls without gradients, no calls with gradients"
    assert line in run_notes([record])
    failing = replace(record, outcome=Outcome.FAILED, figures={name: 1.0})
    line = "your sizes: it: heads=3,keys=4: calls until one failed without gradients"
    assert line in run_notes([failing])
    assert figures([record]) == []


def test_a_model_of_float32_alone_is_told_what_it_misses():
    assert refused_dtype(torch.float64, [torch.float32]) == FLOAT64_UNCLAIMED

    def records(subject, reason, clause):
        return [
            Record(
                subject=subject,
                law=f"law-{n}",
                clauses=(clause,),
                outcome=Outcome.PASSED,
                refused=(reason,),
            )
            for n in range(6)
        ]

    unclaimed = "dtype not claimed: float64"
    models, others = records("mine.py:build", unclaimed, "GPT-11"), records("a", unclaimed, "ATT-1")
    (line,) = run_notes([*models, *others])
    assert line.startswith("not tried: mine.py:build: cases of 6 laws in float64")
    assert run_notes(records("mine.py:build", "another reason", "GPT-11")) == []
