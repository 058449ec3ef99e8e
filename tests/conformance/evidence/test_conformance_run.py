"""Stored evidence for the pages: compact complete runs, and the figures of the benchmark."""

import dataclasses

import pytest
from rich.table import Table
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.evidence import benchmark as bench
from attnspec.conformance.evidence import conformance_run as evidence
from attnspec.conformance.report.file import Report, ReportWriter, read_report
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.report.run import Run

RUN = Run(attnspec="1", spec="2", torch="3", date="2026-01-02T03:04:05", ended="complete")
DROPPED = {
    "message": "",
    "case": "",
    "snippet": "",
    "refused": (),
    "dtypes": (),
    "picture": None,
    "seed": None,
}


@pytest.fixture
def whole(make_record) -> Report:
    """Return a report with every outcome and one law without any error."""
    records = [make_record(each) for each in Outcome]
    records.append(make_record(Outcome.PASSED, worst=0.0, seconds={"total": 0.123456}, seed=5))
    return Report(run=RUN, records=tuple(records))


def write(path, report):
    ReportWriter(path, report.run).end(report.run, report.records)
    return path


def test_the_stored_run_is_a_report_without_fields_that_no_page_shows(tmp_path, whole):
    path = write(tmp_path / "run.jsonl", whole)
    runner = CliRunner()
    evidence.main(path, tmp_path)
    stored = read_report(tmp_path / "conformance.jsonl")
    assert stored.run == whole.run
    assert len(stored.records) == len(whole.records)
    for before, after in zip(whole.records, stored.records, strict=True):
        seconds = {name: round(value, 3) for name, value in before.seconds.items()}
        assert after == dataclasses.replace(before, seconds=seconds, **DROPPED)
    assert stored.records[-1].worst == 0.0
    assert (tmp_path / "conformance.jsonl").stat().st_size < path.stat().st_size / 2
    result = runner.invoke(app, ["report", str(tmp_path / "conformance.jsonl")])
    assert result.exit_code == 0
    assert "expected failure" in result.output


def test_a_run_on_another_device_is_stored_in_another_file(tmp_path, whole):
    on_cuda = dataclasses.replace(whole, run=dataclasses.replace(RUN, device="cuda:1"))
    evidence.main(write(tmp_path / "run.jsonl", on_cuda), tmp_path)
    assert read_report(tmp_path / "conformance_cuda.jsonl").run == on_cuda.run
    assert not (tmp_path / "conformance.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ended": "interrupted"}, "interrupted"),
        ({"laws": ("MSK",)}, "MSK alone"),
        ({"effort": "smoke"}, "smoke"),
        ({"targets": ("eager", "mine.py:attention")}, "mine.py:attention is no registered name"),
    ],
)
def test_an_incomplete_run_is_not_stored(tmp_path, whole, change, message, capsys):
    stored = tmp_path / "conformance.jsonl"
    stored.write_text("as it was")
    report = dataclasses.replace(whole, run=dataclasses.replace(RUN, **change))
    with pytest.raises(evidence.typer.Exit) as exited:
        evidence.main(write(tmp_path / "run.jsonl", report), tmp_path)
    assert exited.value.exit_code == 2
    assert message in capsys.readouterr().err
    assert stored.read_text() == "as it was"


def test_a_run_without_a_tried_law_is_not_stored(whole, make_record):
    untried = Report(run=RUN, records=(make_record(Outcome.NOT_AVAILABLE),))
    assert evidence.objections(untried) == ["no law could be tried"]
    assert evidence.objections(Report(run=None, records=whole.records))
    assert not evidence.objections(whole)


def test_a_missing_report_is_rejected(tmp_path, capsys):
    with pytest.raises(evidence.typer.Exit):
        evidence.main(tmp_path / "nowhere.jsonl", tmp_path)
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_the_page_of_the_benchmark_describes_the_run(make_record):
    slow = make_record(Outcome.PASSED, law="a-slow-law", seconds={"total": 4.0, "oracle": 1.0})
    absent = make_record(Outcome.NOT_AVAILABLE, subject="gone", reason="no device")
    times = bench.table({"eager": ([slow], 1.0), "gone": ([absent], 0.0)})
    assert isinstance(times, Table)
    run = dataclasses.replace(RUN, seconds=125.0, packages={"numpy": "9.9"}, machine="Box (AVX)")
    page = bench.page(times, [bench.sentence(0.5, 12.0), "another figure"], run)
    assert "on 2026-01-02 with attnspec 1, specification 2, PyTorch 3, numpy 9.9" in page
    assert "on Box (AVX), in 2 minutes." in page
    assert "median 0.50 s, longest 12.00 s.**" in page
    assert "**another figure.**" in page
    cells = [cell.strip() for line in page.splitlines() for cell in line.split("|")]
    assert "a-slow-law 4.0" in cells
    assert "not available here: no device" in cells
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
