"""Isolation: whatever a target does, the run ends, says what happened, and judges the next one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.record import Outcome

HERE = Path(__file__).parents[1]
LAWS = {
    "lengths-zero-and-one": "ATT-9",
    "arguments-are-not-written-to": "TEN-2",
    "global-state-is-unchanged": "TEN-6",
}
ALL, MOMENT, WRITES, STATE = set(LAWS), *({name} for name in LAWS)
FAILED, ERRORED, FLAKY = Outcome.FAILED, Outcome.ERRORED, Outcome.FLAKY
LIMIT, MEMORY = 20, 1

EXPECTED = {
    "raises": (ALL, ERRORED, "RuntimeError: no kernel for this"),
    "leaves": (ALL, ERRORED, "SystemExit: goodbye"),
    "returns_none": (MOMENT, FAILED, "must be a tensor, got NoneType"),
    "returns_a_tuple": (MOMENT, FAILED, "must be a tensor, got tuple"),
    "returns_another_shape": (MOMENT, FAILED, "must have shape"),
    "returns_nan": (MOMENT, FAILED, "got nan"),
    "returns_another_dtype": (MOMENT, FAILED, "must have dtype torch.float32"),
    "writes_to_its_inputs": (WRITES, FAILED, "query"),
    "prints_megabytes": (MOMENT, ERRORED, "it ended its process, with exit status 7"),
    "changes_the_generator": (STATE, FAILED, "the random generator"),
    "changes_the_default_dtype": (STATE, FAILED, "the default dtype"),
    "changes_the_threads": (STATE, FAILED, "the number of threads from 1 to 3"),
    "changes_the_grad_mode": (STATE, FAILED, "the grad mode"),
    "sleeps": (MOMENT, ERRORED, f"timed out after {LIMIT} s"),
    "loops_in_c": (MOMENT, ERRORED, f"timed out after {LIMIT} s"),
    "allocates": (MOMENT, ERRORED, f"out of memory (limit {MEMORY} GiB)"),
    "allocates_tensors": (MOMENT, ERRORED, f"out of memory (limit {MEMORY} GiB)"),
    "exits": (MOMENT, ERRORED, "it ended its process, with exit status 0"),
    "crashes": (MOMENT, ERRORED, "its process died by SIGSEGV"),
    "changes_its_mind": (MOMENT, FLAKY, "the same case failed and passed"),
    "tosses_a_coin": (MOMENT, FLAKY, "the same case failed and passed"),
}
"""Which laws each target breaks at least, with which outcome, and what is said of it."""

ONLY = ("sleeps", "loops_in_c", "allocates", "allocates_tensors", "exits", "crashes")
"""Those that break nothing else."""

CASELESS = ("fails_on_import", "fails_in_workers", "exits_in_workers")
QUIET = ("changes_everything_else", "leaves_threads", "right")
"""Those of which no law says anything bad, and which must not change what is said of others."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run over all of them, each followed by others."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copy(HERE / "hostile.py", folder)
    sys.path.insert(0, str(HERE))
    import hostile

    for name in CASELESS:
        (folder / f"{name}.py").write_text(getattr(hostile, name.upper()))
    sys.path.remove(str(HERE))
    strangers = [f"{name}.py:right" for name in CASELESS]
    names = ["changes_everything_else", "leaves_threads", *EXPECTED, "right"]
    targets = [*strangers, *(f"hostile.py:{name}" for name in names), "sdpa"]
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli.app", "check", *targets]
    command += ["--dtypes", "float32", "--effort", "smoke", "-n", "2", "--report", "r.jsonl"]
    command += ["--timeout", str(LIMIT), "--memory", str(MEMORY)]
    for law in LAWS:
        command += ["--laws", law]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done, read_report(folder / "r.jsonl"), targets


@pytest.fixture(scope="module")
def records(run):
    """By target and law."""
    _, report, _ = run
    return {(each.subject, each.law): each for each in report.records}


@pytest.mark.rotating(parts=3)
def test_the_report_is_complete_whatever_happens(run):
    done, report, targets = run
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr
    assert report.run.is_complete
    found = [(each.subject, each.law) for each in report.records]
    assert sorted(found) == sorted((target, law) for target in targets for law in LAWS)
    assert len(done.stdout) + len(done.stderr) < 500_000, "megabytes were passed on"


@pytest.mark.rotating(parts=21)
@pytest.mark.parametrize("name", list(EXPECTED))
def test_what_happened_is_told_with_its_case(records, name):
    broken, outcome, told = EXPECTED[name]
    for law in broken:
        record = records[f"hostile.py:{name}", law]
        assert record.outcome is outcome, (law, record.outcome, record.reason)
        assert told in record.reason
        assert "queries=" in record.case
        assert f"hostile.{name}" in record.snippet or not record.snippet
        assert f"Case     {record.case}" in record.message
    others = ALL - broken if name in ONLY else ()
    for law in others:
        record = records[f"hostile.py:{name}", law]
        assert record.outcome is Outcome.PASSED, (law, record.message)


@pytest.mark.parametrize("name", ["sleeps", "loops_in_c", "exits", "crashes", "allocates"])
def test_a_lost_call_can_be_repeated(records, name):
    record = records[f"hostile.py:{name}", "lengths-zero-and-one"]
    assert "queries=0" in record.case
    assert f"attention = hostile.{name}" in record.snippet


def test_where_it_hangs_or_crashes_and_what_it_wrote_last_is_told(records):
    for name in ("loops_in_c", "crashes"):
        message = records[f"hostile.py:{name}", "lengths-zero-and-one"].message
        assert f"in {name}" in message
    message = records["hostile.py:prints_megabytes", "lengths-zero-and-one"].message
    assert "the last words" in message
    assert len(message) < 10_000


@pytest.mark.parametrize("name", CASELESS)
def test_what_cannot_be_imported_has_a_record_for_each_law(records, name):
    told = {
        "fails_on_import": "needs a licence",
        "fails_in_workers": "one process at a time",
        "exits_in_workers": "exit status 9",
    }
    for law in LAWS:
        record = records[f"{name}.py:right", law]
        assert record.outcome is ERRORED
        assert f"{name}.py:right: importing it failed" in record.reason
        assert told[name] in record.reason


@pytest.mark.parametrize("name", QUIET)
def test_nothing_leaks_into_others(records, name):
    for law in LAWS:
        record = records[f"hostile.py:{name}", law]
        assert record.outcome is Outcome.PASSED, record.message
    for law in LAWS:
        assert records["sdpa", law].outcome is Outcome.PASSED
