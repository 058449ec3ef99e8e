"""Laws of operators on tensors of rows: correct ones pass, each mutant is killed and named."""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from trying import judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.mutants.bases.layer_norm import PlainLayerNorm, WithExplicitBackward
from attnspec.conformance.operators.subjects import DECLARATIONS, subject_of_operator
from attnspec.reference.operator_implementations import GELU, LAYER_NORM, RMS_NORM
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.layer_norm import LayerNormProfile, Saved
from attnspec.spec.operator import OperatorImplementation, Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormProfile, RoundingToStorage


def cast_first(x, shape, weight, bias, eps):
    ones, zeros = torch.ones_like(weight), torch.zeros_like(bias)
    return PlainLayerNorm()(x, shape, ones, zeros, eps) * weight + bias


def layer_norm_by_steps(x, shape, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias


def llama(x, shape, weight, eps):
    """Rounds the normalized row, and multiplies by the gain in the storage type."""
    rows = x if x.dtype == torch.float64 else x.float()
    return weight * (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def gemma(x, shape, weight, eps):
    rows = x if x.dtype == torch.float64 else x.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * (1 + weight.to(rows.dtype))).to(x.dtype)


def rms_norm_by_steps(x, shape, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator under its laws.

    Attributes:
        correct: functions, each with the profile that it follows.
        reference: that torch's function, or Python's, judges.
        causes: the start of each message about a mutant.
    """

    correct: Mapping[str, tuple[Callable[..., Any], Any]]
    reference: OperatorImplementation
    causes: tuple[tuple[str, str], ...]


OPERATORS = {
    "layer_norm": Operator(
        correct={
            "torch": (functional.layer_norm, LayerNormProfile(saved=Saved.STORAGE)),
            "plain": (PlainLayerNorm(), LayerNormProfile()),
            "explicit": (WithExplicitBackward(), LayerNormProfile()),
            "cast first": (cast_first, LayerNormProfile(rounding=RoundingToStorage.BEFORE_GAIN)),
            "steps": (layer_norm_by_steps, LayerNormProfile(working=Working.STORAGE)),
        },
        reference=LAYER_NORM,
        causes=(
            ("own-ln-unbiased", "the variance is divided by one less than the channels"),
            ("own-ln-no-mean", "the mean is not subtracted: this is RMSNorm plus a bias"),
            ("own-ln-bias-first", "the bias is added before the gain"),
            ("own-ln-one-pass", "rows far from zero are normalized wrongly, and right once their"),
            ("own-ln-fixed-epsilon", "epsilon is 1e-05 whatever the caller says"),
            ("own-ln-no-epsilon", "(a row of equal numbers gives NaN: )?epsilon is not added"),
            ("own-ln-of-all-rows", "the variance is that of all rows"),
            (
                "own-ln-moments-in-storage",
                "right only under working=storage: the profile says",
            ),
            ("own-ln-cast-before-gain", "right only under rounding=before_gain"),
        ),
    ),
    "rms_norm": Operator(
        correct={
            "torch": (functional.rms_norm, RMSNormProfile()),
            "llama": (llama, RMSNormProfile(rounding=RoundingToStorage.BEFORE_GAIN)),
            "gemma": (gemma, RMSNormProfile(gain=Gain.ONE_PLUS)),
            "steps": (rms_norm_by_steps, RMSNormProfile(working=Working.STORAGE)),
        },
        reference=RMS_NORM,
        causes=(
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
        ),
    ),
    "gelu": Operator(
        correct={
            "exact": (functional.gelu, GELUProfile()),
            "tanh": (
                functools.partial(functional.gelu, approximate="tanh"),
                GELUProfile(approximate=Approximate.TANH),
            ),
            "steps": (
                lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
                GELUProfile(working=Working.STORAGE),
            ),
            "steps of tanh": (
                lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
                GELUProfile(approximate=Approximate.TANH, working=Working.STORAGE),
            ),
            "narrowed": (
                lambda x: functional.gelu(x.float()).to(x.dtype),
                GELUProfile(float64_precision=Float64Precision.FLOAT32),
            ),
        },
        reference=GELU,
        causes=(
            ("own-gelu-tanh-for-erf", "the tanh form: the profile says approximate=none"),
            ("own-gelu-erf-for-tanh", "the exact form, by erf: the profile says approximate=tanh"),
            (
                "own-gelu-quick",
                r"this is x times the logistic function of 1.702 x \(quick_gelu\)",
            ),
            ("own-gelu-cube", "this is the tanh form with 0.44715 for 0.044715, not GELU"),
            (
                "own-gelu-steps-in-storage",
                "right only under working=storage: the profile says",
            ),
        ),
    ),
}
LAWS = {
    operator: {name: law for name, law in laws.load().items() if law.judges == operator}
    for operator in OPERATORS
}
MUTANTS = {
    operator: {
        name: mutant
        for name, mutant in mutants.load().items()
        if isinstance(mutant.subject, DECLARATIONS[operator])
    }
    for operator in OPERATORS
}
EACH_LAW = [(operator, name) for operator in OPERATORS for name in LAWS[operator]]
EACH_MUTANT = [(operator, name) for operator in OPERATORS for name in MUTANTS[operator]]


def subject_of(operator, function, profile):
    declaration = DECLARATIONS[operator]
    return subject_of_operator(declaration(name="it", function=function, profile=profile))


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("operator", "name", "which"),
    [(*each, which) for each in EACH_LAW for which in OPERATORS[each[0]].correct],
)
def test_a_correct_one_passes_and_the_pass_is_evidence(operator, name, which):
    law = LAWS[operator][name]
    subject = subject_of(operator, *OPERATORS[operator].correct[which])
    assert judged_count(law, subject, law.pinned) == len(law.pinned)


@pytest.mark.parametrize(("operator", "name"), EACH_LAW)
@settings(max_examples=25)
@given(data=st.data())
def test_correct_ones_pass_drawn_cases(operator, name, data):
    law = LAWS[operator][name]
    if law.explore is None:
        return
    correct = data.draw(st.sampled_from(list(OPERATORS[operator].correct.values())))
    subject = subject_of(operator, *correct)
    with contextlib.suppress(NotClaimed):
        law.check(subject, data.draw(law.explore(subject)))


@pytest.mark.parametrize(("operator", "name"), EACH_LAW)
def test_the_reference_passes(operator, name):
    """Torch's function judges it, or Python's."""
    subject, law = subject_of_operator(OPERATORS[operator].reference), LAWS[operator][name]
    assert subject.is_reference
    judged_count(law, subject, [case for case in law.pinned if subject.refuses(case) is None])


@pytest.mark.parametrize(("operator", "name"), EACH_MUTANT)
def test_each_mutant_is_killed_by_the_law_it_names(operator, name):
    mutant = MUTANTS[operator][name]
    law = LAWS[operator][mutant.killed_by]
    with pytest.raises(Violation):
        judged_count(law, subject_of_operator(mutant.subject), law.pinned)


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_law_kills_a_mutant(operator):
    assert {mutant.killed_by for mutant in MUTANTS[operator].values()} == set(LAWS[operator])


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize(
    ("operator", "name", "message"),
    [(operator, *cause) for operator, each in OPERATORS.items() for cause in each.causes],
)
def test_each_failure_leads_with_the_cause(operator, name, message):
    mutant, messages = MUTANTS[operator][name], {}
    for law in LAWS[operator].values():
        try:
            judged_count(law, subject_of_operator(mutant.subject), law.pinned)
        except Violation as error:
            messages[law.name] = str(error)
    assert mutant.killed_by in messages
    assert [each for each in messages.values() if not re.match(message, each)] == []
