"""The exceptions that end a law: a violation, a case not claimed, an error of the subject."""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """The errors of all elements over the last two axes, around the worst element.

    Attributes:
        what: the name of the tensor.
        matrix: rows by columns; infinity if an error is no distance, as NaN for a number.
        measure: the unit of its numbers: `error / bound`, or `distance` if every bound is zero.
        axes: names of its rows and its columns.
        worst: the row and the column of the worst element.
        leading: by name of axis, the index of the matrix in the tensor.
        rows: the query of each row, if the rows are a sample.
    """

    what: str
    matrix: torch.Tensor
    measure: str
    axes: tuple[str, str]
    worst: tuple[int, int]
    leading: dict[str, int]
    rows: list[int] | None = None

    @property
    def place(self) -> dict[str, int]:
        """The index of the worst element, by name of axis."""
        return self.leading | dict(zip(self.axes, self.worst, strict=True))

    @property
    def inside(self) -> str:
        """The index of the matrix in the tensor, in words."""
        return ", ".join(f"{name} {index}".strip() for name, index in self.leading.items())


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The worst of the elements that exceed their bound.

    Attributes:
        what: the name of the tensor, such as `out`.
        where: the index of the worst element, such as `batch 0, head 1, query 2, channel 0`.
        expected: the value required there (or in words).
        got: the value of the result there.
        bound: the largest distance allowed there.
        wrong: the number of wrong elements, and of all elements.
        difference: the distance between the two, and its ratio to the bound; empty if one of them
            is not finite.
        errors: the errors of the elements around it, if they were measured.
    """

    what: str
    where: str
    expected: str
    got: str
    bound: str
    wrong: str
    difference: str = ""
    errors: Errors | None = field(default=None, compare=False, repr=False)

    def words(self) -> dict[str, str]:
        """Return every field but the errors, as a record holds them."""
        names = ("what", "where", "expected", "got", "difference", "bound", "wrong")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return (
            f"{self.what} at {self.where}: expected {self.expected}, got {self.got}, "
            f"allowed distance {self.bound} ({self.wrong})"
        )


class Violation(AssertionError):
    """A broken law. The message is for people; `mismatch` is for reports.

    Attributes:
        mismatch: the worst wrong element, if elements were compared.
        case: the case that breaks the law, if the law found another one than it was given.
    """

    def __init__(self, message: str, mismatch: Mismatch | None = None) -> None:
        super().__init__(f"{message}: {mismatch}" if mismatch else message)
        self.mismatch = mismatch
        self.case: Any = None


class Explained(Violation):
    """A broken law whose message says what the implementation does instead."""


class QualityWarning(Violation):
    """Results within their bounds whose errors are together larger than chance makes them.

    The warning is shown and fails no law, since chance alone can produce it.
    """


class NotClaimed(Exception):
    """A case that the subject does not claim; the message says why."""


class NotAvailable(NotClaimed):
    """A case that needs something this machine lacks; the message names it."""


class Raised(Exception):
    """An exception of the implementation on a case that it claims; the cause is its own."""


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an error; errors of torch have many lines."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
