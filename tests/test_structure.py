"""The structure: imports between packages, calls of the reference, installed packages."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from attnspec.spec import CHAPTERS

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
"""The folders that a function may import."""

SUBPACKAGES = {
    "comparison": set(),
    "isolation": {"comparison"},
    "attention": {"comparison"},
    "models": {"attention", "comparison"},
    "text": {"comparison"},
    "operators": {"attention", "comparison", "isolation", "models"},
    "subjects": {"attention", "operators"},
    "laws": {"attention", "comparison", "isolation", "models", "operators", "subjects", "text"},
    "mutants": {"attention", "laws", "models", "operators", "text"},
    "report": {"comparison", "mutants"},
    "diagnosis": {
        *("attention", "comparison", "isolation", "laws", "models", "mutants", "operators"),
        "report",
    },
    "runner": {
        *("attention", "comparison", "diagnosis", "isolation", "laws", "models", "mutants"),
        *("operators", "report", "subjects"),
    },
    "probe": {
        *("attention", "comparison", "diagnosis", "isolation", "operators", "report", "runner"),
        "subjects",
    },
    "evidence": {
        *("attention", "comparison", "diagnosis", "isolation", "laws", "mutants", "operators"),
        *("probe", "report", "runner", "subjects"),
    },
    "exercise": {
        *("comparison", "diagnosis", "isolation", "laws", "models", "mutants", "report", "runner"),
        *("subjects", "text"),
    },
    "": {"attention", "isolation", "probe", "report", "runner", "subjects"},
    "cli": {
        *(
            "",
            "attention",
            "comparison",
            "evidence",
            "exercise",
            "isolation",
            "laws",
            "probe",
            "report",
            "runner",
            "subjects",
        ),
    },
}
"""The subpackages of `conformance` in order, and those that each may import; "" is the folder
itself. A subpackage imports only those above it in this table."""

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
"""Library functions that the reference may not call: it would judge a kernel by itself."""


MODULE = re.compile(r"attnspec(\.\w+)+(:\w+)?")
"""A module of attnspec, or a name in it, spelled as a string."""


class Import(NamedTuple):
    """One imported module or name, dotted, and whether a function imports it."""

    name: str
    lazy: bool


def imports(source: str) -> Iterator[Import]:
    """Return every import of a source, also strings that name a module of attnspec."""

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
    """Return the forbidden imports of a file of a folder."""
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
    """Return the library functions of `FUSED` that a source does not import from the reference."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in FUSED:
            names.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("attnspec."):
            names += [alias.name for alias in node.names if alias.name in FUSED]
    return names


