"""A violation: what a law says when an implementation breaks it."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """How far each element is off, over the last two axes around the worst element.

    Attributes:
        what: the name of the tensor.
        matrix: rows by columns; infinity where no distance says it, as of NaN for a number.
        measure: what its numbers are: `error / bound`, or `distance` where nothing is allowed.
        axes: what its rows and its columns are called.
        worst: the row and the column of the worst element.
        leading: by name of axis, where in the tensor the matrix lies.
        rows: which rows these are, where they are a sample.
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
        """Where the worst element lies, by name of axis."""
        return self.leading | dict(zip(self.axes, self.worst, strict=True))

    @property
    def inside(self) -> str:
        """Where the matrix lies, in words."""
        return ", ".join(f"{name} {index}".strip() for name, index in self.leading.items())


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One element that is not what it may be.

    Attributes:
        what: the name of the tensor, such as `out`.
        where: the index of the worst element, such as `batch 0, head 1, query 2, channel 0`.
        expected: the value required there (or in words).
        got: the value found there.
        bound: the largest distance allowed there.
        wrong: how many elements are wrong, of how many.
        errors: how far the elements around it are off, where that can be said.
    """

    what: str
    where: str
    expected: str
    got: str
    bound: str
    wrong: str
    errors: Errors | None = field(default=None, compare=False, repr=False)

    def words(self) -> dict[str, str]:
        """Every field but the errors, as a record holds them."""
        names = ("what", "where", "expected", "got", "bound", "wrong")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return (
            f"{self.what} at {self.where}: expected {self.expected}, got {self.got}, "
            f"allowed distance {self.bound} ({self.wrong})"
        )


class Violation(AssertionError):
    """An implementation breaks a law. The message is for people; `mismatch` is for reports."""

    def __init__(self, message: str, mismatch: Mismatch | None = None) -> None:
        super().__init__(f"{message}: {mismatch}" if mismatch else message)
        self.mismatch = mismatch


class QualityWarning(Violation):
    """Every result is within its bound, and yet the errors together look like a mistake.

    It is shown, and breaks nothing: chance alone can look so.
    """
