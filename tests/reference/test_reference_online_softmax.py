"""The six ways of the reference: equal to torch's functions and kernels, over drawn sizes."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.operators.online_softmax.bounds import bounds, merge_bounds
from attnspec.conformance.operators.online_softmax.case import (
    OnlineSoftmaxCase,
    Parts,
    Scores,
    SoftmaxMergeCase,
)
from attnspec.reference import online_softmax as way
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.spec.online_softmax import Kept, LogBase, OnlineSoftmaxProfile

DRAWN = st.builds(
    OnlineSoftmaxCase,
    queries=st.integers(1, 9),
    keys=st.integers(1, 70),
    d_value=st.integers(1, 9),
    scores=st.sampled_from(Scores),
    seed=st.integers(0, 2**16),
)
SPLIT = OnlineSoftmaxProfile(keeps=Kept.LOG_SUM_EXP)


def assert_within(got, expected, bound):
    for one, two, allowed in zip(got, expected, (bound.out, bound.lse), strict=True):
        distance = torch.where(one == two, 0.0, one - two).abs()
        assert bool((distance <= 2 * allowed).all()), float((distance / allowed).max())


def of_torch(scores, values):
    """Torch's functions; rows without visible scores are excluded."""
    return torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1)


def of_flash(scores, values):
    """Torch's flash kernel for CPUs: queries and keys are zero, and the scores are its mask."""
    zeros = torch.zeros(1, 1, *values.shape, dtype=values.dtype)
    query = zeros.new_zeros(1, 1, len(scores), values.shape[-1])
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, zeros, values[None, None], attn_mask=scores[None, None]
    )
    return out[0, 0], lse[0, 0]


PEERS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "functions": of_torch,
    "flash": of_flash,
}


@pytest.mark.parametrize("peer", PEERS)
@settings(max_examples=200)
@given(case=DRAWN, tile=st.integers(1, 20), parts=st.integers(1, 5))
def test_each_way_equals_torch(peer, case, tile, parts):
    scores, values = case.draw()
    is_read = (scores != -torch.inf).any(-1)
    scores = scores[is_read]
    if not len(scores):
        return
    expected = PEERS[peer](scores, values)
    for results in (
        way.safe(scores, values),
        way.online(scores, values),
        way.tiled(scores, values, tile=tile),
        way.split(scores, values, parts=parts),
    ):
        assert_within(results, expected, bounds(scores, values, SPLIT))
    if float(torch.where(scores == -torch.inf, 0.0, scores).abs().max()) < 500:
        profile = OnlineSoftmaxProfile(keeps=Kept.SUM)
        assert_within(way.naive(scores, values), expected, bounds(scores, values, profile))


@settings(max_examples=200)
@given(case=DRAWN)
def test_recomputed_gradients_equal_those_of_torch(case):
    scores, values = case.draw()
    scores = scores[(scores != -torch.inf).any(-1)]
    if not len(scores):
        return
    grad_out = case.draw_gradient()[: len(scores)]
    leaves = [each.clone().requires_grad_() for each in (scores, values)]
    expected = torch.autograd.grad(of_torch(*leaves)[0], leaves, grad_out)
    got = way.recomputed_gradients(scores, values, *way.tiled(scores, values), grad_out)
    allowed = bounds(scores, values, OnlineSoftmaxProfile(), grad_out)
    for one, two, bound in zip(got, expected, (allowed.scores, allowed.values), strict=True):
        assert bool(((one - two).abs() <= 2 * bound).all())


def merger():
    """Return the merge of torch's context parallelism, or skip."""
    name = "torch.distributed.tensor.experimental._context_parallel._attention"
    module = pytest.importorskip(name, reason="this torch has no such module")
    if not hasattr(module, "_SDPAMerger"):
        pytest.skip("this torch has no such class")

    def merged(out_a, lse_a, out_b, lse_b):
        state = module._SDPAMerger(convert_to_f32=False, seq_dim=-2)
        state.step(out_a, lse_a, partial=False)
        state.step(out_b, lse_b, partial=False)
        return state.results()

    return merged


@settings(max_examples=200)
@given(
    case=st.builds(
        SoftmaxMergeCase,
        rows=st.sampled_from([(1,), (4,), (2, 3), (2, 3, 5)]),
        d_value=st.integers(1, 9),
        parts=st.sampled_from([Parts.NORMAL, Parts.EQUAL, Parts.FAR, Parts.LARGE, Parts.NEGATIVE]),
        seed=st.integers(0, 2**16),
    )
)
def test_a_merge_equals_that_of_context_parallelism(case):
    a, b = case.draw(LogBase.E)
    assert_within(way.merge(*a, *b), merger()(*a, *b), merge_bounds(*a, *b, LogBase.E))


def test_the_merge_of_context_parallelism_gives_nan_for_empty_parts():
    """As ONL-18 says of PyTorch 2.13: if it no longer does, the page is to be changed."""
    full = torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    empty = torch.zeros_like(full[0]), torch.full_like(full[1], -torch.inf)
    out, lse = merger()(*empty, *full)
    assert torch.equal(out, full[0])
    assert bool(lse.isnan().all())


@settings(max_examples=50)
@given(
    queries=st.integers(1, 20),
    keys=st.integers(1, 20),
    tile=st.integers(1, 8),
    seed=st.integers(0, 2**16),
)
def test_attention_by_tiles_equals_the_reference(queries, keys, tile, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(count, width, dtype=torch.float64, generator=generator)
        for count, width in ((queries, 4), (keys, 4), (keys, 3))
    )
    out, lse = way.tiled_attention(query, key, value, scale=0.5, tile=tile)
    operands = (each[None, None] for each in (query, key, value))
    expected = scaled_dot_product_attention(*operands, scale=0.5, return_lse=True)
    torch.testing.assert_close((out, lse), tuple(each[0, 0] for each in expected))
