"""A violation: what a law says when an implementation breaks it."""

from dataclasses import dataclass


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
    """

    what: str
    where: str
    expected: str
    got: str
    bound: str
    wrong: str

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
