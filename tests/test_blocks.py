"""Every fenced block of the README and of the pages is run by doctest or by a test named here."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from attnspec.conformance.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "spec").glob("*.md")),
]
GENERATED = ("docs/_build", "docs/results")

FENCE = re.compile(
    r"^(?P<fence>```+|~~~+|:::+)(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.M | re.S
)
RUN = {"{doctest}", "{testsetup}", "{testcleanup}"}
BUILT = {
    *("{api}", "{behaviour}", "{command-line}", "{evidence}", "{eval-rst}", "{figure}"),
    *("{include}", "{laws}", "{mutants}", "{planted}", "{record-fields}", "{toctree}"),
}
"""Directives that hold no code: the build of the pages fails where they are wrong."""

FIRST = (
    "$ attnspec check my_kernels.py:attention --features causal --dtypes float32 --laws MSK-1 -x"
)
KERNEL = "tests/test_readme.py::test_the_page_on_kernels_does_what_it_says"
STUDENT = "tests/conformance/test_check_gpt2.py::test_three_mistakes_are_found_one_after_another"
PROBED = "tests/conformance/test_probe_hostile.py::test_the_page_shows_what_the_probe_finds"
TRIED = {
    ("README.md", "import math"): "tests/test_readme.py::test_the_first_screen_is_true",
    ("README.md", FIRST): "tests/test_readme.py::test_the_first_screen_is_true",
    (
        "README.md",
        "$ python -m nox -s conformance",
    ): "tests/test_readme.py::test_the_run_that_is_shown_is_the_one_that_is_stored",
    (
        "README.md",
        "from attnspec.spec import Feature, Implementation, Profile, Rounding, RoundingLevel",
    ): "tests/test_readme.py::test_the_declaration_is_one",
    (
        "docs/check_kernel.md",
        "from attnspec.conformance.parametrize import parametrize_with_laws",
    ): KERNEL,
    (
        "docs/check_kernel.md",
        '@parametrize_with_laws([my_attention], expected_failures={"default-scale": "issue 17"})',
    ): KERNEL,
    ("docs/check_kernel.md", "from attnspec.conformance.api import check_attention"): KERNEL,
    (
        "docs/check_kernel.md",
        "from attnspec.spec import CausalAlignment, Feature, Implementation, Profile",
    ): KERNEL,
    ("docs/check_kernel.md", '[project.entry-points."attnspec.implementations"]'): KERNEL,
    (
        "docs/check_gpt2.md",
        "def build(config, state_dict):",
    ): "tests/test_readme.py::test_the_page_on_models_shows_a_build",
    ("docs/check_gpt2.md", "$ attnspec check-gpt2 student_gpt2.py:build -x"): STUDENT,
    (
        "docs/check_gpt2.md",
        "first stage that diverges: block 0, attention: scale of the scores",
    ): STUDENT,
    ("docs/check_gpt2.md", "first stage that diverges: block 0, MLP: activation"): STUDENT,
    (
        "docs/check_gpt2.md",
        "positions = torch.arange(1, input_ids.shape[1] + 1) % self.config.n_positions    # wrong",
    ): STUDENT,
    (
        "docs/check_gpt2.md",
        "scores = query @ key.mT / math.sqrt(channels)           # wrong",
    ): STUDENT,
    (
        "docs/check_gpt2.md",
        'inner = F.gelu(self.linear(x, f"{block}.mlp.c_fc"))                        # wrong',
    ): STUDENT,
    ("docs/probe.md", "import torch"): PROBED,
    ("docs/probe.md", "my_kernels.py:attention"): PROBED,
}
"""The test that runs a block, by its page and its first line. Commands without output need none."""

INCLUDED = {
    "docs/examples/adapters.py": "tests/conformance/test_adapters.py",
    "docs/examples/attention.c": "tests/test_examples.py",
    "docs/examples/attention_in_c.py": "tests/test_examples.py",
    "docs/examples/conformance.yml": "tests/test_examples.py",
    "docs/examples/conformance_noxfile.py": "tests/test_examples.py",
    "docs/examples/student_gpt2.py": "tests/conformance/test_check_gpt2.py",
    "docs/examples/two_kernels.py": "docs/how_to/profile.md",
}
"""What runs an included file that is no part of the package."""


class Block(NamedTuple):
    """A fenced block."""

    page: str
    kind: str
    text: str

    @property
    def first(self) -> str:
        return next((line for line in self.text.splitlines() if line.strip()), "")


def fenced(page: str, text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        kind = match["kind"].strip()
        yield Block(page, kind.split()[0] if kind else "", match["text"])


def blocks() -> list[Block]:
    found = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        if not page.startswith(GENERATED):
            found += fenced(page, path.read_text(encoding="utf-8"))
    assert len(found) > 300
    return found


def commands(block: Block) -> list[str]:
    """What is typed: after a dollar sign, or all of it where nothing is."""
    text = block.text.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    return typed or lines


def is_without_output(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line.strip()]
    return all(line.startswith("$ ") for line in lines) or not any(
        line.startswith("$ ") for line in lines
    )


def untried(found: list[Block]) -> list[str]:
    """What is neither run nor listed as run by a test."""
    return [
        f"{each.page}: {each.kind or 'plain'}: {each.first}"
        for each in found
        if each.kind not in RUN | BUILT
        and each.kind != "{literalinclude}"
        and not (each.kind == "console" and is_without_output(each))
        and (each.page, each.first) not in TRIED
    ]


def test_every_block_is_run():
    assert not untried(blocks())


def test_a_block_that_nothing_runs_is_found():
    told = untried(list(fenced("page.md", "```python\n1 / 0\n```\n~~~yaml\na: b\n~~~\n")))
    assert told == ["page.md: python: 1 / 0", "page.md: yaml: a: b"]
    assert untried(list(fenced("page.md", "```console\n$ attnspec list\nsdpa\n```\n")))
    assert not untried(list(fenced("page.md", "```{doctest}\n>>> 1\n1\n```\n")))


def test_no_block_is_listed_that_is_not_there():
    there = {(each.page, each.first) for each in blocks()}
    assert not TRIED.keys() - there


@pytest.mark.parametrize("named", sorted(set(TRIED.values())))
def test_every_test_that_is_listed_exists(named):
    path, _, name = named.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_every_included_file_is_run():
    packages = tuple(f"{each}/" for each in ("spec", "reference", "conformance", "implementations"))
    for path in PAGES:
        for name in re.findall(r"^```\{literalinclude\} (\S+)$", path.read_text(), re.M):
            # a chapter is read from where its page lies
            base = ROOT / "docs" if path.parent == ROOT / "spec" else path.parent
            file = (base / name).resolve().relative_to(ROOT).as_posix()
            if file.startswith(packages):
                continue
            text = (ROOT / INCLUDED[file]).read_text()
            assert Path(file).stem in text or Path(file).name in text, file


def test_restructured_text_holds_no_code_of_its_own():
    for block in blocks():
        if block.kind == "{eval-rst}":
            assert not re.search(r"^\s*\.\. (code|code-block|sourcecode)::|::$", block.text, re.M)


def sessions(path: Path) -> set[str]:
    """The names of the sessions of a noxfile."""
    functions = (each for each in ast.parse(path.read_text()).body)
    return {
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef)
        and any("nox.session" in ast.unparse(one) for one in each.decorator_list)
    }


SESSIONS = sessions(ROOT / "noxfile.py") | sessions(ROOT / "docs/examples/conformance_noxfile.py")
OTHERS = ("cc", "fresh/bin/python", "grep", "pip", "pytest", "python3.11")
"""What is no command of ours; pytest's options are tried by the tests of the routes."""


