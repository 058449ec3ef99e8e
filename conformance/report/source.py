"""The lines of a subject's own code that no call ran, for the verdict and the end of a report."""

import ast
import functools
import linecache
from collections.abc import Sequence
from pathlib import Path

from attnspec.conformance.comparison.lines import missing, range_of, tree_of
from attnspec.conformance.report.record import CONFORMING, UNTRIED, Record

MOST_PLACES = 8
"""Places that are named."""

Place = tuple[str, int, int]
"""A file, and the first and the last of its lines."""


def places_of_no_call(records: Sequence[Record]) -> list[Place]:
    """Return the lines of a subject's own code that no call ran, of functions that ran in part.

    Args:
        records: those of one subject.

    Returns:
        None of a subject that does not conform: a law that fails ends before it has made all its
        calls. None of one that torch.compile ran either, of which nothing is known.
    """
    tried = [record for record in records if record.outcome not in UNTRIED]
    found = [record.lines for record in tried if record.lines is not None]
    is_conforming = all(record.outcome in CONFORMING for record in records)
    if not is_conforming or len(found) < len(tried):
        return []
    return [(path, *lines) for path, groups in missing(found).items() for lines in groups]


def lines_of_no_call(records: Sequence[Record]) -> list[str]:
    """Return a line for each of these places of each subject, with its code."""
    lines = []
    for subject in dict.fromkeys(record.subject for record in records):
        places = places_of_no_call([record for record in records if record.subject == subject])
        words = [_shown(*place) for place in places[:MOST_PLACES]]
        if len(places) > MOST_PLACES:
            words.append(f"{len(places) - MOST_PLACES} more places")
        lines += [f"reached by no call: {subject}: {each}" for each in words]
    return lines


def _shown(path: str, first: int, last: int) -> str:
    """Return a place as seen from the working folder, with its code and the condition of it."""
    folder = Path.cwd()
    name = Path(path).relative_to(folder) if Path(path).is_relative_to(folder) else path
    code = linecache.getline(path, first).strip()
    under = _condition(path, first)
    return f"{name}:{range_of(first, last)}  {code}{under and f', under {under}'}".rstrip()


def _condition(path: str, line: int) -> str:
    """Return the first line of the innermost block around a line, or nothing in none."""
    blocks = [each for each in _blocks(path) if each[0] <= line <= each[1]]
    if not blocks:
        return ""
    *_, header, is_else = max(blocks)
    return ("else of " if is_else else "") + linecache.getline(path, header).strip()


@functools.lru_cache
def _blocks(path: str) -> list[tuple[int, int, int, bool]]:
    """Return the blocks of compound statements: first and last line, header, and whether `else`."""
    blocks: list[tuple[int, int, int, bool]] = []

    def add(body: Sequence[ast.stmt], header: int, *, is_else: bool = False) -> None:
        if body:
            blocks.append((body[0].lineno, body[-1].end_lineno or 0, header, is_else))

    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.If, ast.For, ast.While)):
            add(node.body, node.lineno)
            add(node.orelse, node.lineno, is_else=True)
        elif isinstance(node, (ast.With, ast.ExceptHandler)):
            add(node.body, node.lineno)
        elif isinstance(node, ast.match_case):
            add(node.body, node.pattern.lineno)
    return blocks
