"""Laws as the parameters of anybody's own test, one item each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnspec.conformance.api import judged_as_known, subject_of, unknown_failures
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged
from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.targets import Judgeable
from attnspec.conformance.trials import Trial, trials
from attnspec.spec import Feature, Implementation


class BoundLaw:
    """A law to be called with the attention that it was made for."""

    def __init__(self, trial: Trial, effort: Effort, known: Mapping[str, str]) -> None:
        self.trial = trial
        self.effort = effort
        self.known = known

    def __call__(self, attention: Any = None) -> Record:
        """Try the law.

        Args:
            attention: what the test was given beside it; only for reading.

        Returns:
            What became of it, where it holds.

        Raises:
            AssertionError: where it is broken, with the message of a report.
        """
        record = judged_as_known(self.trial.run(self.effort), self.known)
        if record.outcome is Outcome.EXPECTED_FAILURE:
            pytest.xfail(record.reason)
        if record.outcome in (Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE):
            pytest.skip(f"{record.outcome}: {record.reason}")
        if record.outcome not in CONFORMING:
            told = record.message or record.reason
            raise AssertionError(f"{record.outcome}\n{told}")
        return record


def parametrize_with_laws(
    attentions: Sequence[Callable[..., Any] | Implementation],
    *,
    features: Iterable[Feature | str] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
    effort: Effort | str = Effort.STANDARD,
    laws: Sequence[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """Give a test the arguments `attention` and `law`, once for every pair of them.

    The test calls `law(attention)`, which fails, is skipped or is expected to fail as the law
    says.

    Args:
        attentions: callables with the contract's parameters, or `Implementation`s.
        features: what bare callables claim; read from their parameters where not given.
        dtypes: their storage types; found by calling them where not given.
        device: where to draw the cases.
        effort: how hard to look.
        laws: shell patterns of laws, clauses or families; none means all.
        expected_failures: names of laws that are known to fail, each with the reason.

    Raises:
        TargetError: where one accepts no storage type at all.
        ValueError: for a pattern or an expected failure that names no law.
    """
    known = dict(expected_failures or {})
    items = []
    names: Counter[str] = Counter()
    for attention in attentions:
        subject = subject_of(attention, features, dtypes, device)
        names[subject.name] += 1
        if (count := names[subject.name]) > 1:
            name = f"{subject.name}_{count}"
            subject.implementation = replace(subject.implementation, name=name)
        found = trials([Judgeable(kind=Judged.ATTENTION, subject=subject)], laws)
        unknown_failures(known, found)
        items += [
            pytest.param(attention, BoundLaw(trial, Effort(effort), known), id=trial.id)
            for trial in found
        ]
    return pytest.mark.parametrize(("attention", "law"), items)
