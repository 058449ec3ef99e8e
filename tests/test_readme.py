"""What the README and the first pages show is what happens: code, commands and what they print."""

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

from attnspec.conformance import api, parametrize
from attnspec.conformance.api import check_attention
from attnspec.conformance.model_claims import is_build
from attnspec.conformance.record import Outcome
from attnspec.conformance.report_file import read_report
from attnspec.conformance.targets import ENTRY_POINTS
from attnspec.spec import Case, Implementation

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import readme  # noqa: E402  (found by the line above)

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S)


def ran(*sources: str, **names):
    """The names that are there after sources were run, one after another."""
    for source in sources:
        exec(compile(source, "page", "exec"), names)
    return names


def like(shown: str) -> re.Pattern[str]:
    """What a text stands for in which a line of three dots is any number of lines."""
    lines = (
        ".*" if line.strip() == "…" else re.escape(line.rstrip()) for line in shown.split("\n")
    )
    return re.compile(r"\s*".join(lines), re.DOTALL)


def test_the_first_screen_is_true(tmp_path):
    kernel, screen = blocks(README, "python")[0], blocks(README, "console")[0]
    command, _, shown = screen.partition("\n")
    (tmp_path / "my_kernels.py").write_text(kernel)
    words = shlex.split(command.removeprefix("$ attnspec "))
    run = subprocess.run(
        [sys.executable, "-m", "attnspec.conformance.cli", *words, "-n", "1"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200", "GITHUB_STEP_SUMMARY": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    printed = "\n".join(line.rstrip() for line in run.stdout.splitlines())
    assert like(shown).fullmatch(printed), printed


def test_three_dots_stand_for_lines_and_nothing_else_for_anything():
    assert like("…\na\n…\nb").fullmatch("x\ny\na\nb")
    assert like("a\n…").fullmatch("a\n")
    assert not like("…\na\nb").fullmatch("x\na\nc\nb")


def test_the_run_that_is_shown_is_the_one_that_is_stored():
    stored = read_report(readme.STORED)
    written = readme.written(README, stored.records)
    assert written == README, "run python docs/readme.py"
    assert not {each.outcome for each in stored.records} & {Outcome.FAILED, Outcome.ERRORED}


def test_a_readme_that_shows_no_run_is_refused():
    with pytest.raises(ValueError, match="shows 0 runs"):
        readme.written("# attnspec\n", read_report(readme.STORED).records)


def test_the_declaration_is_one():
    kernel, declaration = blocks(README, "python")
    mine = ran(kernel, declaration)["MINE"]
    assert isinstance(mine, Implementation)
    law = "a-causal-row-attends-its-prefix"
    (record,) = check_attention(mine, effort="smoke", laws=[law])
    assert record.outcome is Outcome.FAILED


def test_the_page_on_kernels_does_what_it_says(monkeypatch):
    """With a few laws, and an attention that breaks one of them as the page says."""

    def my_attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
        if scale is None:
            scale = round((query.shape[-1] or 1) ** -0.5, 2)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )

    few = {"laws": ["ATT-11", "TEN-1"], "dtypes": [torch.float32]}
    monkeypatch.setattr(api, "check_attention", functools.partial(api.check_attention, **few))
    marked = parametrize.parametrize_with_laws
    monkeypatch.setattr(parametrize, "parametrize_with_laws", functools.partial(marked, **few))
    page = (DOCS / "check_kernel.md").read_text(encoding="utf-8")
    decorated, expecting, called, declared = blocks(page, "python")
    names = ran(
        decorated,
        f"{expecting}def expected(attention, law): law(attention)",
        called,
        declared,
        my_attention=my_attention,
    )
    outcomes = {each.law: each.outcome for each in names["records"]}
    assert outcomes["default-scale"] is Outcome.FAILED
    assert Outcome.PASSED in outcomes.values()
    for test, raised in ((names["test_my_attention"], AssertionError), (names["expected"], None)):
        (mark,) = test.pytestmark
        (item,) = (each for each in mark.args[1] if "default-scale" in each.id)
        with pytest.raises(raised or pytest.xfail.Exception):
            test(*item.values)
    assert names["MINE"].refuses(Case(d_head=3)) == "d_head must be a multiple of 8"
    (group,) = blocks(page, "toml")
    registered = tomllib.loads(group)["project"]["entry-points"]
    assert registered == {ENTRY_POINTS: {"mine": "my_kernels:MINE"}}


def test_the_page_on_models_shows_a_build():
    (source,) = blocks((DOCS / "check_gpt2.md").read_text(encoding="utf-8"), "python")
    assert is_build(ran(source)["build"])
