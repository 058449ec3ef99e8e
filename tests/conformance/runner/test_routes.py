"""Four routes to the same laws: the command, pytest's options, a decorator and a function."""

import os
import subprocess
import sys

import pytest

from attnspec.conformance.api import check_attention, parametrize_with_laws
from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.record import Outcome

KERNEL = """
import torch


def attention(query, key, value, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None and query.shape[-1] else scale or 1.0
    scores = (query.double() * scale) @ key.double().mT
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~visible, -torch.inf)
    if not key.shape[2]:
        return torch.zeros(*query.shape[:3], value.shape[-1], dtype=value.dtype)
    return (scores.softmax(-1) @ value.double()).to(value.dtype)
"""

DECORATED = """
from attnspec.conformance.api import parametrize_with_laws
from kernel_of_routes import attention


@parametrize_with_laws(
    [attention], dtypes=None, effort="smoke", laws=["MSK-1", "ATT-2", "ATT-22"],
    expected_failures={"finite-later-keys-change-nothing": "shows one key of the future"},
)
def test_laws(attention, law):
    law(attention)
"""

LAWS = ("MSK-1", "ATT-2", "ATT-22")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernel_of_routes.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(folder, *command):
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def told(records):
    return {each.law: each.outcome for each in records}


@pytest.mark.rotating(parts=3)
def test_all_routes_agree(folder):
    from kernel_of_routes import attention

    called = told(check_attention(attention, effort="smoke", laws=LAWS))
    assert {Outcome.PASSED, Outcome.FAILED} <= set(called.values())
    target, options = "kernel_of_routes:attention", [f"--laws={each}" for each in LAWS]
    commanded = run(
        folder, "attnspec.conformance.cli.app", "check", target, "--effort=smoke", "-n", "1",
        *options, "--report", str(folder / "command.jsonl"),
    )  # fmt: skip
    assert commanded.returncode == 1, commanded.stdout + commanded.stderr
    assert told(read_report(folder / "command.jsonl").records) == called
    tested = run(
        folder, "pytest", "--pyargs", "attnspec.conformance", f"--implementation={target}",
        "--effort=smoke", *options, f"--attnspec-report={folder / 'pytest.jsonl'}", "-q",
        "-p", "no:cacheprovider", "--noconftest",
    )  # fmt: skip
    assert tested.returncode == 1, tested.stdout + tested.stderr
    assert told(read_report(folder / "pytest.jsonl").records) == called
    (folder / "test_decorated.py").write_text(DECORATED)
    decorated = run(folder, "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_decorated.py")
    words = {
        Outcome.PASSED: "PASSED",
        Outcome.FAILED: "FAILED",
        Outcome.NOT_CLAIMED: "SKIPPED",
    }
    for law, outcome in called.items():
        word = "XFAIL" if law == "finite-later-keys-change-nothing" else words[outcome]
        lines = [each for each in decorated.stdout.splitlines() if f"/{law}/" in each]
        if word != "SKIPPED":
            assert any(each.startswith(word) for each in lines), (law, outcome, decorated.stdout)


def test_functions_of_one_name_are_told_apart():
    def attention(query, key, value):
        return value

    mark = parametrize_with_laws([attention, attention], laws=["ATT-2"])
    names = [each.id for each in mark.args[1]]
    assert len(set(names)) == len(names) > 1


def test_a_failure_that_is_expected_of_no_law_is_named():
    def attention(query, key, value):
        return value

    with pytest.raises(ValueError, match="expected failures of laws that do not run: poetry"):
        parametrize_with_laws([attention], laws=["ATT-2"], expected_failures={"poetry": "?"})


@pytest.mark.rotating(parts=6)
def test_a_package_registers_implementations_by_an_entry_point(tmp_path):
    """As pip leaves it: a module, and metadata that names it."""
    (tmp_path / "kernels_of_a_package.py").write_text(
        KERNEL.replace("tril(1)", "tril()")
        + "\nfrom attnspec.spec import Feature, Implementation\n"
        "MINE = Implementation(name='mine', attention=attention,"
        " features=frozenset({Feature.CAUSAL}))\n"
    )
    metadata = tmp_path / "kernels_of_a_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[attnspec.implementations]\nfrom_a_package = kernels_of_a_package:MINE\n"
    )
    listed = run(tmp_path, "attnspec.conformance.cli.app", "list")
    assert "from_a_package" in listed.stdout
    checked = run(
        tmp_path, "attnspec.conformance.cli.app", "check", "from_a_package", "--effort=smoke",
        "--laws=MSK-1", "-n", "1",
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_snippets_of_functions_that_are_passed_as_objects_run(folder):
    from kernel_of_routes import attention

    records = check_attention(attention, effort="smoke", laws=["MSK-1"])
    codes = [record.snippet for record in records if record.outcome is Outcome.FAILED]
    assert codes
    for code in codes:
        names = {}
        exec(code, names)
        assert names["attention"] is attention
        assert names["out"].shape[-1] == names["value"].shape[-1]


@pytest.mark.rotating(parts=3)
def test_a_failing_test_of_the_decorator_prints_a_snippet_that_runs(folder):
    source = DECORATED.replace(
        '"finite-later-keys-change-nothing"', '"a-causal-row-attends-its-prefix"'
    )
    source = source.replace("from kernel_of_routes import attention", KERNEL)
    (folder / "test_decorated.py").write_text(source)
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_decorated.py")
    _, _, rest = done.stdout.partition("Reproduce:")
    lines = [line.removeprefix("E").strip() for line in rest.splitlines()[1:]]
    code = "\n".join(lines[: next(i for i, line in enumerate(lines) if "print(" in line) + 1])
    again = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert again.returncode == 0, (code, again.stderr)
    assert "tensor(" in again.stdout
