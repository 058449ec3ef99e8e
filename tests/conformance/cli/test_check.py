"""The command as its user meets it: exit status, message, reports."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.record import Outcome

KERNEL = """
import math
import torch


def attention(query, key, value, is_causal=False, scale=None):
    scale = 1 / {scale} if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril({diagonal})
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, {axis})
    return (torch.where(scores == -torch.inf, 0.0, weights) @ value){merged}
"""
RIGHT = {"scale": "math.sqrt(query.shape[-1])", "diagonal": "0", "axis": "-1", "merged": ""}


def run(*arguments, cwd):
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli.app", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def check(folder, *arguments, **mistake):
    (folder / "my_kernels.py").write_text(KERNEL.format(**RIGHT | mistake))
    target = ["my_kernels.py:attention", "--dtypes", "float32", "--effort", "smoke", "-n", "1"]
    return run("check", *target, *arguments, cwd=folder)


def test_a_right_function_conforms_and_the_reports_say_so(tmp_path):
    reports = ["--report", "report.jsonl", "--junit", "junit.xml"]
    done = check(tmp_path, *reports, "--laws", "ATT-2", "--laws", "MSK-9")
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(tmp_path / "report.jsonl")
    assert report.run.is_complete
    outcomes = {record.law: record.outcome for record in report.records}
    assert outcomes == {
        "weights-sum-to-one": Outcome.PASSED,
        "masks-broadcast": Outcome.NOT_CLAIMED,
    }
    assert "my_kernels.py:attention: conforming in all of 1 laws (1 not claimed)" in done.stdout
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("2", "1", "0")
    (carried, _) = (each.get("value") for each in suite.iter("property"))
    assert json.loads(carried)["law"] in outcomes


WIDE = """


def wide(value):
    if value.shape[2] == 43:
        value = {factor} * value
    return value
