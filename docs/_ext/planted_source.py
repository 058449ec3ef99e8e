"""The source of a mutant: its registration, and the definitions that it uses."""

import ast
import functools
import textwrap
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from attnspec.conformance import mutants

FOLDER = Path(next(iter(mutants.__path__)))

Definition = ast.ClassDef | ast.FunctionDef


def source_of(identifier: str) -> str:
    """Return the source of a mutant.

    Raises:
        KeyError: if no mutant has this id.
    """
    sources = _sources()
    for pattern in (identifier, *(pattern for pattern in sources if "*" in pattern)):
        if pattern in sources and fnmatchcase(identifier, pattern):
            return sources[pattern]
    raise KeyError(f"{identifier}: no source registers this mutant")


@functools.cache
def _sources() -> dict[str, str]:
    """Return the sources of all mutants, by id or by a pattern of several ids."""
    sources: dict[str, str] = {}
    for path in sorted(FOLDER.rglob("*.py")):
        for identifier, source in planted_in(path.read_text(encoding="utf-8")).items():
            sources.setdefault(identifier, source)
    return sources


def planted_in(text: str) -> dict[str, str]:
    """Return the sources of the mutants of one module, by the string that registers each.

    A source is a class or function with its decorator, or a call or a row of a table with the
    classes and functions of the module that it names. If a loop fills in parts of the string, each
    such part is a `*`, and the source is the loop.
    """
    tree = ast.parse(text)
    lines = text.splitlines()
    defined = {node.name: node for node in tree.body if isinstance(node, Definition)}
    sources: dict[str, str] = {}
    for node in tree.body:
        for unit, identifier in _units(node):
            parts = [_source(unit, lines)]
            if not isinstance(unit, Definition):
                used = (name.id for name in ast.walk(unit) if isinstance(name, ast.Name))
                named = dict.fromkeys(name for name in used if name in defined)
                parts = [*(_source(defined[name], lines) for name in named), *parts]
            sources.setdefault(identifier, "\n\n\n".join(parts))
    return sources


def _units(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that register mutants, each with the string that it begins with."""
    if isinstance(node, Definition):
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and (identifier := _begins_with(call)):
                yield node, identifier
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call | ast.Tuple) and (identifier := _begins_with(inner)):
            yield (node if "*" in identifier else inner), identifier


def _begins_with(node: ast.Call | ast.Tuple) -> str:
    """Return the first argument, the argument `id`, or the first element, if it is a string."""
    if isinstance(node, ast.Tuple):
        first = node.elts[:1]
    else:
        keywords = (keyword.value for keyword in node.keywords if keyword.arg == "id")
        first = [*node.args, *keywords][:1]
    return next(map(_text, first), "")


def _text(node: ast.AST) -> str:
    """Return a literal string, with a `*` for each formatted part; for other nodes, nothing."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "*" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _source(node: ast.AST, lines: list[str]) -> str:
    """Return the lines of a node, with its decorators, without indentation."""
    decorators = getattr(node, "decorator_list", [])
    numbers = [node.lineno, *(each.lineno for each in decorators)]  # type: ignore[attr-defined]
    start = min(numbers)
    end: int = node.end_lineno  # type: ignore[attr-defined]
    return textwrap.dedent("\n".join(lines[start - 1 : end]))
