"""The lines of a subject's own Python code: those that its calls ran, and those that none did.

Kernels choose code by sizes, types and options in Python, before anything is launched. A line of a
function that ran in part, but never itself, belongs to calls that no law made.
"""

import ast
import functools
import inspect
import itertools
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

STATEMENTS, RAN = "statements", "ran"
"""The keys of the lines of one file, as ranges such as "3-9,12"."""

Found = dict[str, dict[str, str]]
"""By the path of a file, the statements of functions that were called, and those that ran."""

_UNSEEN = (ast.Raise, ast.Try, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal)
"""Statements that are not missed: refusals of calls, and those that may leave no code."""


@dataclass
class Lines:
    """The lines that ran in the files of one folder, or of one package.

    Attributes:
        folder: the folder.
        is_package: whether the files of its sub-folders belong to it.
        is_compiled: whether torch.compile compiled a function in some call: it then runs other
            code than that of the file, and nothing is known.
    """

    folder: Path
    is_package: bool
    is_compiled: bool = False
    _ran: dict[str, set[int]] = field(default_factory=dict)
    _files: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, function: Any) -> "Lines | None":
        """Return the lines of the module or package that defines a function, with none run yet.

        Returns:
            None for what is defined in no file, or in Python itself, torch or attnspec.
        """
        function = inspect.unwrap(getattr(function, "func", function))
        if not hasattr(function, "__code__"):
            function = type(function)
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        top = getattr(module, "__package__", None) or ""
        top = top.partition(".")[0]
        if file is None or top in ("torch", "attnspec") or _is_of_python(file):
            return None
        path = Path(file).resolve()
        if not top:
            return cls(path.parent, is_package=False)
        package = next((each for each in path.parents if each.name == top), path.parent)
        return cls(package, is_package=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the lines that run in a block, in this thread and in those that it starts.

        If another tracer is at work, as that of a debugger, no line is noted.
        """
        if sys.gettrace() is not None:
            yield
            return
        frames = _compiled_frames()
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.is_compiled |= _compiled_frames() > frames

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace the lines of a frame, if they are in the folder."""
        name = frame.f_code.co_filename
        if name not in self._files:
            self._files[name] = self._holds(name)
        if not self._files[name]:
            return None
        ran = self._ran.setdefault(name, set())

        def note(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                ran.add(frame.f_lineno)
            return note

        return note

    def _holds(self, name: str) -> bool:
        path = Path(name).resolve()
        parents = path.parents if self.is_package else path.parents[:1]
        return name.endswith(".py") and self.folder in parents

    def found(self) -> Found | None:
        """Return the statements of the functions that were called, and those that ran.

        Returns:
            None if torch.compile ran them.
        """
        if self.is_compiled:
            return None
        found: Found = {}
        for name, ran in self._ran.items():
            called = [body for body in _functions(name) if body & ran]
            if called:
                statements = set.union(*called)
                found[name] = {STATEMENTS: _ranges(statements), RAN: _ranges(statements & ran)}
        return found


def missing(found: Iterable[Found]) -> dict[str, list[tuple[int, int]]]:
    """Return the lines that no call ran, of functions that some call ran in part.

    Args:
        found: what each law found, on the same files.

    Returns:
        For each file with such lines, the first and the last one of statements that follow one
        another.
    """
    statements: dict[str, set[int]] = {}
    ran: dict[str, set[int]] = {}
    for of_law in found:
        for name, lines in of_law.items():
            statements.setdefault(name, set()).update(_numbers(lines[STATEMENTS]))
            ran.setdefault(name, set()).update(_numbers(lines[RAN]))
    groups: dict[str, list[tuple[int, int]]] = {}
    for name, every in statements.items():
        for has_run, group in itertools.groupby(sorted(every), key=ran[name].__contains__):
            if not has_run:
                first, *_, last = [*group] * 2
                groups.setdefault(name, []).append((first, last))
    return groups


@functools.lru_cache(maxsize=256)
def tree_of(name: str) -> ast.Module:
    """Return the syntax tree of a file; one without statements if it cannot be read."""
    try:
        return ast.parse(Path(name).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=256)
def _functions(name: str) -> list[set[int]]:
    """Return the lines with a statement of each function of a file."""
    tree = tree_of(name)
    with_code = set(_lines_with_code(compile(tree, name, "exec", dont_inherit=True)))
    return [
        with_code & set(_statements(node.body))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _statements(body: Iterable[ast.stmt]) -> Iterator[int]:
    """Yield the first line of each statement, but for those of functions and classes inside."""
    for statement in body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, _UNSEEN):
            yield statement.lineno
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.stmt):
                    yield from _statements([child])
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from _statements(child.body)


def _lines_with_code(code: CodeType) -> Iterator[int]:
    for *_, line in code.co_lines():
        if line is not None:
            yield line
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with_code(constant)


def _is_of_python(file: str) -> bool:
    paths = sysconfig.get_paths()
    path = Path(file).resolve()
    sites = [Path(paths[name]).resolve() for name in ("purelib", "platlib")]
    if any(site in path.parents for site in sites):
        return False
    return Path(paths["stdlib"]).resolve() in path.parents


def _compiled_frames() -> int:
    """Return how many functions torch.compile has compiled in this process."""
    utilities = sys.modules.get("torch._dynamo.utils")
    return 0 if utilities is None else int(utilities.counters["frames"]["total"])


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges of consecutive ones, such as "3-9,12"."""
    ranges = []
    for _, group in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        first, *_, last = [number for _, number in group] * 2
        ranges.append(range_of(first, last))
    return ",".join(ranges)


def range_of(first: int, last: int) -> str:
    """Return consecutive numbers in words: "3-9", or "12" for one alone."""
    return f"{first}-{last}" if last > first else str(first)


def _numbers(ranges: str) -> Iterator[int]:
    """Yield the numbers of ranges that `_ranges` wrote."""
    for each in filter(None, ranges.split(",")):
        first, _, last = each.partition("-")
        yield from range(int(first), int(last or first) + 1)
