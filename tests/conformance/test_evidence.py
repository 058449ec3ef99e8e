"""What sessions keep for the pages: whole runs made small, and the figures of the benchmark."""

import dataclasses

import pytest
from rich.table import Table
from typer.testing import CliRunner

from attnspec.conformance import bench, evidence
from attnspec.conformance.cli import app
from attnspec.conformance.record import Outcome
from attnspec.conformance.report_file import Report, ReportWriter, read_report
from attnspec.conformance.report_run import Run

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
    """A run of every outcome, one law within its bound by nothing at all."""
    records = [make_record(each) for each in Outcome]
    records.append(make_record(Outcome.PASSED, worst=0.0, seconds={"total": 0.123456}, seed=5))
    return Report(run=RUN, records=tuple(records))


def write(path, report):
    ReportWriter(path, report.run).end(report.run, report.records)
    return path


def test_what_is_kept_is_a_report_without_what_no_page_shows(tmp_path, whole):
    made = write(tmp_path / "run.jsonl", whole)
    runner = CliRunner()
    evidence.main(made, tmp_path)
    kept = read_report(tmp_path / "conformance.jsonl")
    assert kept.run == whole.run
    assert len(kept.records) == len(whole.records)
    for before, after in zip(whole.records, kept.records, strict=True):
        seconds = {name: round(value, 3) for name, value in before.seconds.items()}
        assert after == dataclasses.replace(before, seconds=seconds, **DROPPED)
    assert kept.records[-1].worst == 0.0
    assert (tmp_path / "conformance.jsonl").stat().st_size < made.stat().st_size / 2
    told = runner.invoke(app, ["report", str(tmp_path / "conformance.jsonl")])
    assert told.exit_code == 0
    assert "expected failure" in told.output


def test_a_run_elsewhere_is_kept_beside_it(tmp_path, whole):
    there = dataclasses.replace(whole, run=dataclasses.replace(RUN, device="cuda:1"))
    evidence.main(write(tmp_path / "run.jsonl", there), tmp_path)
    assert read_report(tmp_path / "conformance_cuda.jsonl").run == there.run
    assert not (tmp_path / "conformance.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ended": "interrupted"}, "interrupted"),
        ({"laws": ("MSK",)}, "MSK alone"),
        ({"effort": "smoke"}, "smoke"),
        ({"targets": ("eager", "mine.py:attention")}, "mine.py:attention is no registered name"),
    ],
)
def test_a_run_that_does_not_tell_everything_is_no_evidence(tmp_path, whole, change, told, capsys):
    kept = tmp_path / "conformance.jsonl"
    kept.write_text("as it was")
    report = dataclasses.replace(whole, run=dataclasses.replace(RUN, **change))
    with pytest.raises(evidence.typer.Exit) as ended:
        evidence.main(write(tmp_path / "run.jsonl", report), tmp_path)
    assert ended.value.exit_code == 2
    assert told in capsys.readouterr().err
    assert kept.read_text() == "as it was"


def test_a_run_of_nothing_is_no_evidence(whole, make_record):
    nothing = Report(run=RUN, records=(make_record(Outcome.NOT_AVAILABLE),))
    assert evidence.objections(nothing) == ["nothing could be tried"]
    assert evidence.objections(Report(run=None, records=whole.records))
    assert not evidence.objections(whole)


def test_what_is_no_report_is_refused(tmp_path, capsys):
    with pytest.raises(evidence.typer.Exit):
        evidence.main(tmp_path / "nowhere.jsonl", tmp_path)
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_the_page_of_the_benchmark_says_how_it_was_made(make_record):
    slow = make_record(Outcome.PASSED, law="a-slow-law", seconds={"total": 4.0, "oracle": 1.0})
    absent = make_record(Outcome.NOT_AVAILABLE, subject="gone", reason="no device")
    shown = bench.table({"eager": ([slow], 1.0), "gone": ([absent], 0.0)})
    assert isinstance(shown, Table)
    run = dataclasses.replace(RUN, seconds=125.0, packages={"numpy": "9.9"}, machine="Box (AVX)")
    page = bench.page(shown, bench.sentence(0.5, 12.0), run)
    assert "on 2026-01-02 with attnspec 1, specification 2, PyTorch 3, numpy 9.9" in page
    assert "on Box (AVX), in 2 minutes." in page
    assert "median 0.50 s, longest 12.00 s" in page
    cells = [each.strip() for line in page.splitlines() for each in line.split("|")]
    assert "a-slow-law 4.0" in cells
    assert "not available here: no device" in cells
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
