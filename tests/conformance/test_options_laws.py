"""The laws of windows, softcap, sinks, log-sum-exp and ALiBi, tried on bases that claim them."""

import functools
import re
from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check_deviation
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.attention_merge import _merge_parts
from attnspec.conformance.laws.attention_softcap import _ladder
from attnspec.conformance.laws.options_sides import (
    check_lse,
    check_refused,
    distances,
    places,
    weighted,
)
from attnspec.conformance.laws.positions import SLOPES
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.oracle import expect, expect_numpy
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE, scaled_dot_product_attention
from attnspec.reference.masks import alibi, alibi_slopes
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    chapter_text,
)
from attnspec.spec.clauses import parse

F64, F32 = torch.float64, torch.float32
CHAPTERS = ("attention_options", "positions")
HERE = {each.id: each.held_by for name in CHAPTERS for each in parse(name, chapter_text(name))}
DTYPE = "a-float-mask-of-another-dtype-is-read-or-refused"
LAWS = {
    name: law
    for name, law in registered().items()
    if law.clauses[0] in HERE or Feature.WINDOW in law.needs or name == DTYPE
}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=F32)
"""One query, one key, and no option."""


class LowerRight(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)

    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        return super().displacement(queries, keys) - (keys - queries)


def _claiming(name: str, attention: Dense, **profile: object) -> Implementation:
    base = dense(name, attention)
    features = frozenset(Feature) - {Feature.DROPOUT}
    return replace(base, features=features, profile=replace(base.profile, **profile))


def _reference(name: str, **profile: object) -> Implementation:
    return replace(
        REFERENCE,
        name=name,
        attention=functools.partial(scaled_dot_product_attention, **profile),
        profile=replace(REFERENCE.profile, **profile),
    )


LOWER_RIGHT = CausalAlignment.LOWER_RIGHT
BASES = {
    "dense": _claiming("dense", Dense()),
    "tiled": _claiming("tiled", Tiled()),
    "eager": load("eager"),
    "reference": REFERENCE,
    "lower_right": _claiming("lower_right", LowerRight(), causal_alignment=LOWER_RIGHT),
    "blocking": _reference("blocking", causal_alignment=LOWER_RIGHT),
    "mean": _reference("mean", empty_row=EmptyRow.MEAN),
    "nan": _reference("nan", empty_row=EmptyRow.NAN),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_under_every_profile(base: Implementation, law: Law) -> None:
    said = pinned_on(law, Subject(base))
    assert said >= (0.9 if base.name in ("dense", "tiled") else 0.5) * len(law.pinned)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_the_reference_passes_by_the_scalar_definition(law: Law) -> None:
    subject = Subject(REFERENCE, oracle=expect_numpy, largest=20_000)
    assert pinned_on(law, subject) >= 0.4 * len(law.pinned)


@pytest.mark.parametrize("name", ["sdpa", "sdpa_math"])
def test_what_claims_no_option_is_asked_for_none(name: str) -> None:
    implementation = load(name)
    asked = {law.name for law in LAWS.values() if law.needs <= implementation.features}
    assert asked == {DTYPE}


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    call = subject.draw(EASY)
    subject.judge(call, subject.call(call), "wrong")


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) <= {name for mutant in MUTANTS.values() for name in mutant.kills}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_and_laws_name_each_other(chapter: str) -> None:
    clauses = parse(chapter, chapter_text(chapter))
    named = {law: each.id for each in clauses for law in each.held_by}
    ids = {each.id for each in clauses}
    cited = {law.check.__name__: law.clauses[0] for law in LAWS.values() if law.clauses[0] in ids}
    assert named == cited


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
    (known,) = (each for each in subject.implementation.deviations if each.law == DTYPE)
    record = check_deviation(registered()[DTYPE], subject, known)
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
    assert places(subject, call)[0].item() == (5 - queries if base == "lower_right" else 0)


def test_weights_of_given_scores_are_those_of_the_oracle() -> None:
    subject = Subject(BASES["dense"])
    call = subject.draw(Case(heads=2, kv_heads=2, queries=4, keys=5, window=(1, 1), sinks=True))
    scores = call.query @ call.key.mT
    found, lse = weighted(subject, call, scores)
    expected = subject.expect(call)
    assert expected.weights is not None
    assert torch.allclose(found, expected.weights)
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


def test_what_must_be_refused_may_not_come_back() -> None:
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
    call = _ladder(case, draw(case), cap)
    scores = (call.query.double() @ call.key.double().mT * 8**-0.5)[0, 0]
    steps = scores[:, 1]
    assert torch.equal(steps, -steps.flip(0))
    assert bool((steps[1:] > steps[:-1]).all())
    assert 2 * cap <= float(steps.max()) <= 4 * cap * (1 + 1e-6)
    assert not bool(scores[:, ::2].any())


class Off(Dense):
    """A correct attention that spoils one row of one part: that of a single key."""

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
    subject = Subject(_claiming("off", Off(what, by)))
    call = subject.draw(case)
    _merge_parts(subject, call, (0, 2, 5))
    with pytest.raises(Violation, match="attention to the keys 2 to 2 is wrong"):
        _merge_parts(subject, call, (0, 2, 3, 5))


def test_parts_that_leave_out_a_key_do_not_merge() -> None:
    subject = Subject(BASES["dense"])
    call = subject.draw(Case(queries=3, keys=5, d_head=4, d_value=4, return_lse=True))
    with pytest.raises(Violation, match="the parts of the keys do not merge into the whole"):
        _merge_parts(subject, call, (0, 2, 4))
