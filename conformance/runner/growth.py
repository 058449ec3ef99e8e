"""The pinned cases of a law that are also tried at the sizes of real calls."""

from collections.abc import Sequence
from typing import Any

import torch

from attnspec.conformance.attention import growth as growth_of_calls
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.law import Law
from attnspec.conformance.models import growth as growth_of_models
from attnspec.conformance.models.case import ModelCase
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import Case, ModelFeature, ModelImplementation

COUNTS = {Effort.STANDARD: 1, Effort.THOROUGH: 3}
"""Grown cases of a law at each effort."""


def grows(law: Law, subject: Any, effort: Effort | None) -> bool:
    """Return whether a law is tried on grown cases.

    Laws that choose cases for the claims of a subject have large ones of their own, and a subject
    that compiles each shape meets those alone.
    """
    if effort not in COUNTS or law.is_long:
        return False
    if isinstance(subject, Subject):
        return not subject.implementation.compiles_each_shape
    return isinstance(subject, ModelImplementation)


def grown_cases(law: Law, subject: Any, effort: Effort, seed: int) -> Sequence[Any]:
    """Return the grown cases of a law that a subject claims.

    Args:
        law: a law that grows.
        subject: an attention or a model.
        effort: how many to return.
        seed: selects them, and their sizes.
    """
    count = COUNTS[effort]
    if isinstance(subject, Subject):

        def fit(case: Case) -> Case | None:
            fitted = subject.fit(case)
            return fitted if subject.refuses(fitted) is None else None

        pinned = [case for case in law.pinned if isinstance(case, Case)]
        return growth_of_calls.grown_cases(law.name, pinned, seed, count, cost=law.cost, fit=fit)
    models = [case for case in law.pinned if isinstance(case, ModelCase)]
    return growth_of_models.grown_cases(
        law.name,
        models,
        seed,
        count,
        float32=torch.float32 in subject.dtypes and ModelFeature.BACKWARD not in law.needs,
        float64=torch.float64 in subject.dtypes,
    )
