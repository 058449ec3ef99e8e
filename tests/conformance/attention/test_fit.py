"""Pinned cases fitted to a subject: to its device, storage types and numbers of channels."""

from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.attention.pairs import design
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load
from attnspec.spec import Case

laws.load()

LAWS = registered()
BF16 = torch.bfloat16
CASE = Case(queries=2, keys=3, d_head=5, d_value=3, dtype=torch.float32)


def narrow(implementation, unit):
    """Return an implementation of bfloat16 only, with equal channels in multiples of a unit."""

    def supports(case):
        if case.d_head != case.d_value or case.d_head % unit:
            return f"channels must be multiples of {unit}"
        return implementation.supports(case)

    return replace(implementation, name="narrow", dtypes=(BF16,), supports=supports)


def test_a_claimed_case_stays_as_it_is():
    assert Subject(load("eager")).fit(CASE) == CASE


@pytest.mark.parametrize(("unit", "width"), [(1, 5), (4, 8), (8, 8), (16, 16), (64, 64)])
def test_a_case_takes_the_nearest_type_and_channels(unit, width):
    subject = Subject(narrow(load("eager"), unit))
    assert subject.fit(CASE) == CASE.but(dtype=BF16, d_head=width, d_value=width)


def test_the_widest_claimed_type_is_taken():
    implementation = replace(load("eager"), dtypes=(torch.float16, torch.float64, BF16))
    assert Subject(implementation).fit(CASE).dtype == torch.float64


def test_a_case_moves_to_the_device_of_the_subject():
    implementation = replace(load("eager"), devices=("cuda",))
    assert Subject(implementation, device="cuda").fit(CASE) == CASE.but(device="cuda")


def test_a_case_with_an_unclaimed_feature_is_not_fitted():
    implementation = replace(narrow(load("eager"), 8), features=frozenset())
    assert Subject(implementation).fit(CASE.but(is_causal=True)).d_head == CASE.d_head


@pytest.mark.parametrize("unit", [8, 64])
def test_every_law_has_a_case_for_a_kernel_of_few_types_and_widths(unit):
    subject = Subject(narrow(load("eager"), unit))
    silent = [
        law.name
        for law in LAWS.values()
        if law.judges is SubjectKind.ATTENTION and law.needs <= {*subject.implementation.features}
        if not any(subject.refuses(subject.fit(case)) is None for case in law.pinned)
    ]
    assert not silent
    assert len(design(subject)) >= 50


class RoundedScale(Dense):
    """An attention whose default scale is rounded to two digits."""

    def scale(self, query, value, scale):
        return round(super().scale(query, value, scale), 2)


@pytest.mark.parametrize("unit", [1, 8, 64])
def test_pinned_cases_detect_a_bug_in_every_type(unit):
    wrong = narrow(dense("rounded", RoundedScale()), unit)
    right = narrow(dense("right", Dense()), unit)
    law = LAWS["default-scale"]
    assert check(law, Subject(right), Effort.SMOKE).outcome is Outcome.PASSED
    assert check(law, Subject(wrong), None).outcome is Outcome.FAILED
