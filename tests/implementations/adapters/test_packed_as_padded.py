"""Packed and paged attentions as padded ones, and padded ones as packed: the laws of both."""

import warnings
from dataclasses import replace

import pytest
import torch
from plain_packed import is_right
from plain_packed import outcomes as packed_outcomes

from attnspec.conformance.api import check_attention
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.implementations import load, load_operator
from attnspec.implementations.adapters import as_packed, as_padded, from_packed, from_paged
from attnspec.spec import (
    Case,
    Feature,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
)
from attnspec.spec.packed import IndexType, LseLayout, PackedProfile

LAWS = (
    "output-equals-the-definition",
    "batch-elements-are-independent",
    "the-diagonal-lies-where-the-profile-says",
    "a-window-shows-exactly-its-keys",
    "a-head-reads-its-own-group",
    "padding-equals-a-shorter-sequence",
    "positions-count-from-the-length",
    "a-batch-of-lengths-equals-separate-calls",
    "ATT-30",
    "GRD-1",
)
PADDING = Mask(kind=MaskKind.BOOL, pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nested tensors are a prototype
        yield


def judged(declared, names=LAWS):
    return {each.law: each for each in check_attention(declared, effort="smoke", laws=names)}


def broken(records):
    """Return the message of each law that is broken."""
    return {law: each.message for law, each in records.items() if each.outcome not in CONFORMING}


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("name", ["packed_eager", "packed_nested", "paged_eager"])
def test_laws_of_padded_calls_judge_packed_and_paged_attention(name):
    # now and then torch 2.13's gradients of nested tensors are NaN
    names = LAWS[:-1] if name == "packed_nested" else LAWS
    records = judged(as_padded(load_operator(name)), names)
    assert not broken(records)
    passed = {law for law, each in records.items() if each.outcome is Outcome.PASSED}
    assert passed >= {
        "output-equals-the-definition",
        "batch-elements-are-independent",
        "a-batch-of-lengths-equals-separate-calls",
    }
    if name != "packed_nested":
        assert "a-window-shows-exactly-its-keys" in passed


@pytest.mark.slow
@pytest.mark.rotating(parts=8)
@pytest.mark.parametrize("name", ["packed_eager", "paged_eager"])
def test_every_law_of_a_call_that_can_be_expressed_holds(name):
    records = judged(as_padded(load_operator(name)), ())
    assert not broken(records)
    assert sum(each.outcome is Outcome.PASSED for each in records.values()) >= 100


@pytest.mark.rotating(parts=4)
def test_a_kernel_that_reads_other_sequences_fails_as_a_padded_one():
    declared = load_operator("packed_eager")

    def joined(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options):
        ends = [torch.stack([each[0], each[-1]]) for each in (cu_seq_q, cu_seq_k)]
        return declared.function(query, key, value, *ends, max_q, max_k, **options)

    records = judged(as_padded(replace(declared, function=joined)))
    assert records["batch-elements-are-independent"].outcome is Outcome.FAILED


def test_nan_that_spreads_is_a_known_deviation():
    declared = load_operator("packed_eager")

    def spreading(query, key, value, cu_seq_q, cu_seq_k, *rest, **options):
        """Give the keys of other sequences a weight of zero, as a mask of finite numbers does."""
        query = query.clone()
        for b in range(len(cu_seq_q) - 1):
            others = torch.ones(len(key), dtype=torch.bool)
            others[cu_seq_k[b] : cu_seq_k[b + 1]] = False
            query[cu_seq_q[b] : cu_seq_q[b + 1]] += (key[others].sum() + value[others].sum()) * 0.0
        return declared.function(query, key, value, cu_seq_q, cu_seq_k, *rest, **options)

    profile = replace(declared.profile, neighbours=MaskedNonfinite.PROPAGATES)
    padded = as_padded(replace(declared, function=spreading, profile=profile))
    law = "batch-elements-are-independent"
    assert judged(padded, [law])[law].outcome is Outcome.EXPECTED_FAILURE


def test_what_a_packed_call_cannot_say_is_refused_with_the_reason():
    supports = as_padded(load_operator("packed_eager")).supports
    case = Case(batch=2, queries=3, keys=4, d_head=4, d_value=4)
    assert supports(case) is None
    assert supports(case.but(mask=PADDING)) is None
    for changed, reason in (
        (case.but(batch=0), "at least one sequence"),
        (case.but(d_value=3), "of as many channels"),
        (case.but(mask=Mask()), "no other mask"),
        (case.but(mask=PADDING, is_causal=True), "lies elsewhere"),
        (case.but(mask=PADDING, window=(1, 0)), "lies elsewhere"),
    ):
        assert reason in str(supports(changed))
    nested = as_padded(load_operator("packed_nested")).supports
    assert "length zero" in str(nested(case.but(keys=0)))
    assert "is causal" in str(as_padded(load_operator("paged_transformers")).supports(case))


def test_functions_without_a_declaration_are_adapted():
    packed, paged = (load_operator(f"{kind}_eager").function for kind in ("packed", "paged"))
    query, key, value = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64).unbind()
    options = {"is_causal": True, "window": (2, None), "return_lse": True}
    out, lse = from_packed(packed)(query, key, value, **options)
    right, right_lse = load("eager").attention(query, key, value, **options)
    assert torch.allclose(out, right)
    assert torch.allclose(lse, right_lse)
    # **options of the paged function name nothing
    got = from_paged(paged, page_size=3)(query, key, value, window=(1, 1))
    assert torch.allclose(got, load("eager").attention(query, key, value, window=(1, 1)))
    with pytest.raises(TypeError, match="no parameter seqused_k, block_table"):
        from_paged(packed)
    with pytest.raises(TypeError, match="no parameter cu_seq_q"):
        from_packed(load("eager").attention)


