"""Pinned cases fitted to what is judged: its device, its storage types, its numbers of channels."""

from dataclasses import replace

import pytest
import torch

import attnspec.conformance.laws  # noqa: F401  (registers them)
from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.laws.attention_pairs import design
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Subject
from attnspec.implementations import load
from attnspec.spec import Case

LAWS = registered()
BF16 = torch.bfloat16
CASE = Case(queries=2, keys=3, d_head=5, d_value=3, dtype=torch.float32)


def narrow(implementation, unit):
    """Of bfloat16 alone, with as many channels in values as in keys, in multiples of a unit."""

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
    some = replace(load("eager"), dtypes=(torch.float16, torch.float64, BF16))
    assert Subject(some).fit(CASE).dtype == torch.float64


def test_a_case_moves_to_the_device_that_is_judged():
    there = replace(load("eager"), devices=("cuda",))
    assert Subject(there, device="cuda").fit(CASE) == CASE.but(device="cuda")


def test_a_feature_that_is_not_claimed_is_left_to_the_law():
    some = replace(narrow(load("eager"), 8), features=frozenset())
    assert Subject(some).fit(CASE.but(is_causal=True)).d_head == CASE.d_head


@pytest.mark.parametrize("unit", [8, 64])
def test_hardly_a_law_is_silent_on_a_kernel_of_few_types_and_widths(unit):
    subject = Subject(narrow(load("eager"), unit))
    silent = [
        law.name
        for law in LAWS.values()
        if law.judges is Judged.ATTENTION and law.needs <= {*subject.implementation.features}
        if not any(subject.refuses(subject.fit(case)) is None for case in law.pinned)
    ]
    assert not silent
    assert len(design(subject)) >= 50


class RoundedScale(Dense):
    """A default scale of two digits."""

    def scale(self, query, value, scale):
        return round(super().scale(query, value, scale), 2)


@pytest.mark.parametrize("unit", [1, 8, 64])
def test_a_mistake_is_seen_by_pinned_cases_whatever_the_type(unit):
    wrong = narrow(dense("rounded", RoundedScale()), unit)
    right = narrow(dense("right", Dense()), unit)
    law = LAWS["default-scale"]
    assert check(law, Subject(right), Effort.SMOKE).outcome is Outcome.PASSED
    assert check(law, Subject(wrong), None).outcome is Outcome.FAILED
