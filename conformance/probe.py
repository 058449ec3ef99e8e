"""The probe: what an attention function does, found by experiment, each with its evidence.

Every experiment is small and stands alone, so that one that ends in a crash takes no other along.
What an experiment cannot tell it calls unknown; nothing is taken from names or declarations.
"""

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from attnspec.conformance.claims import DTYPES
from attnspec.conformance.probe_rig import Rig, Unready, raised
from attnspec.conformance.process import restored
from attnspec.spec import Feature

UNKNOWN = "unknown"
"""The answer where no experiment tells."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one experiment found.

    Attributes:
        question: what was asked, as in the list of experiments.
        answer: in a word or a few.
        evidence: calls and what came of them, a line each.
        deviation: how it departs from the contract, in a sentence; empty where it does not.
        facts: what a declaration takes from it: `features`, `dtypes`, answers of the `profile`,
            and `supports`, pairs of a condition on a case and the reason.
    """

    question: str
    answer: str
    evidence: tuple[str, ...] = ()
    deviation: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Finding":
        """What `to_json` wrote."""
        given = json.loads(line)
        return cls(**given | {"evidence": tuple(given["evidence"])})


Found = Callable[[Rig], Finding]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question and how it is answered.

    Attributes:
        question: what is asked.
        run: answers it for a rig.
        about: the features that it concerns; none means that it concerns every target.
    """

    question: str
    run: Found
    about: frozenset[Feature] = frozenset()


_EXPERIMENTS: dict[str, Experiment] = {}


def experiment(question: str, *about: Feature) -> Callable[[Found], Found]:
    """Register an experiment under its question.

    Raises:
        ValueError: for a question that is taken.
    """

    def register(run: Found) -> Found:
        if question in _EXPERIMENTS:
            raise ValueError(f"{question}: two experiments on this question")
        _EXPERIMENTS[question] = Experiment(question=question, run=run, about=frozenset(about))
        return run

    return register


def experiments(features: Iterable[Feature] | None = None) -> list[Experiment]:
    """The experiments in the order of a report.

    Args:
        features: only those that concern every target or one of these; `None` is all.
    """
    from attnspec.conformance import (  # noqa: F401  (they register themselves, in this order)
        probe_arithmetic,
        probe_bits,
        probe_masking,
        probe_nonfinite,
        probe_options,
        probe_refusals,
        probe_training,
        probe_windows,
    )

    wanted = None if features is None else frozenset(features)
    return [
        each
        for each in sorted(_EXPERIMENTS.values(), key=lambda each: ORDER.index(each.question))
        if wanted is None or not each.about or each.about & wanted
    ]


ORDER = (
    "storage types",
    "default scale",
    "causal",
    "bool mask",
    "float mask",
    "empty rows",
    "hidden NaN and infinity",
    "grouped heads",
    "window",
    "softcap",
    "sinks",
    "alibi",
    "log-sum-exp",
    "dropout",
    "backward",
    "rounding",
    "deterministic",
    "batch invariant",
    "refusals",
)
"""The questions as a report orders them."""


def answer(each: Experiment, rig: Rig) -> Finding:
    """Run one experiment; whatever the target does, there is a finding."""
    try:
        with restored():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return each.run(rig)
    except Unready as error:
        evidence = f"no plain call gives an output; {error}"
    except Exception as error:  # a mistake of the probe is told and is no finding
        evidence = f"the experiment itself failed: {raised(error)}"
    return Finding(question=each.question, answer=UNKNOWN, evidence=(evidence,))


def probe(
    attention: Callable[..., Any],
    *,
    features: Iterable[Feature] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
) -> list[Finding]:
    """Find out by experiment what an attention function does, in this process.

    Args:
        attention: a callable with parameters of the contract.
        features: only the questions that concern these; `None` is all.
        dtypes: the storage types to try; `None` is all that have a bound.
        device: where tensors are made.

    Returns:
        One finding per question. Nothing that the function raises gets out; one that hangs or ends
        the process needs `attnspec probe`.
    """
    rig = rig_of(attention, dtypes, device)
    return [answer(each, rig) for each in experiments(features)]


def rig_of(attention: Any, dtypes: Iterable[torch.dtype] | None, device: str) -> Rig:
    """A rig that begins with the widest type."""
    tried = DTYPES.values() if dtypes is None else dtypes
    widest = sorted(tried, key=lambda each: -torch.finfo(each).bits)
    return Rig(attention=attention, dtypes=tuple(widest), device=device)


def no(question: str, *evidence: str) -> Finding:
    """It does not do this, and says so."""
    return Finding(question=question, answer="no", evidence=evidence)
