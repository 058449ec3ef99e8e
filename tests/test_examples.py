"""The files that the pages show: an attention in C, a GitHub workflow, a noxfile."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from attnspec import __version__
from attnspec.conformance.api import check_attention
from attnspec.conformance.cli.app import app
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.conformance.runner.targets import resolve

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
FEW = (
    "output-equals-the-definition",
    "a-causal-row-attends-its-prefix",
    "shared-heads-equal-repeated-heads",
    "lengths-zero-and-one",
    "memory-layout-changes-nothing",
    "a-visible-nan-stays-visible",
    "TEN-9",
)


def in_c(folder, name, source, laws=FEW):
    """Build an attention in C as the page says, and return its records."""
    folder.mkdir()
    (folder / "attention.c").write_text(source)
    build = "cc -O2 -shared -fPIC -o libattention.so attention.c -lm"
    page = (EXAMPLES.parent / "api" / "other_languages.md").read_text(encoding="utf-8")
    assert f"$ {build}\n" in page
    strict = [*shlex.split(build), "-Wall", "-Wextra", "-Werror"]
    subprocess.run(strict, cwd=folder, check=True)
    module = folder / f"{name}.py"
    shutil.copy(EXAMPLES / "attention_in_c.py", module)
    (target,) = resolve(f"{module}:IN_C")
    return check_attention(target.subject.implementation, effort="smoke", laws=laws)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler of C")
class TestInC:
    SOURCE = (EXAMPLES / "attention.c").read_text(encoding="utf-8")

    def test_it_passes_the_laws(self, tmp_path):
        records = in_c(tmp_path / "right", "attention_in_c_right", self.SOURCE)
        messages = [record.message for record in records]
        assert {record.outcome for record in records} <= CONFORMING, messages
        assert sum(record.outcome is Outcome.PASSED for record in records) >= 6

    @pytest.mark.parametrize(
        ("right", "wrong", "law"),
        [
            ("? i + 1 :", "? i + 2 :", "a-causal-row-attends-its-prefix"),
            ("c * v_stride[3]", "c", "memory-layout-changes-nothing"),
        ],
    )
    def test_a_mutant_of_it_fails(self, tmp_path, right, wrong, law):
        assert self.SOURCE.count(right) == 1
        source = self.SOURCE.replace(right, wrong)
        name = re.sub(r"\W", "_", f"attention_in_c_without_{law}")
        (record,) = in_c(tmp_path / "wrong", name, source, [law])
        assert record.outcome is Outcome.FAILED


def workflow():
    return yaml.safe_load((EXAMPLES / "conformance.yml").read_text(encoding="utf-8"))


def test_the_workflow_has_the_form_of_github_actions():
    parsed = workflow()
    # YAML 1.1, and so this parser, reads the bare word `on` as true
    assert parsed.keys() == {"name", True, "env", "jobs"}
    assert parsed[True].keys() <= {"push", "pull_request", "schedule"}
    for job in parsed["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_the_workflow_pins_this_version():
    assert workflow()["env"]["ATTNSPEC"].endswith(f".git@v{__version__}")


def test_the_citation_names_this_version():
    citation = yaml.safe_load((EXAMPLES.parents[1] / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_commands_of_the_workflow_are_valid():
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
    listing = subprocess.run(nox, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^([*-]) (\w+) -> \w", listing, re.M) == [
        ("*", "conformance"),
        ("-", "compare"),
    ]