"""


def test_a_mistake_at_given_sizes_is_found_and_lines_that_no_call_reached_are_named(tmp_path):
    def tried(keys, factor):
        sizes = ["--laws", "NUM-20", "--sizes", f"heads=2,keys={keys},d_head=41"]
        merged = " + 0 * wide(value).sum()" + WIDE.format(factor=factor)
        return check(tmp_path, *sizes, merged=merged)

    done = tried(keys=42, factor="math.inf")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no call reached 1 place in its code" in done.stdout
    assert "value = math.inf * value, under if value.shape[2] == 43:" in done.stdout
    done = tried(keys=43, factor="math.inf")
    assert done.returncode == 1, done.stdout + done.stderr
    assert " keys=43 " in done.stdout
    done = tried(keys=43, factor="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "heads=2,kv_heads=2,keys=43,d_head=41,d_value=41: 24 calls" in done.stdout
    assert "no call reached" not in done.stdout


@pytest.mark.rotating(parts=3)
def test_a_warning_is_shown_everywhere_and_leaves_the_status_at_zero(tmp_path):
    (tmp_path / "warned.py").write_text(
        "from attnspec.conformance import mutants\n"
        'KERNEL = mutants.load()["own-scale-in-bfloat16-in-long-calls"].subject\n'
    )
    law = "the-errors-of-the-output-look-random"
    arguments = ["--laws", law, "--laws", "NUM-3", "--seed", "5", "--effort", "smoke", "-n", "1"]
    reports = ["--report", "report.jsonl", "--junit", "junit.xml"]
    done = run("check", "warned.py:KERNEL", *arguments, *reports, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(tmp_path / "report.jsonl")
    records = {record.law: record for record in report.records}
    assert records[law].outcome is Outcome.QUALITY_WARNING
    assert records["every-output-is-within-its-bound"].seed == 5
    assert f"quality warning: {records[law].subject}, {law}: {records[law].reason}" in done.stdout
    assert "repeat them with --seed 5" in done.stdout
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["quality warning"] == records[law].reason


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("mistake", "clause"),
    [
        ({"diagonal": "-1"}, "MSK-1"),
        ({"scale": "query.shape[-1]"}, "ATT-11"),
        ({"axis": "-2"}, "ATT-2"),
        ({"merged": ".flip(1)"}, "HED-1"),
    ],
    ids=["strict causal mask", "scale 1/d", "softmax over the wrong axis", "heads in wrong order"],
)
def test_a_mistake_is_named_by_its_clause_on_a_small_case(tmp_path, mistake, clause):
    done = check(tmp_path, "--laws", clause, "-x", **mistake)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n{clause} " in done.stdout
    assert "MUST" in done.stdout
    (case, *_) = (line for line in done.stdout.splitlines() if line.startswith("Case"))
    sizes = dict(word.split("=") for word in case.split()[1:])
    assert int(sizes["queries"]) * int(sizes["keys"]) <= 9
    assert "import my_kernels; attention = my_kernels.attention" in done.stdout
    assert "expected" in done.stdout


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "no_such_backend"], "no_such_backend: no implementation of this name"),
        (["check", "no_such_module:f"], "no_such_module"),
        (["check", "eager", "--dtypes", "float7"], "no dtype 'float7'"),
        (["check", "eager", "--profile", "rounding=none"], "no rounding 'none'"),
        (["check", "eager", "--laws", "XYZ"], "no law or clause matches 'XYZ'"),
        (["check", "eager", "--report", "no/such/folder/r.jsonl"], "there is no folder"),
        (["check", "eager", "--weights", "no/such/weights"], "no/such/weights"),
        (["check", "eager", "--effort", "heroic"], "heroic"),
        (["explain", "ATT-999"], "no clause 'ATT-999'"),
        (["explain", "XYZ-1"], "there are ACT, ADD, ATT"),
    ],
)
def test_what_cannot_be_understood_is_one_error_that_names_it(arguments, told):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_the_help_begins_with_what_is_for_everybody_and_teaches_by_example():
    told = CliRunner().invoke(app, ["--help"]).output
    listed = [line.split()[0] for line in told.partition("Commands:")[2].splitlines() if line]
    assert listed[:3] == ["check", "check-gpt2", "check-model"]
    assert "…" not in told
    assert "..." not in told.partition("Commands:")[2]
    for command in listed:
        words = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
        assert f"For example, attnspec {command}" in words, command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there_for_every_shell(shell, monkeypatch):
    monkeypatch.setenv("_ATTNSPEC_COMPLETE", f"source_{shell}")
    told = CliRunner().invoke(app, [], prog_name="attnspec")
    assert told.exit_code == 0
    assert "_ATTNSPEC_COMPLETE" in told.output or "complete" in told.output


def test_a_clause_can_be_read_and_everything_listed():
    told = CliRunner().invoke(app, ["explain", "att-2"]).output
    assert told.startswith("ATT-2 Weights sum to one (chapter attention, since 0.1.0)\n")
    listed = CliRunner().invoke(app, ["list"]).output
    assert "sdpa_math" in listed
    assert "weights-sum-to-one" in listed


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize(
    "arguments",
    [("explain", "ATT-4"), ("check", "eager", "--laws", "ATT-2", "--effort", "smoke", "-n", "1")],
    ids=lambda arguments: arguments[0],
)
def test_what_prints_does_not_import_torch(arguments, tmp_path):
    program = (
        "import sys; from attnspec.conformance.cli.app import app\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-P", "-c", program, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rotating(parts=4)
def test_a_worker_that_dies_is_reported_and_the_others_are_not_lost(tmp_path):
    (tmp_path / "dying.py").write_text(
        "import os\n"
        "import torch\n"
        "def attention(query, key, value, scale=None):\n"
        "    if query.shape[-2] == 0:\n"
        "        os._exit(1)\n"
        "    return torch.nn.functional.scaled_dot_product_attention(\n"
        "        query, key, value, scale=scale)\n"
    )
    arguments = ["--laws", "ATT-9", "--laws", "ATT-16", "--report", "r.jsonl"]
    target = ["dying.py:attention", "--dtypes", "float32", "--effort", "smoke", "-n", "1"]
    done = run("check", *target, *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    report = read_report(tmp_path / "r.jsonl")
    assert report.run.remarks[0].startswith("dying.py:attention is judged under the ")
    outcomes = {record.law: record.outcome for record in report.records}
    assert outcomes["lengths-zero-and-one"] is Outcome.ERRORED
    assert outcomes["queries-are-independent"] is Outcome.PASSED


@pytest.mark.rotating(parts=4)
def test_a_mistake_of_attnspec_has_an_exit_status_of_its_own(tmp_path):
    (tmp_path / "spoiling.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "from attnspec.conformance import laws\n"
        "def wrong(subject, case):\n"
        '    """ATT-2: a law with a mistake."""\n'
        "    raise KeyError('mistake of the law')\n"
        "object.__setattr__(laws.load()['weights-sum-to-one'], 'check', wrong)\n"
        "def attention(query, key, value, scale=None):\n"
        "    return scaled_dot_product_attention(query, key, value, scale=scale)\n"
    )
    arguments = ["--laws", "ATT-2,ATT-16", "--report", "r.jsonl"]
    target = ["spoiling.py:attention", "--dtypes", "float32", "--effort", "smoke", "-n", "1"]
    done = run("check", *target, *arguments, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not decided (1 internal error): attnspec itself failed in 1 law" in done.stdout
    assert "Internal error of attnspec, not of spoiling.py:attention: ATT-2" in done.stdout
    assert "please report it" in done.stdout
    records = {record.law: record for record in read_report(tmp_path / "r.jsonl").records}
    assert records["weights-sum-to-one"].outcome is Outcome.INTERNAL_ERROR
    assert "Traceback" in records["weights-sum-to-one"].message
    assert records["queries-are-independent"].outcome is Outcome.PASSED


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ((), "NOT conforming: "),
        (("-x",), "NOT conforming: "),
        (("--verbose",), "NOT conforming: "),
        ((), "NOT conforming: its first call fails"),
        ((), "conforming in all"),
    ],
    ids=["plain", "stopped", "verbose", "first call", "right"],
)
def test_one_empty_line_stands_before_the_verdict(tmp_path, arguments, verdict):
    mistake = {"scale": "query.shape[-1]"} if verdict == "NOT conforming: " else {}
    mistake = {"merged": ", 1"} if "first call" in verdict else mistake
    done = check(tmp_path, "--laws", "ATT-11", *arguments, **mistake)
    lines = done.stdout.splitlines()
    (place,) = (number for number, line in enumerate(lines) if f": {verdict}" in line)
    assert lines[place - 1] == ""
    assert place == 1 or lines[place - 2] != ""
