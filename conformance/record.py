"""A record: what became of one law on one subject."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What can become of a law; each is kept apart in every report."""

    PASSED = "passed"
    QUALITY_WARNING = "quality warning"
    """Every result is within its bound, and yet the errors look like a mistake."""
    FAILED = "failed"
    """The law is broken; the message says by what."""
    ERRORED = "errored"
    """The subject raised, crashed, hung or ran out of memory on a case that it claims."""
    FLAKY = "flaky"
    """The same case failed and passed."""
    NOT_CLAIMED = "not claimed"
    NOT_AVAILABLE = "not available"
    EXPECTED_FAILURE = "expected failure"
    """A known deviation, still there."""
    UNEXPECTED_PASS = "unexpected pass"
    """A known deviation that no longer shows: its entry must go."""


CONFORMING = frozenset(
    {
        Outcome.PASSED,
        Outcome.QUALITY_WARNING,
        Outcome.NOT_CLAIMED,
        Outcome.NOT_AVAILABLE,
        Outcome.EXPECTED_FAILURE,
    }
)
"""The outcomes that leave the exit status at 0."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One law on one subject.

    Attributes:
        subject: the subject's name.
        law: the law's name.
        clauses: the clauses that it enforces.
        outcome: what became of it.
        reason: why, in a sentence: the failure, or why it was not tried.
        message: the failure in full, for people; empty otherwise.
        case: the failing case in words.
        snippet: code that reproduces the failure.
        examples: cases tried to the end.
        refused: how many different reasons the subject gave for cases it does not claim.
        worst: the largest fraction of a bound reached, 1 being the limit; `None` where the law
            compares without a bound.
        dtypes: the storage types in which cases were tried.
        device: where they ran.
        seconds: wall time: `total`, and of it `implementation`, `oracle` and `bound`, and
            of the implementation `compiling`.
        link: where a known deviation is described.
        figures: what was measured and not judged, by name.
        seed: with which cases were drawn that no run has drawn before; `None` where every run
            draws the same.
        looks_like: ids of the planted bugs that answer as the subject does, on the failing call
            and on others.
        stage: the first stage of a model that diverges: "block 0, attention: mask"; or nothing.
        undeclared: where a subject accepts a feature that it does not claim and gets it wrong:
            which, and how.
        holds_under: the one other answer of a profile, such as `rounding=eager`, under which the
            failing case would hold; or nothing.
        mismatch: the worst element in words: `what`, `where`, `expected`, `got`, `bound`, `wrong`.
        picture: the errors around it, and what its queries may read, as grids of numbers (see
            `attnspec.conformance.picture`).
    """

    subject: str
    law: str
    clauses: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    message: str = ""
    case: str = ""
    snippet: str = ""
    examples: int = 0
    refused: tuple[str, ...] = ()
    worst: float | None = None
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    seconds: dict[str, float] = field(default_factory=dict)
    link: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    seed: int | None = None
    looks_like: tuple[str, ...] = ()
    stage: str = ""
    undeclared: str = ""
    holds_under: str = ""
    mismatch: dict[str, str] | None = None
    picture: dict[str, Any] | None = None

    def to_json(self) -> str:
        """One line of JSON; infinities are written as strings, which JSON has no number for."""
        data = dataclasses.asdict(self)
        data["worst"] = None if self.worst is None else _finite(self.worst)
        data["figures"] = {name: _finite(value) for name, value in self.figures.items()}
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Read what `to_json` wrote; what a later version has added is left out.

        Raises:
            ValueError: for a line that is no record.
        """
        try:
            data = json.loads(line)
            data = {
                each.name: data[each.name] for each in dataclasses.fields(cls) if each.name in data
            }
            for name in _TUPLES:
                data[name] = tuple(data.get(name, ()))
            data["outcome"] = Outcome(data["outcome"])
            worst = data.get("worst")
            data["worst"] = None if worst is None else float(worst)
            for name in ("seconds", "figures"):
                data[name] = {key: float(value) for key, value in data.get(name, {}).items()}
            for names, kind in _KINDS.items():
                for name in names:
                    if name in data and not isinstance(data[name], kind):
                        raise TypeError(name)
            if not all(isinstance(each, str) for name in _TUPLES for each in data[name]):
                raise TypeError("not a name")
            return cls(**data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a record: {line[:80]}") from error


_TUPLES = ("clauses", "refused", "dtypes", "looks_like")
_WORDS = ("subject", "law", "reason", "message", "case", "snippet", "device", "link", "stage")
_KINDS: dict[tuple[str, ...], Any] = {
    (*_WORDS, "undeclared", "holds_under"): str,
    ("mismatch", "picture"): dict | None,
    ("examples",): int,
    ("seed",): int | None,
}
"""What a field must be, where reading does not convert it."""


def _finite(value: float) -> float | str:
    """A number as JSON can write it."""
    return value if math.isfinite(value) else str(value)
