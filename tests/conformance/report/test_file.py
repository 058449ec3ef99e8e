"""Tests of report files: valid at any time, read back unchanged, and rejected if malformed."""

import dataclasses
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

from attnspec.conformance.report.file import Report, ReportWriter, read_report, write_atomically
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.run import Run, begun
from attnspec.conformance.report.view import facts

RUN = Run(attnspec="1", spec="2", device="cpu", seed=3, targets=("a",), trials=4, seconds=0.5)
REMARKED = dataclasses.replace(RUN, remarks=("a is judged so", "experiments show: that"))


def test_a_run_records_its_environment():
    run = begun(device="cpu", effort="smoke", seed=None, targets=["eager"], laws=["MSK"])
    assert run.attnspec
    assert run.spec
    assert run.torch
    assert run.python
    assert run.packages["numpy"] == numpy.__version__
    assert run.machine.endswith(f"({torch.backends.cpu.get_cpu_capability()})")
    assert run.date.endswith("+00:00")
    assert (run.targets, run.laws, run.ended) == (("eager",), ("MSK",), "partial")
    assert Run.from_json(run.to_json()) == run


def test_remarks_are_read_back_and_shown_and_older_headers_have_none():
    assert Run.from_json(REMARKED.to_json()) == REMARKED
    assert ("remarks", "a is judged so; experiments show: that") in facts(REMARKED)
    header = json.loads(REMARKED.to_json())
    del header["run"]["remarks"]
    assert Run.from_json(json.dumps(header)) == RUN


@pytest.mark.parametrize("outcome", Outcome)
def test_a_report_is_read_back_unchanged(tmp_path, make_record, outcome):
    path = tmp_path / "report.jsonl"
    records = [make_record(outcome), make_record(Outcome.PASSED)]
    writer = ReportWriter(path, RUN)
    for number, record in enumerate(records):
        assert read_report(path).records == tuple(records[:number])
        writer.add(record)
    assert not read_report(path).run.is_complete
    writer.end(dataclasses.replace(RUN, ended="complete"), reversed(records))
    report = read_report(path)
    assert report.run.is_complete
    assert report.records == tuple(reversed(records))
    assert [file.name for file in tmp_path.iterdir()] == ["report.jsonl"]


def test_hostile_strings_are_read_back_unchanged(tmp_path, broken_run):
    path = tmp_path / "report.jsonl"
    ReportWriter(path, broken_run.run).end(broken_run.run, broken_run.records)
    assert read_report(path) == broken_run


def test_records_without_a_header_are_a_report_without_a_run(tmp_path, make_record):
    path = tmp_path / "old.jsonl"
    path.write_text(make_record(Outcome.PASSED).to_json() + "\n")
    report = read_report(path)
    assert report.run is None
    assert len(report.records) == 1


def test_a_header_may_lack_the_packages():
    line = dataclasses.replace(RUN, packages={"numpy": "2"}).to_json()
    assert Run.from_json(line.replace(', "packages": {"numpy": "2"}', "")) == RUN
    with pytest.raises(ValueError, match="not the header"):
        Run.from_json(line.replace('{"numpy": "2"}', '"numpy"'))


def test_unknown_fields_are_ignored(tmp_path, make_record):
    record = make_record(Outcome.PASSED)
    path = tmp_path / "new.jsonl"
    header = RUN.to_json().replace('{"attnspec"', '{"phase of the moon": "full", "attnspec"')
    path.write_text(f'{header}\n{record.to_json()[:-1]}, "weather": {{}}}}\n')
    assert read_report(path) == Report(run=RUN, records=(record,))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_infinities_are_read_back_unchanged(make_record, value):
    record = make_record(Outcome.PASSED, worst=value, figures={"a figure": value})
    assert Record.from_json(record.to_json()) == record


def test_an_incomplete_last_line_is_left_out(tmp_path, make_record):
    path = tmp_path / "report.jsonl"
    writer = ReportWriter(path, RUN)
    writer.add(make_record(Outcome.PASSED))
    with path.open("a") as file:
        file.write(make_record(Outcome.FAILED).to_json()[:100])
    report = read_report(path)
    assert [record.outcome for record in report.records] == [Outcome.PASSED]
    assert not report.run.is_complete


def test_a_failed_write_leaves_the_old_text_and_no_other_file(tmp_path):
    path = tmp_path / "report.jsonl"
    write_atomically(path, "old")

    class Full(str):
        __slots__ = ()

        def encode(self, *_args, **_keywords):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_atomically(path, Full("new"))
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.jsonl"]


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        write_atomically(tmp_path / "pipe", "through")
        assert read.result(timeout=10) == "through"
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


GOOD = Record(subject="s", law="l", clauses=("ATT-1",), outcome=Outcome.PASSED).to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it has no records"),
        (b"\n\n", "it has no records"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b"not json\n", "line 1: not a record: not json"),
        (b"[]\n", "line 1: not a record"),
        (b"{}\n", "line 1: not a record"),
        (b'{"run": 3}\n', "line 1: not the header"),
        (b'{"run": {}}\n', "line 1: not the header"),
        (GOOD.encode() + b"\n" + GOOD.encode()[:40], "line 2: not a record"),
        (GOOD.replace('"passed"', '"splendid"').encode(), "line 1: not a record"),
        (GOOD.replace('"s"', "5").encode(), "line 1: not a record"),
        (GOOD.replace('"seconds": {}', '"seconds": {"total": "x"}').encode(), "not a record"),
        (GOOD.replace('["ATT-1"]', "[3]").encode(), "not a record"),
        (GOOD.replace('"examples": 0', '"examples": "many"').encode(), "not a record"),
        (GOOD.replace('"picture": null', '"picture": []').encode(), "not a record"),
        ((RUN.to_json() + "\n{").replace("partial", "complete").encode(), "line 2"),
    ],
)
def test_a_malformed_report_is_rejected_with_line_and_reason(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"bad\.jsonl") as rejected:
        read_report(path)
    assert message in str(rejected.value)


def test_a_folder_and_a_missing_file_are_rejected_by_name(tmp_path):
    for path in (tmp_path, tmp_path / "absent.jsonl"):
        with pytest.raises(ValueError, match=path.name):
            read_report(path)