def sources(*folders: str) -> list[Path]:
    """Return the Python files of some folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert paths
    return paths


def named(path: Path) -> str:
    """Return the path from the root, as the id of a test."""
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
        ("implementations", "if TYPE_CHECKING:\n    from attnspec.conformance.laws.law import Law"),
        ("conformance", "from attnspec import implementations"),
        ("conformance", "class C:\n    import attnspec.implementations.eager"),
        ("conformance", "from .law import law"),
        ("conformance", "from conformance.law import law"),
    ],
)
def test_a_forbidden_import_is_found(folder, source):
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
def test_an_allowed_import_passes(folder, source):
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


def test_the_second_definition_imports_nothing_of_the_first():
    source = (ROOT / "reference" / "scalar_attention.py").read_text()
    taken = {name for name, _ in imports(source)}
    assert not [name for name in taken if name.startswith("attnspec.reference")]


@pytest.mark.parametrize("path", sources(*FOLDERS, "src", "tests", "docs"), ids=named)
def test_no_file_is_longer_than_600_lines(path):
    assert len(path.read_text().splitlines()) <= 600


def file_of(name: str) -> Path | None:
    """Return the file of `conformance` that defines a dotted name, or None."""
    parts = name.split(".")[1:]
    while len(parts) > 1:
        path = ROOT.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file
        parts.pop()
    return None


def subpackage(path: Path) -> str:
    """Return the subpackage of a file of `conformance`."""
    parts = path.relative_to(ROOT / "conformance").parts
    return parts[0] if len(parts) > 1 else ""


IMPORTED = {
    path: {
        file
        for name, _ in imports(path.read_text())
        if name.startswith("attnspec.conformance.") and (file := file_of(name)) is not None
    }
    for path in sources("conformance")
}
"""The files of `conformance` that each file there imports, at any place."""


def test_every_subpackage_is_in_the_table():
    assert {subpackage(path) for path in IMPORTED} == set(SUBPACKAGES)


def test_subpackages_import_none_below_them():
    order = list(SUBPACKAGES)
    for below, others in SUBPACKAGES.items():
        assert all(order.index(other) < order.index(below) for other in others), below


@pytest.mark.parametrize("path", IMPORTED, ids=named)
def test_a_file_imports_only_what_its_subpackage_may_import(path):
    allowed = {subpackage(path), *SUBPACKAGES[subpackage(path)]}
    # the folder's own __init__ is empty, and imported with everything in it
    others = {each for each in IMPORTED[path] if each != ROOT / "conformance" / "__init__.py"}
    assert not {named(each) for each in others if subpackage(each) not in allowed}


@pytest.mark.parametrize("of", SUBPACKAGES)
def test_every_import_in_the_table_exists(of):
    imported = {
        subpackage(file) for path in IMPORTED if subpackage(path) == of for file in IMPORTED[path]
    }
    assert SUBPACKAGES[of] <= imported


def cycle(graph: dict[Path, set[Path]]) -> list[Path]:
    """Return a cycle of files that import each other, or an empty list."""
    done: set[Path] = set()

    def follow(path: Path, trail: list[Path]) -> list[Path]:
        if path in trail:
            return trail[trail.index(path) :]
        if path not in done:
            for imported in sorted(graph.get(path, ())):
                if files := follow(imported, [*trail, path]):
                    return files
            done.add(path)
        return []

    return next((files for path in graph if (files := follow(path, []))), [])


def test_no_files_import_each_other_in_a_cycle():
    assert not [named(path) for path in cycle(IMPORTED)]


def test_a_cycle_is_found():
    a, b, c, d = map(Path, "abcd")
    assert cycle({a: {b}, b: {c}, c: {b}, d: set()}) == [b, c]
    assert cycle({a: {b, c}, b: {c}, c: set()}) == []
    assert cycle({a: {a}}) == [a]


@pytest.mark.parametrize("package", ["laws", "mutants"])
def test_every_chapter_has_a_folder_of_laws_and_one_of_mutants(package):
    others = {"laws": {"helpers"}, "mutants": {"bases"}}[package]
    folders = {path.parent.name for path in (ROOT / "conformance" / package).glob("*/__init__.py")}
    assert folders - others == set(CHAPTERS) - {"conventions"}


@pytest.mark.parametrize("package", ["laws", "mutants"])
def test_they_are_loaded_in_the_order_of_the_chapters(package):
    code = f"import sys, attnspec.conformance.{package} as it\n"
    code += "before = set(sys.modules)\nloaded = it.load()\n"
    if package == "laws":
        # one chapter may import another one's helpers: what is loaded is sorted
        code += "print([each.check.__module__.split('.')[3] for each in loaded.values()])"
    else:
        code += "names = [n for n in sys.modules if n.count('.') == 4 and n not in before]\n"
        code += f"print([n.split('.')[3] for n in names if '.{package}.' in n])"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = [name for name in ast.literal_eval(run.stdout) if name in CHAPTERS]
    assert list(dict.fromkeys(loaded)) == [name for name in CHAPTERS if name != "conventions"]


@pytest.mark.parametrize("package", ["laws", "mutants"])
def test_importing_their_package_loads_no_module(package):
    code = f"import sys, attnspec.conformance.{package}\n"
    code += "print([n for n in sys.modules if n.startswith(('attnspec.conformance.', 'torch'))])"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == f"['attnspec.conformance.{package}']"


def test_every_folder_of_code_is_installed():
    setuptools = PROJECT["tool"]["setuptools"]
    prefixes = {Path(folder): name for name, folder in setuptools["package-dir"].items()}
    packages = set()
    for path in sources("src", *FOLDERS):
        top = next(folder for folder in prefixes if path.is_relative_to(ROOT / folder))
        below = path.parent.relative_to(ROOT / top).parts
        packages.add(".".join((prefixes[top], *below)))
    assert packages == set(setuptools["packages"])


def test_no_module_is_loaded_under_two_names():
    names = sorted(PROJECT["tool"]["setuptools"]["packages"])
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += f"print([name for name in sys.modules if name.split('.')[0] in {FOLDERS}])"
    command = [sys.executable, "-P", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"
    assert not [name for name in sys.modules if name.split(".")[0] in FOLDERS]


def test_the_name_of_a_module_is_the_module():
    import attnspec.spec.clauses

    assert attnspec.spec.clauses.all_clauses is attnspec.spec.all_clauses


def test_a_plain_checkout_shows_editors_every_package():
    for folder in FOLDERS:
        link = ROOT / "src" / "attnspec" / folder
        # without symlinks, git stores the path in a file, which builds ignore
        assert link.is_symlink() or link.read_text() == f"../../{folder}"
        assert not link.is_symlink() or link.resolve() == ROOT / folder
