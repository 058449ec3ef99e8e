"""The functions of a learner, found by their names in a file or in the files of a folder."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnspec.conformance.exercise.steps import BUILD, CACHE, ENGLISH, STEPS
from attnspec.conformance.laws.select import suggestion_for

NAMES = frozenset(each.function for each in STEPS) - {CACHE, ENGLISH}
"""The names of the functions."""


class NoExercise(Exception):
    """A target that cannot be marked; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What a learner has written so far.

    Attributes:
        functions: by name, those that exist.
        folder: of the files.
        problems: what keeps a file from being imported, or a name from being found.
        near: by name of a function that is missing, names like it that the files have.
    """

    functions: Mapping[str, Callable[..., Any]]
    folder: Path
    problems: tuple[str, ...] = ()
    near: Mapping[str, str] = field(default_factory=dict)

    def place(self, error: BaseException) -> str:
        """Return the line of the learner's files in which an exception was raised, if in any."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if Path(each.filename).parent == self.folder]
        return (
            f"{Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line}" if own else ""
        )


def files_of(target: str) -> list[Path]:
    """Return the files of a target: a file of Python, or a folder of such files.

    Args:
        target: their path; a file may be followed by `:build`.

    Raises:
        NoExercise: if there is no such file, or none in the folder.
    """
    path = Path(target.removesuffix(f":{BUILD}")).resolve()
    if path.is_dir():
        files = sorted(each for each in path.glob("*.py") if not each.name.startswith("test_"))
        if not files:
            raise NoExercise(f"{target}: there is no file of Python in this folder")
        return files
    if path.suffix != ".py" or not path.is_file():
        raise NoExercise(f"{target}: neither a file of Python nor a folder of such files")
    return [path]


def read_learner(target: str) -> Learner:
    """Import the files of a target, and find the functions of the exercise.

    A file that cannot be imported is a problem of the learner's, and keeps no other from being
    read.

    Raises:
        NoExercise: as `files_of`.
    """
    files = files_of(target)
    folder = files[0].parent
    sys.path.insert(0, str(folder))
    defined: dict[str, dict[str, Callable[..., Any]]] = {}
    problems, others = [], dict[str, Any]()
    for file in files:
        try:
            names = vars(importlib.import_module(file.stem))
        except (Exception, SystemExit) as error:
            problems.append(f"{file.name} cannot be imported: {_cause(error, folder)}")
            continue
        others |= names
        for name in NAMES & names.keys():
            if callable(names[name]) and not inspect.ismodule(names[name]):
                defined.setdefault(name, {})[file.stem] = names[name]
    functions = {}
    for name, by_file in defined.items():
        if len({id(each) for each in by_file.values()}) > 1:
            places = " and ".join(f"{stem}.py" for stem in by_file)
            problems.append(f"{name} is defined twice, in {places}: keep one of them")
        functions[name] = next(iter(by_file.values()))
    near = {name: suggestion_for(name, others) for name in NAMES - functions.keys()}
    return Learner(functions=functions, folder=folder, problems=tuple(problems), near=near)


def _cause(error: BaseException, folder: Path) -> str:
    """Return an exception with the line of the learner's files that caused it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} in {Path(error.filename).name}, line {error.lineno}"
    place = Learner(functions={}, folder=folder).place(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