def understand(command: str) -> None:
    """Read a command as it will be read when it is typed.

    Raises:
        Exception: where an option or an argument is not known.
    """
    words = shlex.split(command, comments=True)
    while words and words[0] in ("python", "-m"):
        words = words[1:]
    if words[0] == "attnspec":
        group = get_command(app)
        if words[1:] == ["--version"]:
            return
        group.commands[words[1]].make_context(words[1], words[2:])
    elif words[0] == "nox":
        options = words[1 : words.index("--")] if "--" in words else words[1:]
        if "-s" in options:
            named = {each for each in options[options.index("-s") + 1 :] if each[0] != "-"}
            assert named <= SESSIONS, named - SESSIONS
        if words[1:3] == ["-s", "conformance"] and "--" in words:
            understand(shlex.join(["attnspec", "check", *words[words.index("--") + 1 :]]))
    else:
        assert words[0] in OTHERS, command


TYPED = sorted({each for block in blocks() if block.kind == "console" for each in commands(block)})


@pytest.mark.parametrize("command", TYPED)
def test_every_command_is_understood(command):
    for part in command.split("&&"):
        understand(part.partition(" | ")[0].strip())


@pytest.mark.parametrize(
    "command",
    ["attnspec chekc sdpa", "attnspec check --effort much", "nox -s poetry", "attnspec check --no"],
)
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((Exception, SystemExit)):
        understand(command)
