"""A record: the outcome of one law on one subject, with the details of a failure."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The outcome of a law on a subject; every report tells all of them apart."""

    PASSED = "passed"
    QUALITY_WARNING = "quality warning"
    """Every result is within its bound, but the errors together look like a mistake."""
    FAILED = "failed"
    """The law is broken; the message says why."""
    ERRORED = "errored"
    """The subject raised, crashed, hung or ran out of memory on a case that it claims."""
    FLAKY = "flaky"
    """The same case failed and passed."""
    NOT_DECIDED = "not decided"
    """A model broke the law, but an earlier stage of it is wrong, which explains that."""
    INTERNAL_ERROR = "internal error"
    """attnspec itself raised, in the law or its helpers; this says nothing about the subject."""
    NOT_CLAIMED = "not claimed"
    NOT_AVAILABLE = "not available"
    EXPECTED_FAILURE = "expected failure"
    """A known deviation that still occurs."""
    UNEXPECTED_PASS = "unexpected pass"
    """A known deviation that no longer occurs: its entry must be removed."""


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

BROKEN = frozenset(Outcome) - CONFORMING - {Outcome.NOT_DECIDED, Outcome.INTERNAL_ERROR}
"""The outcomes of a broken law, each with a mistake of its own to look for."""

UNTRIED = (
    Outcome.INTERNAL_ERROR,
    Outcome.NOT_DECIDED,
    Outcome.NOT_CLAIMED,
    Outcome.NOT_AVAILABLE,
)
"""The outcomes that say nothing about the law."""

HIDDEN = "called, but the error bound is as large as the result"
"""The reason in `coverage` of pairs of regimes whose calls would show no mistake."""

DEVIATING = "a known deviation affects each call of them"
"""The reason in `coverage` of pairs of regimes that meet only in calls that are left out."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record of one law on one subject.

    Attributes:
        subject: the subject's name.
        law: the law's name.
        clauses: the clauses that it enforces.
        outcome: the outcome of the law.
        reason: the failure in one sentence, or why the law was not tried.
        message: the full failure message, for people; empty if nothing failed.
        case: the failing case in words.
        sizes: for each size that decides whether the law fails, a line such as "keys: fails at 64
            and 128, passes at 63, 65, 127 and 129".
        snippet: code that reproduces the failure.
        examples: number of cases that ran to the end.
        refused: the distinct reasons why cases were not tried.
        missing: things that this machine lacks, each with a remedy; cases that need them were
            not tried.
        worst: the largest error as a fraction of its bound, 1 being the limit; `None` if the law
            compares without a bound.
        dtypes: the storage types of the tried cases.
        device: the device on which they ran.
        seconds: wall time: `total`, its parts `implementation`, `oracle` and `bound`, and
            `compiling` as a part of `implementation`.
        link: address of the description of a known deviation.
        figures: measurements that no law judges, by name.
        seed: the seed of cases that no earlier run has drawn; `None` if every run draws the same
            cases.
        looks_like: ids of mutants, i.e. planted bugs, whose outputs agree with the subject's on
            the failing call and on others.
        titles: the title of each of `looks_like`; a process that only prints has loaded no mutants.
        stage: the first stage of a model that diverges, such as "block 0, attention: mask"; empty
            if none was found.
        cause: what the implementation does instead, if the law itself found it; empty otherwise.
        undeclared: a feature that the subject accepts without claiming it, and the wrong result;
            empty otherwise.
        holds_under: the one other answer of a profile, such as `rounding=eager`, under which the
            failing case would hold; empty if there is none.
        passes_in: the other storage types, such as `float32`, in which the failing case passes.
        torch_bug: the product of torch, such as "(26, 79) by (79, 2)", whose mistake alone breaks
            the law; empty if there is none.
        mismatch: the worst element in words: `what`, `where`, `expected`, `got`, `difference`,
            `bound`, `wrong`.
        coverage: of the laws about regimes, i.e. classes of calls: whether their calls have a
            `backward` pass, how many pairs of regimes are `claimed` and `called`, the claimed ones
            that are `missing`, and those `not tried`, by the reason; `None` for other laws.
        lines: by the path of a file with the subject's own code, the `statements` of functions that
            were called and those that `ran`, as ranges of lines; `None` if nothing is known.
        picture: the errors around the worst element, and the keys that its queries may read, as
            grids of numbers (see `attnspec.conformance.diagnosis.failure.error_map`).
    """

    subject: str
    law: str
    clauses: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    message: str = ""
    case: str = ""
    sizes: tuple[str, ...] = ()
    snippet: str = ""
    examples: int = 0
    refused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    worst: float | None = None
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    seconds: dict[str, float] = field(default_factory=dict)
    link: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    seed: int | None = None
    looks_like: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    stage: str = ""
    cause: str = ""
    undeclared: str = ""
    holds_under: str = ""
    passes_in: tuple[str, ...] = ()
    torch_bug: str = ""
    mismatch: dict[str, str] | None = None
    coverage: dict[str, Any] | None = None
    lines: dict[str, dict[str, str]] | None = None
    picture: dict[str, Any] | None = None

    def to_json(self) -> str:
        """Return the record as one line of JSON, with infinities as strings."""
        data = dataclasses.asdict(self)
        data["worst"] = None if self.worst is None else _finite(self.worst)
        data["figures"] = {name: _finite(value) for name, value in self.figures.items()}
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Parse a line of `to_json`, ignoring unknown names, which later versions may add.

        Raises:
            ValueError: if the line is not a record.
        """
        try:
            data = json.loads(line)
            data = {
                known.name: data[known.name]
                for known in dataclasses.fields(cls)
                if known.name in data
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
            if not all(isinstance(item, str) for name in _TUPLES for item in data[name]):
                raise TypeError("not a name")
            return cls(**data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a record: {line[:80]}") from error


_TUPLES = (
    *("clauses", "sizes", "refused", "missing", "dtypes"),
    *("looks_like", "titles", "passes_in"),
)
_WORDS = ("subject", "law", "reason", "message", "case", "snippet", "device", "link", "stage")
_KINDS: dict[tuple[str, ...], Any] = {
    (*_WORDS, "cause", "undeclared", "holds_under", "torch_bug"): str,
    ("mismatch", "coverage", "lines", "picture"): dict | None,
    ("examples",): int,
    ("seed",): int | None,
}
"""Types of the fields that reading checks but does not convert."""


def _finite(value: float) -> float | str:
    """Return a finite number as it is, and any other as a string, since JSON has no such number."""
    return value if math.isfinite(value) else str(value)


def lines_of_mismatch(words: Mapping[str, str]) -> list[str]:
    """Return the lines that show the worst element, from the words of `Mismatch.words`."""
    return [
        f"  where     {words.get('what')}, {words.get('where')} ({words.get('wrong')})",
        f"  expected  {words.get('expected')}",
        f"  got       {words.get('got')}",
        f"  off by    {words['difference']}; allowed {words.get('bound')}"
        if words.get("difference")
        else f"  allowed   {words.get('bound')} away",
    ]
