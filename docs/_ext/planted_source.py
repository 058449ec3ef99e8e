"""The source of a planted bug: where it is planted, and what stands beside it for it alone."""

import ast
import functools
import textwrap
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import attnspec.conformance.mutants

FOLDER = Path(next(iter(attnspec.conformance.mutants.__path__)))

Definition = ast.ClassDef | ast.FunctionDef


def source_of(identifier: str) -> str:
    """The source of a planted bug.

    Raises:
        KeyError: for one that is planted nowhere under this id.
    """
    found = _sources()
    for each in (identifier, *(each for each in found if "*" in each)):
        if each in found and fnmatchcase(identifier, each):
            return found[each]
    raise KeyError(f"{identifier}: no source plants it")


@functools.cache
def _sources() -> dict[str, str]:
    """The source of everything that is planted, by its id, or by a pattern of several ids."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.py")):
        for identifier, source in planted_in(path.read_text(encoding="utf-8")).items():
            found.setdefault(identifier, source)
    return found


def planted_in(text: str) -> dict[str, str]:
    """The sources of what one module plants, by the string that each is planted under.

    That is a class or function with its decorator, or a call or a row of a table with the classes
    and functions of the module that it names. Of a string with parts that a loop fills in, each
    is a `*`, and the source is the loop.
    """
    tree = ast.parse(text)
    lines = text.splitlines()
    defined = {node.name: node for node in tree.body if isinstance(node, Definition)}
    found: dict[str, str] = {}
    for node in tree.body:
        for unit, identifier in _units(node):
            parts = [_source(unit, lines)]
            if not isinstance(unit, Definition):
                used = (each.id for each in ast.walk(unit) if isinstance(each, ast.Name))
                named = dict.fromkeys(each for each in used if each in defined)
                parts = [*(_source(defined[each], lines) for each in named), *parts]
            found.setdefault(identifier, "\n\n\n".join(parts))
    return found


def _units(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """What plants something, with the string that it begins with."""
    if isinstance(node, Definition):
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and (identifier := _begins_with(call)):
                yield node, identifier
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Call | ast.Tuple) and (identifier := _begins_with(each)):
            yield (node if "*" in identifier else each), identifier


def _begins_with(node: ast.Call | ast.Tuple) -> str:
    """The string that is the first argument, the one called `id`, or the first element."""
    if isinstance(node, ast.Tuple):
        first = node.elts[:1]
    else:
        first = [*node.args, *(each.value for each in node.keywords if each.arg == "id")][:1]
    return next((_text(each) for each in first), "")


def _text(node: ast.AST) -> str:
    """A string as it is written, a `*` for each part that is not; of anything else, nothing."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) or "*" for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _source(node: ast.AST, lines: list[str]) -> str:
    """The lines of a node, with its decorators, at the left margin."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(each.lineno for each in decorators)])  # type: ignore[attr-defined]
    end: int = node.end_lineno  # type: ignore[attr-defined]
    return textwrap.dedent("\n".join(lines[start - 1 : end]))
