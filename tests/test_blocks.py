"""Every fenced block of the README and of the pages is run by doctest or by a test named here."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from attnspec.conformance.cli.app import app

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
    "{glossary}",
    *("{clause-index}", "{comparison}", "{include}", "{laws}", "{mutants}", "{planted}"),
    *(
        "{interactive-attention}",
        "{libraries}",
        "{measured}",
        "{printed}",
        "{record-fields}",
        "{released}",
    ),
    *("{reports}", "{toctree}", "{tokenizer_counts}", "{tokenizer_pieces}"),
}
"""Directives without code: the build of the pages fails if they are wrong."""

FIRST = (
    "$ attnspec check my_kernels.py:attention --features causal --dtypes float32 "
    "--laws a-causal-row-attends-its-prefix"
)
KERNEL = "tests/test_readme.py::test_the_code_of_the_page_on_kernels_runs"
GIVEN = (
    "tests/conformance/cli/test_check.py"
    "::test_a_mistake_at_given_sizes_is_found_and_lines_that_no_call_reached_are_named"
)
STUDENT = (
    "tests/conformance/cli/test_check_gpt2.py::test_three_mistakes_are_found_one_after_another"
)
PROBED = "tests/conformance/probe/test_hostile.py::test_the_page_shows_the_findings"
NEIGHBOURS = (
    "tests/conformance/diagnosis/test_smaller.py"
    "::test_a_size_of_one_tile_is_compared_with_its_neighbours"
)
EXERCISE = "tests/conformance/exercise/test_page.py::test_the_page_shows_what_the_command_prints"
FLEX = "tests/implementations/test_findings_of_libraries.py::test_two_indices_give_a_wrong_result"
EAGER_OF_TRANSFORMERS = (
    "tests/implementations/test_findings_of_libraries.py::test_a_hidden_row_is_nan_in_float16"
)
FLEX_OF_TRANSFORMERS = (
    "tests/implementations/test_findings_of_libraries.py::test_a_float_mask_gives_nan"
)
TRITON = (
    "tests/implementations/test_triton_flash.py::test_the_suite_finds_bugs_planted_in_the_kernels"
)
TESTED = {
    (
        "docs/findings/triton_interpreter.md",
        "$ TRITON_INTERPRET=1 python docs/examples/triton_bfloat16.py",
    ): TRITON,
    ("docs/how_to/triton.md", "$ python -m pip install triton"): TRITON,
    (
        "docs/how_to/triton.md",
        "-            visible = visible & (columns[None, :] <= rows[:, None])",
    ): TRITON,
    (
        "docs/how_to/triton.md",
        "$ TRITON_INTERPRET=1 attnspec check my_flash.py:IMPLEMENTATION --effort smoke "
        "--laws ATT-1,MSK-1",
    ): TRITON,
    ("docs/how_to/triton.md", "-        context = context * rescale[:, None]"): TRITON,
    ("docs/findings/flex_attention.md", "import sys"): FLEX,
    ("docs/findings/flex_attention.md", "import torch"): FLEX,
    (
        "docs/findings/flex_attention.md",
        "for (int64_t x1 = 0; x1 < 3; x1 += 1)                    // keys",
    ): FLEX,
    (
        "docs/findings/transformers_eager.md",
        "from types import SimpleNamespace",
    ): EAGER_OF_TRANSFORMERS,
    ("docs/findings/transformers_flex_attention.md", "import sys"): FLEX_OF_TRANSFORMERS,
    ("docs/findings/transformers_flex_attention.md", "import torch"): FLEX_OF_TRANSFORMERS,
    (
        "docs/how_to/adapter.md",
        "from flash_attn import flash_attn_func",
    ): "tests/implementations/adapters/test_flash_attn_func.py::test_a_correct_kernel_passes",
    (
        "docs/how_to/hub.md",
        "from kernels import get_kernel",
    ): "tests/conformance/runner/test_hub.py::test_the_kernel_is_asked_for_at_its_commit",
    (
        "docs/how_to/hub.md",
        "$ LOCAL_KERNELS=me/plain-attention=path/to/folder attnspec check "
        "hub:me/plain-attention:attention \\",
    ): "tests/conformance/runner/test_hub.py::test_it_conforms",
    ("docs/exercise/index.md", "$ attnspec check-gpt2 gpt2 --exercise"): EXERCISE,
    ("docs/exercise/index.md", "$ attnspec check-gpt2 my_gpt2.py --exercise"): EXERCISE,
    ("README.md", "import math"): "tests/test_readme.py::test_the_first_screen_is_correct",
    ("README.md", FIRST): "tests/test_readme.py::test_the_first_screen_is_correct",
    (
        "README.md",
        "$ python -m nox -s conformance",
    ): "tests/test_readme.py::test_the_readme_shows_the_stored_run",
    (
        "README.md",
        "from attnspec.spec import Feature, Implementation, Profile, Rounding, RoundingLevel",
    ): "tests/test_readme.py::test_the_declaration_is_an_implementation",
    (
        "docs/check_kernel.md",
        "from attnspec.conformance.api import parametrize_with_laws",
    ): KERNEL,
    (
        "docs/check_kernel.md",
        '@parametrize_with_laws([my_attention], expected_failures={"default-scale": "issue 17"})',
    ): KERNEL,
    ("docs/check_kernel.md", "$ attnspec check my_kernels.py:attention \\"): GIVEN,
    (
        "docs/reports.md",
        "mine.py:attention: conforming in all of 107 laws (96 not claimed); "
        "no call reached 1 place in its code",
    ): GIVEN,
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
    (
        "docs/diagnosis.md",
        "Sizes     keys: fails at 64 and 128, passes at 32, 63, 65, 127 and 129",
    ): NEIGHBOURS,
    ("docs/probe.md", "import torch"): PROBED,
    ("docs/probe.md", "my_kernels.py:attention"): PROBED,
}
"""The test of a block, by its page and its first line. Commands without output need none."""

INCLUDED = {
    "docs/examples/adapters.py": "tests/test_adapters.py",
    "docs/examples/attention.c": "tests/test_examples.py",
    "docs/examples/attention_in_c.py": "tests/test_examples.py",
    "docs/examples/conformance.yml": "tests/test_examples.py",
    "docs/examples/conformance_noxfile.py": "tests/test_examples.py",
    "docs/examples/my_kernels.py": "tests/test_readme.py",
    "docs/examples/pronouns.py": "docs/checks/test_released.py",
    "docs/examples/repeated_words.py": "docs/learn/patterns.md",
    "docs/examples/student_bert.py": "tests/conformance/cli/test_check_model.py",
    "docs/examples/student_transformer.py": "tests/conformance/cli/test_check_model.py",
    "docs/examples/student_gpt2.py": "tests/conformance/cli/test_check_gpt2.py",
    "docs/examples/triton_bfloat16.py": "docs/findings/triton_interpreter.md",
    "docs/examples/toy_sentences.py": "docs/learn/training.md",
    "docs/examples/two_kernels.py": "docs/how_to/profile.md",
    "tests/implementations/frameworks/test_findings.py": (
        "tests/implementations/frameworks/test_findings.py"
    ),
}
"""The test or page that runs an included file outside the package."""


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
    every_block = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        if not page.startswith(GENERATED):
            every_block += fenced(page, path.read_text(encoding="utf-8"))
    assert len(every_block) > 300
    return every_block


def commands(block: Block) -> list[str]:
    """Return the typed commands: the lines after a dollar sign, or all lines if none has one."""
    text = block.text.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    return typed or lines


def is_without_output(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line.strip()]
    return all(line.startswith("$ ") for line in lines) or not any(
        line.startswith("$ ") for line in lines
    )


def untested(several: list[Block]) -> list[str]:
    """Return the blocks that are neither run nor listed as run by a test."""
    return [
        f"{block.page}: {block.kind or 'plain'}: {block.first}"
        for block in several
        if block.kind not in RUN | BUILT
        and block.kind != "{literalinclude}"
        and not (block.kind == "console" and is_without_output(block))
        and (block.page, block.first) not in TESTED
    ]


def test_every_block_is_run():
    assert not untested(blocks())


def test_an_untested_block_is_found():
    messages = untested(list(fenced("page.md", "```python\n1 / 0\n```\n~~~yaml\na: b\n~~~\n")))
    assert messages == ["page.md: python: 1 / 0", "page.md: yaml: a: b"]
    assert untested(list(fenced("page.md", "```console\n$ attnspec list\nsdpa\n```\n")))
    assert not untested(list(fenced("page.md", "```{doctest}\n>>> 1\n1\n```\n")))


def test_every_listed_block_exists():
    existing = {(block.page, block.first) for block in blocks()}
    assert not TESTED.keys() - existing


@pytest.mark.parametrize("test", sorted(set(TESTED.values())))
def test_every_listed_test_exists(test):
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_included_file_is_run():
    packages = tuple(f"{each}/" for each in ("spec", "reference", "conformance", "implementations"))
    for path in PAGES:
        for name in re.findall(r"^```\{literalinclude\} (\S+)$", path.read_text(), re.M):
            # paths in a chapter are relative to the folder of its page
            base = ROOT / "docs" if path.parent == ROOT / "spec" else path.parent
            file = (base / name).resolve().relative_to(ROOT).as_posix()
            if file.startswith(packages):
                continue
            text = (ROOT / INCLUDED[file]).read_text()
            assert Path(file).stem in text or Path(file).name in text, file


def test_restructured_text_holds_no_code():
    for block in blocks():
        if block.kind == "{eval-rst}":
            assert not re.search(r"^\s*\.\. (code|code-block|sourcecode)::|::$", block.text, re.M)


def sessions(path: Path) -> set[str]:
    """Return the names of the sessions of a noxfile."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


