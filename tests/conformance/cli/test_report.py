"""`attnspec report`, and the pages that `attnspec check` draws, as their user meets them."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.report.comparison import Kind, compare_reports
from attnspec.conformance.report.file import Report, ReportWriter, read_report
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.report.run import Run
from attnspec.conformance.runner.plugin import Collector

RUN = Run(attnspec="1", torch="2.11.0", ended="complete")
BROKEN = """
def attention(query, key, value, is_causal=False, scale=None):
    print("\\x1b[31mhello from the kernel\\x1b[0m")
    return value.sum(-2, keepdim=True).expand(*query.shape[:-1], -1) * 0.5
"""


def started(folder, *arguments, **environment):
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli.app", "check", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # whoever runs the tests in the background may have interrupts ignored, also in children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | environment,
    )


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "kernel.py").write_text(BROKEN)
    return ["kernel.py:attention", "--dtypes", "float32", "--effort", "smoke", "-n", "1"]


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_that_stops_early_has_all_its_pages_and_they_say_so(tmp_path, kernel, workers):
    (tmp_path / "summary.md").write_text("an earlier step\n")
    pages = ["--report", "run.jsonl", "--html", "run.html", "--markdown", "run.md"]
    options = ["-x", "-n", workers, "--seed", "9", *pages]
    run = started(tmp_path, *kernel, *options, GITHUB_STEP_SUMMARY="summary.md")
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 1, said
    report = read_report(tmp_path / "run.jsonl")
    assert report.run.ended == "stopped at the first failure"
    assert (report.run.seed, report.run.effort, report.run.device) == (9, "smoke", "cpu")
    assert report.run.trials > len(report.records) > 0
    assert [each.outcome for each in report.records].count(Outcome.FAILED) == 1
    for name in ("run.html", "run.md", "summary.md"):
        assert "This report is partial" in (tmp_path / name).read_text(encoding="utf-8")
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("an earlier step\n# ")
    names = {each.name for each in tmp_path.iterdir()} - {"__pycache__"}
    assert names == {"kernel.py", "run.jsonl", "run.html", "run.md", "summary.md"}


@pytest.mark.rotating(parts=3)
def test_an_interrupted_run_leaves_a_valid_report_that_is_marked(tmp_path, kernel):
    path = tmp_path / "run.jsonl"
    run = started(tmp_path, *kernel, "--report", "run.jsonl", "--html", "run.html")
    try:
        ends = time.monotonic() + 150
        while time.monotonic() < ends:
            if path.exists() and read_report(path).records:
                break
            time.sleep(0.1)
        before = read_report(path)
        assert before.run.ended == "partial"
        os.killpg(run.pid, signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    report = read_report(path)
    assert report.run.ended == "interrupted", said
    assert report.run.trials > len(report.records) >= len(before.records)
    assert report.run.seconds > 0
    assert "interrupted" in (tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_a_page_that_cannot_be_written_leaves_the_report_and_a_usage_error(tmp_path, make_record):
    options = {"--attnspec-report": str(tmp_path / "run.jsonl"), "--attnspec-html": "/dev/full"}
    values = {"--attnspec-device": "cpu", "--effort": "smoke", "--implementation": ["eager"]}
    config = SimpleNamespace(getoption=(options | values).get)
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK, shouldfail=False)
    collector = Collector(config)
    collector.begin()
    collector.collected["x::test_law[a]"] = None
    collector._keep("x::test_law[a]", make_record(Outcome.PASSED))
    collector.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.USAGE_ERROR
    assert "No space left" in collector.unwritten
    report = read_report(tmp_path / "run.jsonl")
    assert report.run.is_complete
    assert len(report.records) == 1


def write(path, run, records):
    ReportWriter(path, run).end(run, records)
    return str(path)


def test_a_report_is_printed_and_drawn_again(tmp_path, broken_run):
    path = write(tmp_path / "run.jsonl", broken_run.run, broken_run.records)
    printed = CliRunner().invoke(app, ["report", path])
    assert printed.exit_code == 0
    for each in ("torch", "2.13.0", "and more", "MSK-1", "FAIL", "not conforming: 5 laws"):
        assert each in printed.output
    assert "\x1b" not in printed.output
    pages = ["--html", str(tmp_path / "run.html"), "--markdown", str(tmp_path / "run.md")]
    drawn = CliRunner().invoke(app, ["report", path, *pages])
    assert (drawn.exit_code, drawn.output) == (0, "")
    assert "law-failed" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "law-failed" in (tmp_path / "run.md").read_text(encoding="utf-8")


@pytest.fixture
def two_runs(make_record):
    """A run before and one after, with one law for each way in which they can differ."""

    def law(name, outcome, **changes):
        return make_record(outcome, law=name, **changes)

    passed, failed = Outcome.PASSED, Outcome.FAILED
    before = [
        law("breaks", passed),
        law("heals", failed),
        law("stays broken", failed),
        law("stays", passed, worst=0.2, seconds={"total": 1.0}),
        law("fades", passed),
        law("goes", passed),
        law("known", Outcome.EXPECTED_FAILURE),
    ]
    after = [
        law("breaks", failed, reason="it broke"),
        law("heals", passed),
        law("stays broken", failed),
        law("stays", passed, worst=0.9, seconds={"total": 3.0}),
        law("fades", Outcome.NOT_CLAIMED),
        law("comes", passed),
        law("comes broken", Outcome.ERRORED),
        law("known", Outcome.EXPECTED_FAILURE),
    ]
    newer = dataclasses.replace(RUN, torch="2.13.0", ended="interrupted")
    return Report(run=RUN, records=tuple(before)), Report(run=newer, records=tuple(after))


def test_what_changed_between_runs_is_told_the_gravest_first(two_runs):
    found = compare_reports(two_runs)
    assert [(each.law, each.kind) for each in found.changes] == [
        ("breaks", Kind.BROKEN),
        ("comes broken", Kind.BROKEN_AND_NEW),
        ("heals", Kind.MENDED),
        ("stays broken", Kind.STILL_BROKEN),
        ("fades", Kind.OTHER),
        ("comes", Kind.NEW),
        ("goes", Kind.GONE),
    ]
    assert found.changes[0].reason == "it broke"
    assert found.same == 2
    assert ("torch", ("2.11.0", "2.13.0")) in found.facts
    assert found.partial == (1,)
    (seconds,) = found.seconds
    assert seconds == ("eager", (1.0 + 5 * 0.25, 3.0 + 5 * 0.25))
    accuracy = {each.law: each.fractions for each in found.accuracy}
    assert accuracy["stays"] == (0.2, 0.9)
    assert "fades" not in accuracy


def test_runs_of_one_subject_each_are_compared_whatever_their_names(make_record):
    reports = [
        Report(run=None, records=(make_record(outcome, name, law="a law"),))
        for name, outcome in (("first", Outcome.PASSED), ("second", Outcome.ERRORED))
    ]
    (change,) = compare_reports(reports).changes
    assert (change.subject, change.kind) == ("first → second", Kind.BROKEN)


def test_a_run_is_the_same_as_itself(make_record):
    report = Report(run=RUN, records=(make_record(Outcome.PASSED),))
    found = compare_reports([report, report])
    assert (found.changes, found.accuracy, found.same) == ((), (), 1)


def test_reports_are_compared_in_the_terminal_and_on_pages(tmp_path, two_runs):
    names = ["before.jsonl", "after.jsonl"]
    paths = [
        write(tmp_path / name, each.run, each.records)
        for name, each in zip(names, two_runs, strict=True)
    ]
    printed = CliRunner().invoke(app, ["report", *paths])
    pages = ["--html", str(tmp_path / "both.html"), "--markdown", str(tmp_path / "both.md")]
    assert CliRunner().invoke(app, ["report", *paths, *pages]).exit_code == 0
    told = [printed.output, *((tmp_path / f"both.{end}").read_text() for end in ("html", "md"))]
    assert printed.exit_code == 0
    for text in told:
        for each in ("newly broken", "mended", "breaks", "2.11.0", "2.13.0", "0.9", "is partial"):
            assert each in text
        assert "1 newly broken" in text


@pytest.mark.parametrize("text", [None, "", "nonsense\n"])
def test_what_is_no_report_is_one_error_that_names_it(tmp_path, text):
    path = tmp_path / "some.jsonl"
    if text is not None:
        path.write_text(text)
    for arguments in ([str(path)], [str(tmp_path)], [str(path), str(path), "--html", "x.html"]):
        done = CliRunner().invoke(app, ["report", *arguments])
        assert done.exit_code == 2
        assert done.stderr.startswith("attnspec: ")
        assert len(done.stderr.splitlines()) == 1
        assert arguments[0] in done.stderr


@pytest.mark.parametrize("command", [["check", "eager"], ["report", "run.jsonl"]])
@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_a_page_that_cannot_be_written_is_refused_by_name(
    tmp_path, monkeypatch, make_record, command, option
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run.jsonl", RUN, [make_record(Outcome.PASSED)])
    for path, told in (("absent/page", "there is no folder"), (".", "it is a folder")):
        done = CliRunner().invoke(app, [*command, option, path])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"attnspec: {path}: {told}" in done.stderr
