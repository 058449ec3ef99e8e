"""The house: which folder may import which, what the reference may call, and what is installed."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("spec", "reference", "conformance", "implementations")

MAY_IMPORT = {
    "spec": {"spec"},
    "reference": {"spec", "reference"},
    "conformance": {"spec", "reference", "conformance"},
    "implementations": {"spec", "implementations"},
}
MAY_LOAD = {**MAY_IMPORT, "conformance": {*MAY_IMPORT["conformance"], "implementations"}}
"""What may be imported inside a function."""

FUSED = {
    "GELU",
    "LayerNorm",
    "MultiheadAttention",
    "Softmax",
    "flex_attention",
    "gelu",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "multi_head_attention_forward",
    "native_layer_norm",
    "scaled_dot_product_attention",
    "softmax",
    "softmin",
}
"""What the reference may not take from a library: it would judge a kernel by itself."""


MODULE = re.compile(r"attnspec(\.\w+)+(:\w+)?")
"""A module of ours, or something in it, spelled as a string."""


class Import(NamedTuple):
    """One imported module or name, dotted, and whether a function imports it."""

    name: str
    lazy: bool


def imports(source: str) -> Iterator[Import]:
    """Every import of a source, also one spelled as a string that names a module of ours."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                origin = "." * child.level + (child.module or "")
                yield from (Import(f"{origin}.{alias.name}", lazy) for alias in child.names)
            elif isinstance(child, ast.Constant) and MODULE.fullmatch(str(child.value)):
                yield Import(str(child.value).replace(":", "."), lazy=True)
            functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            yield from walk(child, lazy or isinstance(child, functions))

    return walk(ast.parse(source), lazy=False)


def misplaced(folder: str, source: str) -> list[str]:
    """The imports that a file of a folder may not have."""
    wrong = []
    for name, lazy in imports(source):
        if name.startswith("."):
            wrong.append(f"{name} is relative")
        elif name.split(".")[0] in FOLDERS:
            wrong.append(f"{name} is not installed under this name")
        elif name.startswith("attnspec."):
            part = name.split(".")[1]
            allowed = MAY_LOAD if lazy else MAY_IMPORT
            if part in FOLDERS and part not in allowed[folder]:
                wrong.append(name)
    return wrong


def fused_calls(source: str) -> list[str]:
    """The library functions of `FUSED` that a source takes from anywhere but the reference."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in FUSED:
            found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("attnspec."):
            found += [alias.name for alias in node.names if alias.name in FUSED]
    return found


def sources(*folders: str) -> list[Path]:
    """The Python files of some folders."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def named(path: Path) -> str:
    """A test's id: the path from the root."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sources(*FOLDERS), ids=named)
def test_imports_go_one_way(path):
    folder = path.relative_to(ROOT).parts[0]
    assert not misplaced(folder, path.read_text())


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("spec", "import attnspec.reference"),
        ("spec", "from attnspec.conformance import law"),
        ("reference", "from attnspec import conformance"),
        ("reference", "def f():\n    from attnspec.implementations import eager"),
        ("reference", "NAME = 'attnspec.implementations.eager:attention'"),
        ("implementations", "from attnspec.reference.attention import attention"),
        ("implementations", "if TYPE_CHECKING:\n    from attnspec.conformance.law import Law"),
        ("conformance", "from attnspec import implementations"),
        ("conformance", "class C:\n    import attnspec.implementations.eager"),
        ("conformance", "from .law import law"),
        ("conformance", "from conformance.law import law"),
    ],
)
def test_an_import_the_wrong_way_is_found(folder, source):
    assert misplaced(folder, source)


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("conformance", "def f():\n    from attnspec import implementations"),
        ("conformance", "from attnspec.reference.attention import attention"),
        ("implementations", "from attnspec.spec import Implementation"),
        ("spec", "from attnspec import __version__"),
    ],
)
def test_an_import_the_right_way_is_left_alone(folder, source):
    assert not misplaced(folder, source)


@pytest.mark.parametrize("path", sources("reference"), ids=named)
def test_the_reference_is_made_of_primitive_operations(path):
    assert not fused_calls(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "weights = torch.softmax(scores, dim=-1)",
        "weights = scores.softmax(-1)",
        "from torch.nn.functional import gelu as activation",
        "y = F.layer_norm(x, (4,))",
        "attend = torch.nn.functional.scaled_dot_product_attention",
    ],
)
def test_a_library_function_in_the_reference_is_found(source):
    assert fused_calls(source)


def test_the_second_definition_shares_nothing_with_the_first():
    source = (ROOT / "reference" / "numpy_attention.py").read_text()
    taken = {name for name, _ in imports(source)}
    assert not [name for name in taken if name.startswith("attnspec.reference")]


@pytest.mark.parametrize("path", sources(*FOLDERS, "src", "tests", "docs"), ids=named)
def test_a_file_holds_one_idea(path):
    assert len(path.read_text().splitlines()) <= 400


def test_every_folder_of_code_is_installed():
    setuptools = PROJECT["tool"]["setuptools"]
    prefixes = {Path(folder): name for name, folder in setuptools["package-dir"].items()}
    found = set()
    for path in sources("src", *FOLDERS):
        top = next(each for each in prefixes if path.is_relative_to(ROOT / each))
        below = path.parent.relative_to(ROOT / top).parts
        found.add(".".join((prefixes[top], *below)))
    assert found == set(setuptools["packages"])


def test_no_module_is_loaded_under_two_names():
    names = sorted(PROJECT["tool"]["setuptools"]["packages"])
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += f"print([name for name in sys.modules if name.split('.')[0] in {FOLDERS}])"
    command = [sys.executable, "-P", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"
    assert not [name for name in sys.modules if name.split(".")[0] in FOLDERS]
