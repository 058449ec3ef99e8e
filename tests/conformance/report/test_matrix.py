"""The matrix of clauses in a terminal: one table, or one for each kind of subject."""

import io

import pytest
from rich.console import Console

from attnspec.conformance.report.matrix import WIDEST, print_matrix
from attnspec.conformance.report.record import Outcome, Record

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
