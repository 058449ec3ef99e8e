"""The README and the first pages are correct: code, commands and their output."""

import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from attnspec.conformance import api
from attnspec.conformance.api import check_attention
from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.declare_model import is_build
from attnspec.conformance.runner.targets import ENTRY_POINTS
from attnspec.spec import Case, Implementation

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import readme  # noqa: E402  (found by the line above)

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S)


def ran(*sources: str, **names):
    """Run sources one after another, and return the names that they define."""
    for source in sources:
        exec(compile(source, "page", "exec"), names)
    return names


def pattern(text: str) -> re.Pattern[str]:
    """Return a pattern for a text in which a line of three dots is any number of lines."""
    lines = (".*" if line.strip() == "…" else re.escape(line.rstrip()) for line in text.split("\n"))
    return re.compile(r"\s*".join(lines), re.DOTALL)


def test_the_first_screen_is_correct(tmp_path):
    kernel, screen = blocks(README, "python")[0], blocks(README, "console")[0]
    command, _, output = screen.partition("\n")
    (tmp_path / "my_kernels.py").write_text(kernel)
    words = shlex.split(command.removeprefix("$ attnspec "))
    run = subprocess.run(
        [sys.executable, "-m", "attnspec.conformance.cli.app", *words, "-n", "1"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200", "GITHUB_STEP_SUMMARY": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    printed = "\n".join(line.rstrip() for line in run.stdout.splitlines())
    assert pattern(output).fullmatch(printed), printed


def test_the_site_shows_the_kernel_of_the_readme_and_a_right_one():
    kernel = (DOCS / "examples" / "my_kernels.py").read_text(encoding="utf-8")
    right = (DOCS / "examples" / "right_kernels.py").read_text(encoding="utf-8")
    assert kernel == blocks(README, "python")[0]
    assert right == kernel.replace("tril(-1)", "tril()") != kernel


def test_only_three_dots_match_any_lines():
    assert pattern("…\na\n…\nb").fullmatch("x\ny\na\nb")
    assert pattern("a\n…").fullmatch("a\n")
    assert not pattern("…\na\nb").fullmatch("x\na\nc\nb")


def test_the_readme_shows_the_stored_run():
    stored = read_report(readme.STORED)
    written = readme.written(README, stored.records)
    assert written == README, "run python docs/readme.py"
    assert not {record.outcome for record in stored.records} & {Outcome.FAILED, Outcome.ERRORED}


def test_a_readme_without_a_run_is_refused():
    with pytest.raises(ValueError, match="shows 0 runs"):
        readme.written("# attnspec\n", read_report(readme.STORED).records)


def test_the_declaration_is_an_implementation():
    kernel, declaration = blocks(README, "python")
    mine = ran(kernel, declaration)["MINE"]
    assert isinstance(mine, Implementation)
    law = "a-causal-row-attends-its-prefix"
    (record,) = check_attention(mine, effort="smoke", laws=[law])
    assert record.outcome is Outcome.FAILED


def test_the_code_of_the_page_on_kernels_runs(monkeypatch):
    """Run it with a few laws, and an attention that breaks one of them as the page says."""

    def my_attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
        if scale is None:
            scale = round((query.shape[-1] or 1) ** -0.5, 2)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )

    few = {"laws": ["ATT-11", "TEN-1"], "dtypes": [torch.float32]}
    monkeypatch.setattr(api, "check_attention", functools.partial(api.check_attention, **few))
    marked = api.parametrize_with_laws
    monkeypatch.setattr(api, "parametrize_with_laws", functools.partial(marked, **few))
    page = (DOCS / "check_kernel.md").read_text(encoding="utf-8")
    decorated, expecting, called, declared = blocks(page, "python")
    names = ran(
        decorated,
        f"{expecting}def expected(attention, law): law(attention)",
        called,
        declared,
        my_attention=my_attention,
    )
    outcomes = {record.law: record.outcome for record in names["records"]}
    assert outcomes["default-scale"] is Outcome.FAILED
    assert Outcome.PASSED in outcomes.values()
    for test, raised in ((names["test_my_attention"], AssertionError), (names["expected"], None)):
        (mark,) = test.pytestmark
        (item,) = (item for item in mark.args[1] if "default-scale" in item.id)
        with pytest.raises(raised or pytest.xfail.Exception):
            test(*item.values)
    assert names["MINE"].refuses(Case(d_head=3)) == "d_head must be a multiple of 8"
    (group,) = blocks(page, "toml")
    registered = tomllib.loads(group)["project"]["entry-points"]
    assert registered == {ENTRY_POINTS: {"mine": "my_kernels:MINE"}}


def test_the_page_on_models_shows_a_build():
    (source,) = blocks((DOCS / "check_gpt2.md").read_text(encoding="utf-8"), "python")
    assert is_build(ran(source)["build"])
