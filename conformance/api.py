"""Checking from Python: one call in a notebook, or one item per law in another test suite."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnspec.conformance.attention.given_sizes import GivenSizes
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.record import CONFORMING, UNTRIED, Outcome, Record
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import declare
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import Task, tasks
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Feature, Implementation


def check_attention(
    attention: Callable[..., Any] | Implementation,
    *,
    features: Iterable[Feature | str] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
    sizes: Sequence[str] = (),
    effort: Effort | str = Effort.STANDARD,
    laws: Sequence[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[Record]:
    """Try every law on an attention function, in this process.

    Args:
        attention: a callable with the contract's parameters, or an `Implementation`.
        features: the claims of a bare callable; by default read from its parameters.
        dtypes: its storage types; by default found by calling it.
        device: the device on which to draw the cases.
        sizes: those at which it is called beside all others; see `GivenSizes.read`.
        effort: how many cases to try.
        laws: shell patterns of laws, clauses or families; none means all.
        expected_failures: names of laws that are known to fail, each with the reason.

    Returns:
        One record per law. Nothing that the function does raises.

    Raises:
        TargetError: if it accepts no storage type.
        ValueError: for a pattern or an expected failure that names no law, or sizes that are none.
    """
    subject = subject_of(attention, features, dtypes, device, sizes)
    all_tasks = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)], laws)
    known = dict(expected_failures or {})
    refuse_unknown(known, all_tasks)
    return [as_expected_failure(run_in_process(task, Effort(effort)), known) for task in all_tasks]


def subject_of(
    attention: Callable[..., Any] | Implementation,
    features: Iterable[Feature | str] | None,
    dtypes: Iterable[torch.dtype] | None,
    device: str,
    sizes: Sequence[str] = (),
) -> Subject:
    """Make the subject of a callable, with its apparent claims, or of a declared implementation."""
    given = tuple(map(GivenSizes.read, sizes))
    if isinstance(attention, Implementation):
        return Subject(attention, device=device, sizes=given)
    claims = Claims(
        features=None if features is None else frozenset(map(Feature, features)),
        dtypes=None if dtypes is None else tuple(dtypes),
    )
    declared = declare(getattr(attention, "__name__", "attention"), attention, claims, device)
    return Subject(declared, device=device, is_bare=features is None, sizes=given)


def refuse_unknown(known: Mapping[str, str], all_tasks: Iterable[Task]) -> None:
    """Refuse expected failures of laws that are not tried.

    Raises:
        ValueError: naming them.
    """
    unknown = known.keys() - {task.law.name for task in all_tasks}
    if unknown:
        raise ValueError(f"expected failures of laws that do not run: {', '.join(sorted(unknown))}")


def as_expected_failure(record: Record, known: Mapping[str, str]) -> Record:
    """Turn a failure that was announced into an expected failure, and its absence into an error."""
    if record.law not in known:
        return record
    failed = record.outcome not in CONFORMING
    outcome = Outcome.EXPECTED_FAILURE if failed else Outcome.UNEXPECTED_PASS
    return replace(record, outcome=outcome, reason=known[record.law])


class BoundLaw:
    """A law bound to the attention that it judges; a test calls it."""

    def __init__(self, task: Task, effort: Effort, known: Mapping[str, str]) -> None:
        self.task = task
        self.effort = effort
        self.known = known

    def __call__(self, attention: Any = None) -> Record:
        """Try the law.

        Args:
            attention: the argument that the test was given beside the law; not used.

        Returns:
            The record, if the law holds.

        Raises:
            AssertionError: if it is broken, with the message of a report.
        """
        record = as_expected_failure(run_in_process(self.task, self.effort), self.known)
        if record.outcome is Outcome.EXPECTED_FAILURE:
            pytest.xfail(record.reason)
        if record.outcome in UNTRIED:
            pytest.skip(f"{record.outcome}: {record.reason}")
        if record.outcome not in CONFORMING:
            message = record.message or record.reason
            raise AssertionError(f"{record.outcome}\n{message}")
        return record


def parametrize_with_laws(
    attentions: Sequence[Callable[..., Any] | Implementation],
    *,
    features: Iterable[Feature | str] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
    sizes: Sequence[str] = (),
    effort: Effort | str = Effort.STANDARD,
    laws: Sequence[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> pytest.MarkDecorator:
    """Give a test the arguments `attention` and `law`, once for every pair of them.

    The test calls `law(attention)`, which fails, is skipped or is expected to fail as the law
    says.

    Args:
        attentions: callables with the contract's parameters, or `Implementation`s.
        features: the claims of bare callables; by default read from their parameters.
        dtypes: their storage types; by default found by calling them.
        device: the device on which to draw the cases.
        sizes: those at which each is called beside all others; see `GivenSizes.read`.
        effort: how many cases to try.
        laws: shell patterns of laws, clauses or families; none means all.
        expected_failures: names of laws that are known to fail, each with the reason.

    Raises:
        TargetError: if one accepts no storage type.
        ValueError: for a pattern or an expected failure that names no law, or sizes that are none.
    """
    known = dict(expected_failures or {})
    items = []
    names: Counter[str] = Counter()
    for attention in attentions:
        subject = subject_of(attention, features, dtypes, device, sizes)
        names[subject.name] += 1
        if (count := names[subject.name]) > 1:
            name = f"{subject.name}_{count}"
            subject.implementation = replace(subject.implementation, name=name)
        all_tasks = tasks([LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject)], laws)
        refuse_unknown(known, all_tasks)
        items += [
            pytest.param(attention, BoundLaw(task, Effort(effort), known), id=task.id)
            for task in all_tasks
        ]
    return pytest.mark.parametrize(("attention", "law"), items)
