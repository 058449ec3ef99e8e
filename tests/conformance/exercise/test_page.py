"""The page of the exercise: its output is what the command prints, and it has every step."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.conformance.exercise.steps import ENGLISH, STEPS

EXERCISE = Path(__file__).parents[3] / "docs" / "exercise"
PAGE = (EXERCISE / "index.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S)
EMPTY, GELU, ENGLISH_TEXT, _ = BLOCKS


def of_four_steps():
    """Return a file with the first five functions of our solution, the last one wrong."""
    files = ("parameters", "embedding", "norm", "linear_map")
    source = "".join((EXERCISE / "solution" / f"{name}.py").read_text() for name in files)
    return f"{source}\n\ndef gelu(x):\n    return F.gelu(x)\n"


@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("block", [EMPTY, GELU, ENGLISH_TEXT], ids=["empty", "gelu", "english"])
def test_the_page_shows_what_the_command_prints(tmp_path, block):
    source = "solution" if block == ENGLISH_TEXT else "gpt2"
    shutil.copytree(EXERCISE / source, tmp_path / "gpt2")
    (tmp_path / "my_gpt2.py").write_text(of_four_steps())
    command, _, output = block.partition("\n")
    run = subprocess.run(
        [sys.executable, "-m", "attnspec", *shlex.split(command)[2:]],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == int(block != ENGLISH_TEXT), run.stderr
    printed = re.sub(r"\s+", " ", run.stdout)
    parts = [re.escape(" ".join(part.split())) for part in output.split("…")]
    assert re.search(r".*".join(parts), printed, re.S), run.stdout


def test_the_page_has_every_step():
    for number, step in enumerate(STEPS, 1):
        assert f"\n## {number}. " in PAGE
        if step.function != ENGLISH:
            assert f"`{step.signature}`" in PAGE
