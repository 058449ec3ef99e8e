"""Digests of the sources of laws and mutants, by which a stored kill matrix is known to be old."""

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attnspec.conformance import laws, mutants
from attnspec.conformance.subjects.kinds import SubjectKind

_ROOT = Path(str(laws.__file__)).parents[1]
"""The folder of the packages of laws and mutants."""


CORRECT = ("mutants/equivalent.py", "mutants/bases/dense.py", "mutants/bases/tiled.py")
"""The files of the correct implementations that are no backends."""


def source_digests() -> dict[str, str]:
    """Return a digest of each file of laws and mutants, by its path: `laws/masking/causal.py`.

    Comments, docstrings and layout make no difference.
    """
    return {
        path.relative_to(folder.parent).as_posix(): _digest(path.read_text(encoding="utf-8"))
        for package in (laws, mutants)
        for folder in [Path(str(package.__file__)).parent]
        for path in sorted(folder.rglob("*.py"))
    }


def changed_since(stored: dict[str, str]) -> list[str]:
    """Return the files of laws and mutants that were changed, added or removed since a run.

    Args:
        stored: the digests of the run.
    """
    current = source_digests()
    return sorted(
        path for path in stored.keys() | current.keys() if stored.get(path) != current.get(path)
    )


def is_current(mutant: str, kind: SubjectKind, stored: Mapping[str, str]) -> bool:
    """Return whether nothing has changed on which the results of a mutant depend.

    Args:
        mutant: its id.
        kind: the kind of laws that apply to it.
        stored: the digests of the run that gave the results.
    """
    return mutant_is_as_stored(mutant, stored) and not changed_laws(kind, stored)


def correct_are_current(stored: Mapping[str, str]) -> bool:
    """Return whether nothing has changed on which the results of correct implementations depend.

    Args:
        stored: the digests of the run that gave the results.
    """
    return correct_are_as_stored(stored) and not changed_laws(SubjectKind.ATTENTION, stored)


def mutant_is_as_stored(mutant: str, stored: Mapping[str, str]) -> bool:
    """Return whether the files that name a mutant, and what they import, are as they were.

    Args:
        mutant: its id.
        stored: the digests of an earlier run.
    """
    return _are_as_stored(_files_of_mutant(mutant), stored)


def correct_are_as_stored(stored: Mapping[str, str]) -> bool:
    """Return whether the files of the correct implementations are as they were.

    Args:
        stored: the digests of an earlier run.
    """
    return _are_as_stored(_with_imports(CORRECT), stored)


def changed_laws(kind: SubjectKind, stored: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the laws whose files, or what these import, are not as they were.

    Args:
        kind: the kind of subjects that the laws judge.
        stored: the digests of an earlier run.
    """
    return frozenset(
        law.name
        for law in laws.load().values()
        if law.judges is kind
        and not _are_as_stored(_with_imports([_path(law.check.__module__)]), stored)
    )


def _are_as_stored(files: Iterable[str], stored: Mapping[str, str]) -> bool:
    current = _current_digests()
    return all(stored.get(path) == current[path] for path in files)


@functools.cache
def _current_digests() -> dict[str, str]:
    return source_digests()


@functools.cache
def _files_of_mutant(mutant: str) -> frozenset[str]:
    naming = {path for path, names in _texts().items() if mutant in names}
    # an id that is composed is a literal of no file: any file may compose it
    return _with_imports(naming or _texts())


@functools.cache
def _texts() -> dict[str, frozenset[str]]:
    """Return the strings of each file of mutants."""
    return {
        path: frozenset(
            node.value
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for path in _current_digests()
        if path.startswith("mutants/")
    }


def _with_imports(paths: Iterable[str]) -> frozenset[str]:
    """Return paths and those of all laws and mutants that they import."""
    found: set[str] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return frozenset(found)


@functools.cache
def _imported(path: str) -> tuple[str, ...]:
    """Return the paths of the laws and mutants that one file imports."""
    return tuple(
        _path(module)
        for node in ast.walk(_tree(path))
        for module in _modules(node)
        if module.startswith((f"{laws.__name__}.", f"{mutants.__name__}."))
    )


def _modules(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        names = (f"{node.module}.{alias.name}" for alias in node.names)
        yield from (name for name in names if name in sys.modules)


def _path(module: str) -> str:
    """Return the path of a module of laws or mutants: `laws/masking/causal.py`."""
    return _relative(Path(str(sys.modules[module].__file__)))


def _relative(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _tree(path: str) -> ast.Module:
    return ast.parse((_ROOT / path).read_text(encoding="utf-8"))


def _digest(source: str) -> str:
    """Return the first 12 hexadecimal digits of the hash of a module's code."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string alone, as docstrings are."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
