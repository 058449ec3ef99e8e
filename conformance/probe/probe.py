"""The probe: finds the features and profile of an attention function by experiment.

Experiments are small and independent, so a crash costs only one of them. Each finding has evidence.
If an experiment is inconclusive, its answer is unknown; names and declarations are not consulted.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.probe.arithmetic import default_scale, rounding, storage_types
from attnspec.conformance.probe.empty_rows import empty_rows
from attnspec.conformance.probe.experiment import UNKNOWN, Experiment, Finding, Measurement
from attnspec.conformance.probe.harness import Harness, NoOutput, describe_exception
from attnspec.conformance.probe.log_sum_exp import log_sum_exp
from attnspec.conformance.probe.nonfinite import hidden_nonfinite
from attnspec.conformance.probe.options import (
    ALIBI,
    BOOL_MASK,
    CAUSAL,
    FLOAT_MASK,
    GROUPED_HEADS,
    KEY_LENGTHS,
    QUERY_OFFSET,
    SINKS,
    SOFTCAP,
    WINDOW,
)
from attnspec.conformance.probe.refusals import refusals
from attnspec.conformance.probe.reproducibility import batch_invariant, deterministic
from attnspec.conformance.probe.training import backward, dropout
from attnspec.conformance.probe.validation import validation
from attnspec.conformance.runner.claims import DTYPES
from attnspec.spec import Feature

EXPERIMENTS: tuple[Experiment, ...] = (
    Measurement(question="storage types", measure=storage_types),
    Measurement(question="default scale", measure=default_scale),
    CAUSAL,
    BOOL_MASK,
    FLOAT_MASK,
    Measurement(
        question="empty rows",
        features=(Feature.MASK, Feature.CAUSAL),
        needs_plain_call=False,
        measure=empty_rows,
    ),
    Measurement(
        question="hidden NaN and infinity",
        features=(Feature.MASK, Feature.CAUSAL),
        measure=hidden_nonfinite,
    ),
    GROUPED_HEADS,
    WINDOW,
    SOFTCAP,
    SINKS,
    ALIBI,
    KEY_LENGTHS,
    QUERY_OFFSET,
    Measurement(
        question="log-sum-exp",
        features=(Feature.LSE,),
        parameter="return_lse",
        measure=log_sum_exp,
    ),
    Measurement(
        question="dropout", features=(Feature.DROPOUT,), parameter="dropout_p", measure=dropout
    ),
    Measurement(question="backward", features=(Feature.BACKWARD,), measure=backward),
    Measurement(question="rounding", measure=rounding),
    Measurement(question="deterministic", measure=deterministic),
    Measurement(question="batch invariant", measure=batch_invariant),
    Measurement(question="refusals", measure=refusals),
    Measurement(question="invalid arguments", features=(Feature.VALIDATES,), measure=validation),
)
"""All experiments, in the order of a report."""


def experiments(features: Iterable[Feature] | None = None) -> list[Experiment]:
    """Return the experiments in the order of a report.

    Args:
        features: keep the experiments that concern every target or one of these; `None` keeps all.
    """
    wanted = None if features is None else frozenset(features)
    return [
        experiment
        for experiment in EXPERIMENTS
        if wanted is None or not experiment.features or wanted.intersection(experiment.features)
    ]


def run_experiment(experiment: Experiment, harness: Harness) -> Finding:
    """Run one experiment and return a finding, whatever the target does."""
    try:
        with restored_state():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return experiment.run(harness)
    except NoOutput as error:
        evidence = f"no plain call gives an output; {error}"
    except Exception as error:  # a bug in the probe itself
        evidence = f"the experiment itself failed: {describe_exception(error)}"
    return Finding(question=experiment.question, answer=UNKNOWN, evidence=(evidence,))


def probe(
    attention: Callable[..., Any],
    *,
    features: Iterable[Feature] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
) -> list[Finding]:
    """Find the features and profile of an attention function by experiment, in this process.

    Args:
        attention: a callable with parameters of the contract.
        features: ask only the questions that concern these; `None` asks all.
        dtypes: the storage types to try; `None` tries all that have a bound.
        device: the device of all tensors.

    Returns:
        One finding per question. Exceptions of the function are caught; if it hangs or ends the
        process, use `attnspec probe`.
    """
    harness = harness_of(attention, dtypes, device)
    return [run_experiment(experiment, harness) for experiment in experiments(features)]


def harness_of(attention: Any, dtypes: Iterable[torch.dtype] | None, device: str) -> Harness:
    """Return a harness whose storage types are sorted, widest first."""
    tried = DTYPES.values() if dtypes is None else dtypes
    widest = sorted(tried, key=lambda dtype: -torch.finfo(dtype).bits)
    return Harness(attention=attention, dtypes=tuple(widest), device=device)
