"""The bound of outputs whose parts are rounded: correct kernels keep it, and it is not too wide."""

import math
from dataclasses import replace

import pytest
import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.laws.packed.parts import rising
from attnspec.conformance.mutants.bases.packed import PROFILE, correct
from attnspec.conformance.operators.packed.oracle import expect_rows, padded_profile
from attnspec.implementations.adapters.packed_as_padded import as_padded
from attnspec.spec.packed import NEVER_ROUNDED, Merging, PackedProfile, RoundedParts

F16, BF16 = torch.float16, torch.bfloat16
SIXTEEN = (F16, BF16)
SEEDS = 100


def merged(parts, merging, dtype):
    """Merge outputs of parts by their log-sum-exps in float32; all but the last are rounded."""

    def weigh(some):
        lse = torch.stack([each for _, each in some]).logsumexp(0)
        shares = [(each - lse).exp()[..., None] for _, each in some]
        return sum(out * share for (out, _), share in zip(some, shares, strict=True)), lse

    if merging is Merging.TOGETHER:
        return weigh(parts)[0]
    while len(parts) > 1:
        pairs = 1 if merging is Merging.RUNNING else len(parts) // 2
        new = [weigh(parts[2 * i : 2 * i + 2]) for i in range(pairs)]
        if len(parts) > 2:
            new = [(out.to(dtype).float(), lse) for out, lse in new]
        parts = new + parts[2 * pairs :]
    return parts[0][0]


def in_parts(q, k, v, size, merging, *, normalized=True):
    """Compute attention (heads, queries, channels) in parts of some keys, rounded to 16 bits."""
    dtype, parts = v.dtype, []
    for begin in range(0, k.shape[1], size):
        scores = (q.float() @ k[:, begin : begin + size].float().mT) * q.shape[-1] ** -0.5
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        out = weights.to(dtype).float() @ v[:, begin : begin + size].float()
        out = (out / total).to(dtype).float() if normalized else out.to(dtype).float() / total
        parts.append((out, (top + total.log())[..., 0]))
    return merged(parts, merging, dtype).to(dtype)


