"""The end of a report on lines that no call ran."""

from dataclasses import replace

import pytest

from attnspec.conformance.report.matrix import run_notes
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.source import MOST_PLACES, _condition, lines_of_no_call
from attnspec.conformance.report.verdict import verdict_of

SOURCE = """def attention(query, key, value):
    if query.shape[3] > 4096:
        value = value.clone()
        value += 1
    return value
"""


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)
    return Record(
        subject="it",
        law="law",
        clauses=("ATT-1",),
        outcome=Outcome.PASSED,
        lines={str(path): {"statements": "2-5", "ran": "2,5"}},
    )


def test_the_lines_are_named_with_their_code_and_condition(record):
    assert lines_of_no_call([record, record]) == [
        "reached by no call: it: kernel.py:3-4  value = value.clone(), "
        "under if query.shape[3] > 4096:",
    ]
    assert set(lines_of_no_call([record])) <= set(run_notes([record]))
    verdict = "it: conforming in all of 1 laws; no call reached 1 place in its code"
    assert verdict_of([record], []) == verdict


def test_lines_that_another_law_ran_are_not_named(record):
    (path,) = record.lines
    other = replace(record, lines={path: {"statements": "2-5", "ran": "2-4"}})
    assert lines_of_no_call([record, other]) == []
    assert verdict_of([record, other], []) == "it: conforming in all of 2 laws"


def test_nothing_is_said_of_a_subject_whose_lines_are_not_all_known(record):
    untried = replace(record, outcome=Outcome.NOT_CLAIMED, lines=None)
    assert lines_of_no_call([record, untried])
    compiled = replace(record, lines=None)
    assert lines_of_no_call([record, compiled]) == []
    failing = replace(record, outcome=Outcome.FAILED)
    assert lines_of_no_call([record, failing]) == []
    assert lines_of_no_call([]) == []


def test_a_report_that_is_read_elsewhere_names_the_lines_alone(record, tmp_path):
    (path,) = record.lines
    gone = str(tmp_path / "elsewhere" / "kernel.py")
    assert lines_of_no_call([replace(record, lines={gone: record.lines[path]})]) == [
        "reached by no call: it: elsewhere/kernel.py:3-4"
    ]


def test_few_of_many_places_are_named(record):
    (path,) = record.lines
    many = {path: {"statements": "1-60", "ran": ",".join(map(str, range(1, 60, 2)))}}
    lines = lines_of_no_call([replace(record, lines=many)])
    assert len(lines) == MOST_PLACES + 1
    assert lines[-1] == f"reached by no call: it: {30 - MOST_PLACES} more places"


def test_the_lines_of_a_record_survive_json(record):
    assert Record.from_json(record.to_json()) == record
    older = replace(record, lines=None)
    assert Record.from_json(older.to_json()) == older
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json(record.to_json().replace('"lines": {', '"lines": [{').replace("}}", "}]"))


def test_the_block_around_a_line_is_that_of_its_condition(tmp_path):
    path = tmp_path / "blocks.py"
    path.write_text(
        """def f(x):
    if x > 1:
        x = 1
    elif x > 2:
        x = 2
    else:
        x = 3
    for each in x:
        with each:
            x = 4
    else:
        x = 5
    try:
        x = 6
    except TypeError:
        x = 7
    match x:
        case 1:
            x = 8
    x = 9
"""
    )
    under = {line: _condition(str(path), line) for line in (3, 5, 7, 10, 12, 14, 16, 19, 20)}
    assert under == {
        3: "if x > 1:",
        5: "elif x > 2:",
        7: "else of elif x > 2:",
        10: "with each:",
        12: "else of for each in x:",
        14: "",
        16: "except TypeError:",
        19: "case 1:",
        20: "",
    }
