"""Laws of RMSNorm: correct ones pass under every profile, each mutant is killed."""

import contextlib
import importlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trying import judged_count

from attnspec.conformance.comparison.violation import Explained, NotClaimed, Violation
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.rms_norm import correct
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows
from attnspec.conformance.operators.rms_norm.subject import RMSNormSubject
from attnspec.reference.operator_implementations import RMS_NORM
from attnspec.spec.operator import Working
from attnspec.spec.rms_norm import (
    Gain,
    RMSNormImplementation,
    RMSNormProfile,
    RoundingToStorage,
)

importlib.import_module("attnspec.conformance.laws.rms_norm.definition")
importlib.import_module("attnspec.conformance.mutants.rms_norm.mistakes")
LAWS = {name: law for name, law in registered().items() if law.judges == "rms_norm"}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, RMSNormImplementation)
}


def llama(x, shape, weight, eps):
    """Rounds the normalized row, and multiplies by the gain in the storage type."""
    rows = x if x.dtype == torch.float64 else x.float()
    return weight * (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def gemma(x, shape, weight, eps):
    rows = x if x.dtype == torch.float64 else x.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * (1 + weight.to(rows.dtype))).to(x.dtype)


CORRECT = {
    "torch": (functional.rms_norm, RMSNormProfile()),
    "llama": (llama, RMSNormProfile(rounding=RoundingToStorage.BEFORE_GAIN)),
    "gemma": (gemma, RMSNormProfile(gain=Gain.ONE_PLUS)),
}


def subject_of(function, profile) -> RMSNormSubject:
    declared = RMSNormImplementation(name="it", function=function, profile=profile)
    return RMSNormSubject(implementation=declared)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("which", CORRECT)
def test_a_correct_rms_norm_passes_and_the_pass_is_evidence(which, name):
    law, subject = LAWS[name], subject_of(*CORRECT[which])
    cases = [case for case in law.pinned if subject.refuses(case) is None]
    assert judged_count(law, subject, cases) == len(law.pinned)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_rms_norms_pass_drawn_cases(name, data):
    law = LAWS[name]
    if law.explore is None:
        return
    subject = subject_of(*data.draw(st.sampled_from(list(CORRECT.values()))))
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize("name", LAWS)
def test_the_reference_passes(name):
    """Torch's function judges it."""
    subject = RMSNormSubject(implementation=RMS_NORM)
    assert subject.is_reference
    law = LAWS[name]
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_killed_by_the_law_it_names(name):
    mutant = MUTANTS[name]
    subject, law = RMSNormSubject(implementation=mutant.subject), LAWS[mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject, law.pinned)


def test_each_law_kills_a_mutant():
    assert {mutant.killed_by for mutant in MUTANTS.values()} == set(LAWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-rms-sum", "the root is of the sum of squares"),
        ("own-rms-epsilon-outside", "epsilon is added outside the root"),
        ("own-rms-layer-norm", "the mean is subtracted"),
        ("own-rms-gain-plus-one", r"the gain is 1 \+ g: the profile says factor"),
        ("own-rms-gain-as-factor", "the gain is g: the profile says one_plus"),
        ("own-rms-no-gain", "the gain is forgotten"),
        ("own-rms-epsilon-largest", "epsilon is the least mean square, and not added"),
        ("own-rms-fixed-epsilon", "epsilon is 1e-06 whatever the caller says"),
        ("own-rms-of-all-rows", "the mean square is that of all rows"),
        ("own-rms-cast-before-gain", "right only under rounding=before_gain"),
        (
            "own-rms-squares-in-storage",
            "squares are rounded to b?float16|the sum of squares overfl",
        ),
    ],
)
def test_each_failure_leads_with_the_cause(name, message):
    subject = RMSNormSubject(implementation=MUTANTS[name].subject)
    messages = {}
    for law in LAWS.values():
        try:
            judged_count(law, subject, law.pinned)
        except Violation as error:
            messages[law.name] = str(error)
    assert MUTANTS[name].killed_by in messages
    assert [each for each in messages.values() if not re.match(message, each)] == []


def in_float16(x, shape, weight, eps):
    """Adds squares in the storage type, one after another."""
    total = torch.zeros_like(x[..., :1])
    for channel in range(shape[0]):
        total = total + x[..., channel, None].square()
    wide = torch.promote_types(x.dtype, torch.float32)
    root = torch.rsqrt(total.to(wide) / shape[0] + eps)
    return (x.to(wide) * root * weight.to(wide)).to(x.dtype)


@pytest.mark.parametrize(
    ("rows", "channels", "message"),
    [
        (Rows.NORMAL, 4096, "the mean square is wrong in float16 and right in float32"),
        (Rows.LARGE, 64, "the sum of squares overflows in float16"),
    ],
)
def test_sums_of_16_bits_are_named(rows, channels, message):
    subject = subject_of(in_float16, RMSNormProfile())
    case = RMSNormCase(shape=(3,), channels=channels, rows=rows, dtype=torch.float16, seed=1)
    with pytest.raises(Explained, match=message):
        LAWS["rms-norm-equals-the-definition"].check(subject, case)
    LAWS["rms-norm-equals-the-definition"].check(subject, case.but(dtype=torch.float32))


def test_a_formula_that_another_call_refutes_is_not_named():
    """A row times 1.5 is no formula of the list, though with one channel some are near."""

    def times(x, shape, weight, eps):
        return 1.5 * torch.nn.functional.rms_norm(x, shape, weight, eps)

    subject = subject_of(times, RMSNormProfile())
    law = LAWS["rms-norm-equals-the-definition"]
    with pytest.raises(Explained, match="rows are divided by a root that is not theirs"):
        law.check(subject, RMSNormCase(channels=16))
    with pytest.raises(Violation) as error:
        law.check(subject, RMSNormCase(channels=1))
    assert not isinstance(error.value, Explained)


def test_a_wrong_shape_has_no_cause():
    subject = subject_of(lambda x, shape, weight, eps: x[..., :1], RMSNormProfile())
    with pytest.raises(Violation, match="must have shape") as error:
        LAWS["rms-norm-equals-the-definition"].check(subject, RMSNormCase())
    assert not isinstance(error.value, Explained)


def test_a_naive_rms_norm_passes_where_it_declares_its_working_type():
    def naive(x, shape, weight, eps):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight

    subject = subject_of(naive, RMSNormProfile(working=Working.STORAGE))
    for law in LAWS.values():
        judged_count(law, subject, law.pinned)
    assert correct("other", RMSNormProfile(working=Working.STORAGE)).profile.working == "storage"
