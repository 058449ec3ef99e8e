"""The laws of ATT: their cases, the calls that they compare, and what counts as evidence."""

import math
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import Expected, expect
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.attention.definition import with_coded_keys
from attnspec.conformance.laws.attention.invariance import rotate, shift_every_key
from attnspec.conformance.laws.helpers.calls import plain, readable, require_evidence, round_to_grid
from attnspec.conformance.mutants.bases.dense import ALL_DTYPES, Dense, dense
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    Case,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
    clause,
)

LAWS = [law for law in laws.load().values() if clause(law.clauses[0]).chapter == "attention"]
CORRECT = dense("correct", Dense())


def test_combinations_with_a_law_of_their_own_are_in_no_other_law() -> None:
    odd = [law.name for law in LAWS if not all(map(plain, law.pinned))]
    assert odd == ["negative-and-zero-scale"]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_contents_of_related_calls_are_exact(dtype: torch.dtype) -> None:
    for seed in range(6):
        case = Case(batch=2, heads=2, kv_heads=2, keys=40, d_head=13, dtype=dtype, seed=seed)
        key = round_to_grid(draw(case.but(values=Values.PEAKED)).key)
        other = round_to_grid(draw(case.but(seed=seed + 100)).key)
        assert torch.equal((2 * key - other).double(), 2 * key.double() - other.double())
        shift = shift_every_key(case, key)
        assert torch.equal((key + shift).double(), key.double() + shift.double())
        turned, other_turned = rotate(case, key).double(), rotate(case, other).double()
        assert torch.equal(turned @ other_turned.mT, key.double() @ other.double().mT)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("keys", [1, 2, 3, 8, 17])
def test_coded_keys_leave_the_margin_that_the_law_counts_on(keys: int, dtype: torch.dtype) -> None:
    case = Case(queries=keys, keys=keys, d_head=13, dtype=dtype)
    call, margin = with_coded_keys(case, draw(case), torch.arange(keys)[None, None])
    scores = (call.query.double() @ call.key.double().mT / math.sqrt(13))[0, 0]
    other = scores.masked_fill(torch.eye(keys, dtype=torch.bool), -torch.inf)
    assert (scores.diagonal() - other.amax(-1) >= margin * (1 - 1e-12)).all()
    assert margin >= 7.9


@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.FLOAT])
@pytest.mark.parametrize("shape", [MaskShape.FULL, MaskShape.KEYS, MaskShape.RANK_2])
def test_readable_keys_are_those_of_the_reference(
    queries: int, kind: MaskKind, shape: MaskShape
) -> None:
    mask = Mask(kind=kind, pattern=MaskPattern.EMPTY_ROWS, shape=shape)
    call = draw(Case(batch=2, queries=queries, keys=5, is_causal=True, mask=mask))
    expected, _ = visible_keys(queries, 5, attn_mask=call.attn_mask, is_causal=True)
    assert torch.equal(readable(Subject(CORRECT), call), expected.expand(2, 1, queries, 5))


def test_a_bound_as_wide_as_the_output_is_no_evidence() -> None:
    call = draw(Case(d_value=2))
    expected = expect(call, CORRECT.profile)
    largest = expected.out.abs().max()

    def with_bound(fraction: float) -> Expected:
        return replace(expected, bound=(fraction * largest).expand(expected.out.shape))

    require_evidence(call, expected)
    require_evidence(call, with_bound(0.4))
    require_evidence(call, replace(with_bound(0.4), out=torch.zeros_like(expected.out)))
    for fraction in (0.6, math.inf):
        with pytest.raises(NotClaimed, match="as large as the output"):
            require_evidence(call, expected, with_bound(fraction))