SESSIONS = sessions(ROOT / "noxfile.py") | sessions(ROOT / "docs/examples/conformance_noxfile.py")
OTHERS = ("cc", "fresh/bin/python", "grep", "pip", "pytest", "python3.11")
"""Commands of other tools; the tests of the ways to check a kernel try pytest's options."""


def parse_command(command: str) -> None:
    """Parse a command as its tool does.

    Raises:
        Exception: if an option or an argument is unknown.
    """
    words = shlex.split(command, comments=True)
    if words[0] == "timeout":
        words = words[2:]
    while words and (words[0] in ("python", "-m") or "=" in words[0]):
        words = words[1:]
    if words[0].startswith("docs/examples/"):
        assert (ROOT / words[0]).exists()
    elif words[0] == "attnspec":
        group = get_command(app)
        if words[1:] == ["--version"]:
            return
        group.commands[words[1]].make_context(words[1], words[2:])
    elif words[0] == "nox":
        options = words[1 : words.index("--")] if "--" in words else words[1:]
        if "-s" in options:
            names = {word for word in options[options.index("-s") + 1 :] if word[0] != "-"}
            assert names <= SESSIONS, names - SESSIONS
        if words[1:3] == ["-s", "conformance"] and "--" in words:
            parse_command(shlex.join(["attnspec", "check", *words[words.index("--") + 1 :]]))
    else:
        assert words[0] in OTHERS, command


TYPED = sorted({line for block in blocks() if block.kind == "console" for line in commands(block)})


@pytest.mark.parametrize("command", TYPED)
def test_every_command_is_valid(command):
    for part in command.split("&&"):
        parse_command(part.partition(" | ")[0].strip())


@pytest.mark.parametrize(
    "command",
    ["attnspec chekc sdpa", "attnspec check --effort much", "nox -s poetry", "attnspec check --no"],
)
def test_an_invalid_command_is_found(command):
    with pytest.raises((Exception, SystemExit)):
        parse_command(command)
