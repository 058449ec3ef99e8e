"""Experiments of the probe and their findings."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from attnspec.conformance.probe.harness import Harness
from attnspec.spec import Feature

UNKNOWN = "unknown"
"""The answer if an experiment is inconclusive."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one experiment.

    Attributes:
        question: the question of the experiment, which `Experiment.run` fills in.
        answer: a word or a few.
        evidence: the calls and their results, a line each.
        deviation: how the target departs from the contract, in a sentence; empty if it does not.
        facts: parts of a declaration: `features`, `dtypes`, answers of the `profile`, and
            `supports`, pairs of a condition on a case and the reason for refusing it.
    """

    question: str = ""
    answer: str
    evidence: tuple[str, ...] = ()
    deviation: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Finding":
        """Parse a line written by `to_json`."""
        data = json.loads(line)
        return cls(**data | {"evidence": tuple(data["evidence"])})


def not_supported(*evidence: str) -> Finding:
    """Return the finding for a feature that the target lacks or refuses."""
    return Finding(answer="no", evidence=evidence)


def inconclusive(*evidence: str) -> Finding:
    """Return the finding for a question that the calls do not answer."""
    return Finding(answer=UNKNOWN, evidence=evidence)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One question to a target, and the calls that answer it.

    Attributes:
        question: identifies the experiment.
        features: the features that the question concerns; empty if it concerns every target.
        parameter: the parameter that the calls need; a target without it gets the answer "no".
        hint: returns further evidence for a target without the parameter, or an empty string.
        needs_plain_call: true if the question has no answer unless some plain call works.
    """

    question: str
    features: tuple[Feature, ...] = ()
    parameter: str = ""
    hint: Callable[[Harness], str] | None = None
    needs_plain_call: bool = True

    def run(self, harness: Harness) -> Finding:
        """Answer the question for the target in a harness.

        Raises:
            NoOutput: if no plain call works.
        """
        return replace(self._answer_if_possible(harness), question=self.question)

    def _answer_if_possible(self, harness: Harness) -> Finding:
        if self.needs_plain_call:
            _ = harness.base_case
        missing = harness.missing_parameter(self.parameter) if self.parameter else ""
        if missing:
            hint = self.hint(harness) if self.hint else ""
            return not_supported(missing, *([hint] if hint else []))
        return self.answer(harness)

    @abstractmethod
    def answer(self, harness: Harness) -> Finding:
        """Answer the question for a target that has the parameter."""


@dataclass(frozen=True, kw_only=True)
class Measurement(Experiment):
    """An experiment whose calls or answers follow no common pattern.

    Attributes:
        measure: makes the calls and answers the question.
    """

    measure: Callable[[Harness], Finding]

    def answer(self, harness: Harness) -> Finding:
        """Return the finding of `measure`."""
        return self.measure(harness)
