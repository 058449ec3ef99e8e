"""The laws of windows, softcap, sinks, log-sum-exp and ALiBi: the calls that they compare."""

import re
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.attention_options.merge import check_merged_parts
from attnspec.conformance.laws.attention_options.softcap import score_ladder
from attnspec.conformance.laws.helpers.options import (
    check_lse,
    check_refused,
    distances,
    query_positions,
    weights_of_scores,
)
from attnspec.conformance.laws.positions.alibi import SLOPES
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.cache.steps import LowerRightDense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check_deviation
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.reference.masks import alibi, alibi_slopes
from attnspec.spec import (
    Case,
    CausalAlignment,
    Feature,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    clause,
)

LAWS = laws.load()

F64, F32 = torch.float64, torch.float32
MASK_DTYPE = LAWS["a-float-mask-of-another-dtype-is-read-or-refused"]
OPTIONS = [
    law
    for law in LAWS.values()
    if clause(law.clauses[0]).chapter in ("attention_options", "positions")
    or Feature.WINDOW in law.needs
]
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=F32)
"""One query, one key, and no option."""


def claiming(name: str, attention: Dense, **profile: object) -> Implementation:
    """Declare an attention with every option."""
    base = dense(name, attention)
    features = frozenset(Feature) - {Feature.DROPOUT}
    return replace(base, features=features, profile=replace(base.profile, **profile))


BASES = {
    "dense": claiming("dense", Dense()),
    "lower_right": claiming(
        "lower_right", LowerRightDense(), causal_alignment=CausalAlignment.LOWER_RIGHT
    ),
}


@pytest.mark.parametrize("name", ["sdpa", "sdpa_math"])
def test_options_that_are_not_claimed_are_not_tried(name: str) -> None:
    implementation = load(name)
    assert not [law.name for law in OPTIONS if law.needs <= implementation.features]


def test_a_float_mask_has_the_dtype_that_its_recipe_names() -> None:
    mask = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, dtype=F32)
    case = Case(queries=3, keys=4, mask=mask)
    wide, narrow = draw(case.but(mask=replace(mask, dtype=None))), draw(case)
    assert wide.attn_mask is not None
    assert narrow.attn_mask is not None
    assert (wide.attn_mask.dtype, narrow.attn_mask.dtype) == (F64, F32)
    assert torch.equal(wide.attn_mask.float(), narrow.attn_mask)
    assert "mask=float/float32/bias" in str(case)
    with pytest.raises(ValueError, match="must be of kind float"):
        Mask(dtype=F32)


@pytest.mark.parametrize("name", ["sdpa", "sdpa_flash"])
def test_the_misread_mask_of_torch_is_an_expected_failure(name: str) -> None:
    subject = Subject(load(name))
    (known,) = (each for each in subject.implementation.deviations if each.law == MASK_DTYPE.name)
    record = check_deviation(MASK_DTYPE, subject, known)
    assert record.outcome == Outcome.EXPECTED_FAILURE


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_written_out_are_those_of_the_reference(heads: int) -> None:
    slopes = 2.0 ** -torch.tensor(SLOPES[heads], dtype=F64)
    assert torch.equal(slopes, alibi_slopes(heads))


@pytest.mark.parametrize("base", ["dense", "lower_right"])
@pytest.mark.parametrize("queries", [2, 5, 9])
def test_distances_are_those_of_the_reference(base: str, queries: int) -> None:
    subject = Subject(BASES[base])
    call = subject.draw(Case(queries=queries, keys=5))
    alignment = subject.implementation.profile.causal_alignment
    one = torch.ones(1, dtype=F64)
    assert torch.equal(-alibi(one, queries, 5, alignment)[0], distances(subject, call))
    assert query_positions(subject, call)[0].item() == (5 - queries if base == "lower_right" else 0)


def test_weights_of_given_scores_are_those_of_the_oracle() -> None:
    subject = Subject(BASES["dense"])
    call = subject.draw(Case(heads=2, kv_heads=2, queries=4, keys=5, window=(1, 1), sinks=True))
    scores = call.query @ call.key.mT
    weights, lse = weights_of_scores(subject, call, scores)
    expected = subject.expect(call)
    assert expected.weights is not None
    assert torch.allclose(weights, expected.weights)
    assert torch.allclose(lse, expected.lse)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1e-3])
def test_a_log_sum_exp_with_one_wrong_row_is_rejected(wrong: float) -> None:
    case = Case(heads=2, kv_heads=2, queries=3, keys=4, return_lse=True)
    expected = expect(draw(case), REFERENCE.profile)
    check_lse(expected.lse, expected.lse, expected, "wrong")
    spoiled = expected.lse.clone()
    spoiled[0, 1, 2] += wrong
    with pytest.raises(Violation, match="head 1, query 2"):
        check_lse(spoiled, expected.lse, expected, "wrong")


def test_an_improper_call_that_returns_is_a_violation() -> None:
    subject = Subject(BASES["dense"])
    call = subject.draw(EASY)
    check_refused(subject, call.but(softcap=-1.0), "a softcap below zero")
    with pytest.raises(Violation, match=re.escape("this is accepted: the output is (1, 1, 1, 2)")):
        check_refused(subject, call, "this")


@pytest.mark.parametrize("cap", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("dtype", [F64, F32, torch.float16, torch.bfloat16], ids=str)
def test_the_ladder_of_scores_is_symmetric_and_reaches_the_cap(
    dtype: torch.dtype, cap: float
) -> None:
    case = Case(queries=9, keys=4, d_head=8, dtype=dtype, softcap=cap)
    call = score_ladder(case, draw(case), cap)
    scores = (call.query.double() @ call.key.double().mT * 8**-0.5)[0, 0]
    steps = scores[:, 1]
    assert torch.equal(steps, -steps.flip(0))
    assert bool((steps[1:] > steps[:-1]).all())
    assert 2 * cap <= float(steps.max()) <= 4 * cap * (1 + 1e-6)
    assert not bool(scores[:, ::2].any())


class Off(Dense):
    """A correct attention that spoils one row of the part with a single key."""

    def __init__(self, what: str, by: float) -> None:
        self.what, self.by = what, by

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        if self.what == "lse" and scores.shape[-1] == 1:
            lse[0, 0, 1] += self.by
        return lse

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        if self.what == "out" and weights.shape[-1] == 1:
            out[0, 0, 1, 0] += self.by
        return out


@pytest.mark.parametrize("what", ["out", "lse"])
@pytest.mark.parametrize("by", [1e-3, torch.nan, torch.inf])
def test_one_wrong_part_does_not_merge(what: str, by: float) -> None:
    case = Case(queries=3, keys=5, d_head=4, d_value=4, return_lse=True)
    subject = Subject(claiming("off", Off(what, by)))
    call = subject.draw(case)
    check_merged_parts(subject, call, (0, 2, 5))
    with pytest.raises(Violation, match="attention to the keys 2 to 2 is wrong"):
        check_merged_parts(subject, call, (0, 2, 3, 5))


def test_parts_that_leave_out_a_key_do_not_merge() -> None:
    subject = Subject(BASES["dense"])
    call = subject.draw(Case(queries=3, keys=5, d_head=4, d_value=4, return_lse=True))
    with pytest.raises(Violation, match="the parts of the keys do not merge into the whole"):
        check_merged_parts(subject, call, (0, 2, 4))
