"""The laws of MSK: right attention passes them, each planted bug is caught by those it names."""

from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.masking import _largest
from attnspec.conformance.laws.masking_sequences import _edges
from attnspec.conformance.laws.masking_sides import check_rows, spelled_out
from attnspec.conformance.laws.masking_visibility import _random_mask, _shapes
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.oracle import expect
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    chapter_text,
)
from attnspec.spec.clauses import parse

F32 = torch.float32
FAMILY = {name: law for name, law in registered().items() if law.clauses[0].startswith("MSK-")}
LAWS = {name: law for name, law in FAMILY.items() if Feature.WINDOW not in law.needs}
"""The laws of windows are tried in `test_options_laws.py`, on bases that claim them."""
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=F32)
"""One query, one key, nothing hidden."""


class LowerRight(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class Blocking(Dense):
    """Multiply only what may be read."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        shape = (*query.shape[:3], key.shape[2])
        visible, _ = self.mask(attn_mask, is_causal, torch.zeros(shape))
        rows = torch.empty(*query.shape[:3], value.shape[3], dtype=value.dtype)
        group = query.shape[1] // key.shape[1]
        for b, h, i in torch.cartesian_prod(*map(torch.arange, shape[:3])).tolist():
            seen = visible[b, h, i]
            bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
            rows[b, h, i] = super().__call__(
                query[b, h, i].view(1, 1, 1, -1),
                key[b, h // group][seen][None, None],
                value[b, h // group][seen][None, None],
                None if bias is None else bias.expand(shape)[b, h, i][seen].view(1, 1, 1, -1),
                scale=scale,
            )[0, 0, 0]
        return rows


class Answering(Dense):
    """Give another answer for rows that read nothing."""

    def __init__(self, answer: EmptyRow) -> None:
        self.answer = answer

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        fill = 1 / max(scores.shape[-1], 1) if self.answer is EmptyRow.MEAN else torch.nan
        empty = ~visible.any(-1, keepdim=True)
        return super().softmax(scores, visible).masked_fill(empty, fill)


def _declared(name: str, attention: Dense, **profile: object) -> Implementation:
    base = dense(name, attention)
    return replace(base, profile=replace(base.profile, **profile))


BASES = {
    "dense": dense("dense", Dense()),
    "tiled": dense("tiled", Tiled()),
    "lower_right": _declared(
        "lower_right", LowerRight(), causal_alignment=CausalAlignment.LOWER_RIGHT
    ),
    "blocking": _declared("blocking", Blocking(), masked_nonfinite=MaskedNonfinite.BLOCKED),
    "mean": _declared("mean", Answering(EmptyRow.MEAN), empty_row=EmptyRow.MEAN),
    "nan": _declared("nan", Answering(EmptyRow.NAN), empty_row=EmptyRow.NAN),
}
LARGEST = {"blocking": 20_000}
"""Sizes that a loop over rows can afford."""


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_under_every_profile(base: Implementation, law: Law) -> None:
    largest = LARGEST.get(base.name, 2**31)
    said = pinned_on(law, Subject(base, largest=largest))
    assert said >= (0.9 if base.name in ("dense", "tiled") else 0.5) * len(law.pinned)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
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


def test_chapter_and_laws_name_each_other() -> None:
    chapter = parse("masking", chapter_text("masking"))
    named = {law: each.id for each in chapter for law in each.held_by}
    assert named == {law.check.__name__: law.clauses[0] for law in FAMILY.values()}


def test_no_case_joins_the_causal_flag_to_a_scale_that_is_not_positive() -> None:
    for law in LAWS.values():
        assert not any(case.is_causal and (case.scale or 1) <= 0 for case in law.pinned), law.name


@pytest.mark.parametrize("profile", ["dense", "lower_right"])
@pytest.mark.parametrize("kind", list(MaskKind))
def test_one_full_mask_says_what_the_reference_reads(profile: str, kind: MaskKind) -> None:
    mask = Mask(kind=kind, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.KEYS)
    subject = Subject(BASES[profile])
    call = subject.draw(Case(batch=2, queries=3, keys=5, is_causal=True, mask=mask))
    spelled = spelled_out(subject, call)
    assert not spelled.is_causal
    given = spelled.attn_mask
    assert given is not None
    hidden = ~given if given.dtype == torch.bool else given == -torch.inf
    expected, _ = visible_keys(
        3,
        5,
        attn_mask=call.attn_mask,
        is_causal=True,
        alignment=subject.implementation.profile.causal_alignment,
    )
    assert torch.equal(~hidden, expected.expand(2, 1, 3, 5))


def test_every_broadcast_shape_is_tried_with_both_kinds_of_mask() -> None:
    whole = (2, 3, 4, 5)
    shapes = _shapes(whole)
    assert len(shapes) == len(set(shapes)) == 28
    tried = {
        (shape, _random_mask(Case(seed=seed), shape).dtype == torch.bool)
        for seed in range(14)
        for shape in shapes[seed % 7 :: 7]
    }
    assert tried == {(shape, is_bool) for shape in shapes for is_bool in (True, False)}


@pytest.mark.parametrize("keys", [1, 3, 5, 24, 129])
def test_documents_are_not_empty_and_fill_the_sequence(keys: int) -> None:
    for seed in range(6):
        edges = [0, *_edges(Case(queries=keys, keys=keys, seed=seed)), keys]
        assert edges == sorted(set(edges))


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
def test_large_futures_stay_in_range(dtype: torch.dtype) -> None:
    case = Case(queries=3, keys=65, d_head=16, d_value=4, dtype=dtype)
    call = draw(case)
    key, value = _largest(Subject(BASES["dense"]), call)
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else F32).max
    assert float(call.query.double().abs().sum(-1).max()) * key <= wide / 4
    assert case.keys * value <= wide / 4 * (1 + 1e-12)
    assert torch.tensor([key, value], dtype=dtype).isfinite().all()
    assert min(key, value) >= torch.finfo(dtype).max / 4000 or dtype == torch.float64


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1.0])
def test_held_rows_reject_a_single_wrong_element(wrong: float) -> None:
    call = draw(EASY.but(queries=3))
    expected = expect(call, BASES["dense"].profile)
    out = expected.out.to(F32)
    rows = torch.tensor([[[True, False, True]]])
    check_rows(call, out, expected.out, expected, rows, "wrong")
    out[0, 0, 1] = torch.nan
    check_rows(call, out, expected.out, expected, rows, "wrong")
    out[0, 0, 2, 1] += wrong
    with pytest.raises(Violation, match="query 2, channel 1"):
        check_rows(call, out, expected.out, expected, rows, "wrong")
    if wrong != wrong:
        check_rows(call, out, expected.out, expected, rows, "wrong", or_nan=True)
    else:
        with pytest.raises(Violation):
            check_rows(call, out, expected.out, expected, rows, "wrong", or_nan=True)