def test_the_layout_of_the_log_sum_exp_is_turned():
    function = load_operator("packed_eager").function

    def tokens_first(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux=None):
        out = function(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux=return_aux)
        return (out[0], out[1].T) if isinstance(out, tuple) else out

    x = torch.randn(2, 3, 5, 4)
    attention = from_packed(tokens_first, lse_layout=LseLayout.TOKENS_FIRST)
    lse = attention(x, x, x, return_lse=True)[1]
    assert torch.allclose(lse, load("eager").attention(x, x, x, return_lse=True)[1])


@pytest.mark.parametrize("operator", ["packed", "paged"])
def test_offsets_and_tables_get_the_declared_integer_type(operator):
    declared, seen = load_operator(f"{operator}_eager"), set()

    def of_int64(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, seqused_k=None, block_table=None
    ):
        given = (cu_seq_q, cu_seq_k, seqused_k, block_table)
        seen.update(each.dtype for each in given if each is not None)
        paged = {"seqused_k": seqused_k, "block_table": block_table}
        own = {name: each for name, each in paged.items() if each is not None}
        return declared.function(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **own)

    x = torch.randn(2, 3, 5, 4)
    expected = load("eager").attention(x, x, x)
    profile = replace(declared.profile, index_type=IndexType.INT64)
    narrow = replace(declared, function=of_int64, features=frozenset(), profile=profile)
    adapt = from_packed if operator == "packed" else from_paged
    for attention in (as_padded(narrow).attention, adapt(of_int64, index_dtype=torch.int64)):
        assert torch.allclose(attention(x, x, x), expected)
        assert seen == {torch.int64}
    adapt(of_int64)(x, x, x)
    assert seen == {torch.int64, torch.int32}


def test_a_mask_must_hide_the_last_keys_alone():
    x = torch.randn(2, 1, 3, 4)
    attention = from_packed(load_operator("packed_eager").function)
    hidden = torch.tensor([[True, True, False], [True, False, False]])[:, None, None]
    expected = load("eager").attention(x, x, x, attn_mask=hidden)
    assert torch.allclose(attention(x, x, x, attn_mask=hidden), expected)
    with pytest.raises(ValueError, match="must hide the last keys"):
        attention(x, x, x, attn_mask=hidden.flip(-1))
    with pytest.raises(ValueError, match="must be bool"):
        attention(x, x, x, attn_mask=hidden[0])
    with pytest.raises(ValueError, match="move the diagonal"):
        attention(x, x, x, attn_mask=hidden, is_causal=True)
    with pytest.raises(ValueError, match="not negative"):
        attention(x, x, x, window=(-1, 0))


@pytest.mark.parametrize("name", ["eager", "sdpa_math"])
def test_laws_of_packed_sequences_judge_a_padded_attention(name):
    declared = as_packed(load(name))
    assert isinstance(declared.profile, PackedProfile)
    found = packed_outcomes(
        declared.function,
        *declared.features,
        profile=declared.profile,
        supports=declared.supports,
    )
    assert is_right(found, least=12 if name == "eager" else 8)


def test_a_diagonal_at_the_upper_left_is_refused_for_unequal_lengths():
    declared = as_packed(load("sdpa_math"))
    assert Feature.CAUSAL in load("sdpa_math").features
    x, two = torch.randn(2, 1, 4), torch.tensor([0, 2])
    assert declared.function(x, x, x, two, two, 2, 2, window_size=(-1, 0)).shape == x.shape
    y, three = torch.randn(3, 1, 4), torch.tensor([0, 3])
    with pytest.raises(ValueError, match="2 queries and 3 keys"):
        declared.function(x, y, y, two, three, 2, 3, window_size=(-1, 0))
