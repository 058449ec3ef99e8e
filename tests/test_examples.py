"""The files that the pages show whole: an attention in C, a workflow of GitHub, a noxfile."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from attnspec.conformance.api import check_attention
from attnspec.conformance.cli import app
from attnspec.conformance.record import CONFORMING, Outcome
from attnspec.conformance.targets import resolve

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
FEW = (
    "output-equals-the-definition",
    "a-causal-row-attends-its-prefix",
    "shared-heads-equal-repeated-heads",
    "lengths-zero-and-one",
    "memory-layout-means-nothing",
    "a-visible-nan-stays-visible",
    "TEN-9",
)


def in_c(folder, name, source, laws=FEW):
    """The records of an attention in C, built as the page says."""
    folder.mkdir()
    (folder / "attention.c").write_text(source)
    build = "cc -O2 -shared -fPIC -o libattention.so attention.c -lm"
    page = (EXAMPLES.parent / "api" / "other_languages.md").read_text(encoding="utf-8")
    assert f"$ {build}\n" in page
    strict = [*shlex.split(build), "-Wall", "-Wextra", "-Werror"]
    subprocess.run(strict, cwd=folder, check=True)
    module = folder / f"{name}.py"
    shutil.copy(EXAMPLES / "attention_in_c.py", module)
    (judged,) = resolve(f"{module}:IN_C")
    return check_attention(judged.subject.implementation, effort="smoke", laws=laws)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler of C")
class TestInC:
    SOURCE = (EXAMPLES / "attention.c").read_text(encoding="utf-8")

    def test_it_keeps_the_laws(self, tmp_path):
        found = in_c(tmp_path / "right", "attention_in_c_right", self.SOURCE)
        assert {each.outcome for each in found} <= CONFORMING, [each.message for each in found]
        assert sum(each.outcome is Outcome.PASSED for each in found) >= 6

    @pytest.mark.parametrize(
        ("right", "wrong", "law"),
        [
            ("? i + 1 :", "? i + 2 :", "a-causal-row-attends-its-prefix"),
            ("c * v_stride[3]", "c", "memory-layout-means-nothing"),
        ],
    )
    def test_a_mistake_in_it_is_found(self, tmp_path, right, wrong, law):
        assert self.SOURCE.count(right) == 1
        source = self.SOURCE.replace(right, wrong)
        name = re.sub(r"\W", "_", f"attention_in_c_without_{law}")
        (found,) = in_c(tmp_path / "wrong", name, source, [law])
        assert found.outcome is Outcome.FAILED


def workflow():
    return yaml.safe_load((EXAMPLES / "conformance.yml").read_text(encoding="utf-8"))


def test_the_workflow_has_the_form_that_github_reads():
    told = workflow()
    # YAML 1.1, and so this reader, takes the bare word `on` for true
    assert told.keys() == {"name", True, "env", "jobs"}
    assert told[True].keys() <= {"push", "pull_request", "schedule"}
    for job in told["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_commands_of_the_workflow_are_understood():
    commands = 0
    for step in workflow()["jobs"]["attention"]["steps"]:
        script = re.sub(r"\$\{\{.*?\}\}", "schedule", step.get("run", ""))
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for line in script.replace("\\\n", " ").splitlines():
            if line.startswith("attnspec "):
                words = shlex.split(line.replace("$effort", "thorough"))
                get_command(app).commands[words[1]].make_context(words[1], words[2:])
                commands += 1
    assert commands == 1


def test_the_noxfile_lists_its_sessions():
    nox = [sys.executable, "-m", "nox", "-f", str(EXAMPLES / "conformance_noxfile.py"), "-l"]
    told = subprocess.run(nox, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^([*-]) (\w+) -> \w", told, re.M) == [
        ("*", "conformance"),
        ("-", "compare"),
    ]