def drawn(seed, dtype, heads=3):
    """Return operands (heads, length, channels) of one of several families, and a size of parts."""
    g = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=g))

    queries, keys, width = number(1, 3), number(2, 70), number(1, 6)
    q, k, v = (
        torch.randn(heads, length, width, generator=g, dtype=torch.float64)
        for length in (queries, keys, keys)
    )
    family = number(0, 7)
    if family == 0:
        q = 6 * q
    elif family == 1:
        q = 0 * q
        v = 1 + torch.arange(keys)[None, :, None] * 2.0 ** -number(3, 12) + 0 * v
    elif family == 2:
        v = 300 * v.sign() + v
    elif family == 3:
        v = v.abs() * 2.0 ** -number(8, 24)
    elif family == 4:
        v = v.abs() + 1
    elif family == 5:
        q, k = q.abs() * 5, k.abs() * torch.linspace(0, 4, keys)[:, None]
    elif family == 6:
        q = torch.ones_like(q)
        k = -0.69 + 0.004 * torch.rand(k.shape, generator=g, dtype=torch.float64)
        k[:, :: number(2, 9)] = 0.0
        v = 1 + torch.rand(v.shape, generator=g, dtype=torch.float64) / 8
    return [x.to(dtype) for x in (q, k, v)], number(1, max(keys // number(1, 12), 1))


def used(operands, size, merging, *, normalized=True, declared=None):
    """Return the largest share of the bound that a correct kernel uses.

    Args:
        operands: query, key and value, (heads, length, channels).
        size: keys of a part.
        merging: the order of the merges.
        normalized: whether outputs of parts are divided by their sums before they are rounded.
        declared: the roundings that the bound has; None for those of the kernel.
    """
    q, k, v = operands
    out = in_parts(q, k, v, size, merging, normalized=normalized).double()
    if declared is None:
        declared = RoundedParts(size=size, merging=merging)(q.shape[1], k.shape[1], 0)
    rows = bounded(declared, *operands)
    return float(((out.transpose(0, 1) - rows.out).abs() / rows.bound).max())


def bounded(roundings, q, k, v):
    """Return the expected rows of a sequence whose outputs of parts are rounded so often."""
    profile = padded_profile(PackedProfile(), roundings=roundings)
    call = Call(query=q[None], key=k[None], value=v[None])
    return expect_rows(call, profile, roundings=roundings)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("merging", Merging)
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_correct_kernels_with_rounded_parts_are_within_the_bound(dtype, merging, normalized):
    shares = [used(*drawn(seed, dtype), merging, normalized=normalized) for seed in range(SEEDS)]
    assert max(shares) <= 1


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_running_output_needs_its_declaration(dtype):
    """Values rise by so little that what a part adds is lost."""
    k = torch.randn(1, 1024, 4).to(dtype)
    value = rising(1024, torch.empty(1, 1, 8, dtype=dtype)).transpose(0, 1)
    operands = [torch.zeros(1, 1, 4, dtype=dtype), k, value]
    assert used(operands, 16, Merging.RUNNING) <= 1
    assert used(operands, 16, Merging.RUNNING, declared=1) > 4
    assert used(operands, 16, Merging.RUNNING, declared=0) > 5


def unlucky():
    """Return a call whose weights, parts of 44 keys and result are all rounded up, in bfloat16.

    The weights lie just above the middle of two numbers, and so do the outputs of both parts and
    their mean; found by trying numbers of keys and values.
    """
    residue, channels = math.log(0.5 + 2**-9 + 2**-14), []
    for _ in range(4):
        channels.append(float(torch.tensor(residue).to(BF16)))
        residue -= channels[-1]
    key = torch.tensor(channels).repeat(88, 1)
    value = torch.zeros(88, 4)
    for part, v in enumerate((1 + 6 / 128, 1 + 7 / 128)):
        key[44 * part] = 0.0
        value[44 * part + 1 : 44 * part + 44] = v
    # the scale of a head of four channels is a half
    operands = (torch.full((1, 4), 2.0), key, value)
    return [x[None].to(BF16) for x in operands]


def test_one_rounding_is_seen_where_every_rounding_goes_the_same_way():
    shares = [used(unlucky(), 44, Merging.TOGETHER, declared=n) for n in (0, 1)]
    assert shares[0] > 1.3
    assert 0.8 < shares[1] <= 1


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_the_roundings_of_parts_are_no_wider_than_they_can_be(dtype):
    """Of values of one sign, roundings that all go up use all that the bound has for them."""
    unit = torch.finfo(dtype).eps / 2
    q, k = (torch.randn(1, n, 4, dtype=torch.float64).to(dtype) for n in (3, 40))
    value = torch.rand(1, 40, 4).to(dtype) + 1
    rows = [bounded(n, q, k, value) for n in (0, 1)]
    added = rows[1].bound - rows[0].bound
    assert 0.97 < float((unit * rows[0].out / added).min()) <= 1


def test_in_float32_only_the_merges_of_a_chain_widen_the_bound():
    operands = [torch.randn(1, 20, 4) for _ in range(3)]
    bounds = [bounded(n, *operands).bound for n in (0, 1, 3)]
    assert torch.equal(bounds[0], bounds[1])
    assert bool((bounds[2] > bounds[1]).all())
    assert bool((bounds[2] <= 3.1 * bounds[1]).all())


def test_parts_out_of_range_have_no_bound():
    value = torch.full((1, 4, 2), 40000.0, dtype=F16)
    operands = [value / 1e5, value / 1e5, value]
    assert bool(bounded(0, *operands).bound.isfinite().all())
    assert bool(bounded(1, *operands).bound.isinf().all())


def test_answers_count_roundings():
    running, pairs = Merging.RUNNING, Merging.PAIRS
    for answer, keys, page_size, expected in (
        (NEVER_ROUNDED, 1000, 16, 0),
        (RoundedParts(), 1000, 0, 1),
        (RoundedParts(), 1, 0, 0),
        (RoundedParts(splits=8), 3, 0, 1),
        (RoundedParts(splits=8, merging=running), 1000, 0, 7),
        (RoundedParts(splits=8, merging=running), 3, 0, 2),
        (RoundedParts(splits=8, merging=pairs), 1000, 0, 3),
        (RoundedParts(pages=2, merging=running), 100, 16, 3),
        (RoundedParts(size=64, merging=pairs), 65, 16, 1),
        (RoundedParts(size=64, merging=pairs), 64, 16, 0),
    ):
        assert answer(1, keys, page_size) == expected
    assert str(NEVER_ROUNDED) == "never"
    assert str(RoundedParts(splits=4, merging=pairs)) == "rounded 4 splits pairs"


@pytest.mark.parametrize("numbers", [{"splits": 2, "size": 3}, {"size": 0}])
def test_numbers_that_do_not_fit_are_refused(numbers):
    with pytest.raises(ValueError, match="one positive number"):
        RoundedParts(**numbers)


def test_gradients_and_padded_calls_are_refused():
    declared = correct("it")
    profile = replace(PROFILE, partial_outputs=lambda queries, keys, page_size: 1)
    with pytest.raises(ValueError, match="gradients have no bound"):
        replace(declared, profile=profile)
    without = replace(declared, profile=profile, has_gradients=False)
    with pytest.raises(ValueError, match="no answer for rounded parts"):
        as_padded(without)
