"""Digests of the sources of laws and mutants, by which a stored kill matrix is known to be old."""

import ast
import hashlib
from pathlib import Path

from attnspec.conformance import laws, mutants


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
