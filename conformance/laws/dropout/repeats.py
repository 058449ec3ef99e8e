"""A law of DRP: kept weights repeat at no distance, within a call or in the next one.

The dropout mask says of each weight whether it is kept.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.frequencies import FALSE_ALARM
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.helpers.dropout import seeded, without_dropout
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

LAYERS = 8
"""Keys that may share a channel: the values 1, 2, 4 to 128 show which of them are kept."""

COARSE = 2.0**-8
"""Largest error of a probability of one half that a kernel stores in eight bits."""

SMALL = Case(
    batch=2,
    heads=3,
    kv_heads=3,
    queries=17,
    keys=32,
    d_head=32,
    d_value=32,
    dtype=torch.float32,
    dropout_p=0.5,
)


@law(
    "DRP-5",
    pinned=(
        SMALL,
        SMALL.but(queries=33, keys=256, d_head=64, d_value=64),
        SMALL.but(batch=1, heads=2, kv_heads=2, queries=257, keys=64, d_head=64, d_value=64),
        # a stream of random numbers may begin again after 256 or 512 queries or keys
        SMALL.but(batch=1, heads=2, kv_heads=2, queries=1025, keys=16, d_head=64, d_value=64),
        SMALL.but(queries=9, keys=512, d_head=64, d_value=64),
        SMALL.but(queries=5, keys=1024, d_head=128, d_value=128),
        *vary(SMALL, dtype=(torch.float64, torch.float16, torch.bfloat16), kv_heads=(1,)),
    ),
    wide=(
        SMALL.but(batch=8, heads=9, kv_heads=9, queries=33, keys=64, d_head=64, d_value=64),
        # over 2**20 weights
        SMALL.but(heads=1, kv_heads=1, queries=1025, keys=520, d_head=72, d_value=72),
    ),
)
def law_dropout_masks_do_not_repeat(subject: Subject, case: Case) -> None:
    """DRP-5: elements of dropout masks at any distance agree no more often than by chance.

    With probability one half, the agreement of the elements at two positions is a fair coin. The
    pairs of positions at one distance form chains, so that all these coins are independent.
    """
    call = _call_with_codes(subject, case)
    with seeded(case):
        masks = torch.stack([_read_dropout_mask(subject, call) for _ in range(2)])
    signs = masks.double() * 2 - 1
    agreeing, pairs = _count_agreements(signs)
    share = agreeing / pairs
    chance = share.clamp(0.5 - COARSE, 0.5 + COARSE)
    surprise = pairs * _divergence(share, chance)
    surprise[(0,) * surprise.dim()] = 0.0  # a position agrees with itself
    # two-sided, at each distance
    limit = math.log(2 * surprise.numel() / FALSE_ALARM)
    if float(surprise.max()) > limit:
        at = torch.unravel_index(surprise.argmax(), surprise.shape)
        names = ("calls", "batch elements", "heads", "queries", "keys")
        distance = [
            int(index) if index < size else int(index) - period
            for index, size, period in zip(at, masks.shape, surprise.shape, strict=True)
        ]
        offsets = ", ".join(f"{steps} {name}" for steps, name in zip(distance, names, strict=True))
        raise Violation(
            f"of {int(pairs[at])} pairs of weights {offsets} apart, {int(agreeing[at])} share "
            "their dropout masks; a correct implementation does so less than once in "
            f"{1 / FALSE_ALARM:.0e} runs"
        )


def _call_with_codes(subject: Subject, case: Case) -> Call:
    """Return a call with equal attention weights; a channel encodes several keys' dropout mask.

    Raises:
        NotClaimed: if the case is refused, or if rounding could hide whether a weight is dropped.
    """
    call = subject.draw(case)
    key = torch.arange(case.keys, device=call.value.device)
    code = torch.zeros(case.keys, case.d_value, dtype=case.dtype, device=key.device)
    code[key, key % case.d_value] = (2.0 ** (key // case.d_value)).to(case.dtype)
    call = call.but(query=torch.zeros_like(call.query), value=code.expand_as(call.value).clone())
    coarse = float(subject.expect(without_dropout(call)).bound.max())
    if case.keys > LAYERS * case.d_value or 2 * coarse * case.keys >= 1:
        raise NotClaimed("rounding could hide whether a weight is dropped")
    return call


def _read_dropout_mask(
    subject: Subject, call: Call
) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """Read the kept weights of one call from its output, whose channels sum scaled weights."""
    out = subject.call(call)
    expected = subject.expect(without_dropout(call))
    keys, d_value = call.value.shape[2:]
    layers = -(-keys // d_value)
    number = (out.double() * keys / 2).nan_to_num(0.0).round().clamp(0, 2**layers - 1)
    check_close(
        out,
        number * 2 / keys,
        2 * expected.bound,
        what="out",
        message="the output is no sum of weights that are each dropped or doubled",
        dtype=call.value.dtype,
    )
    layers_kept = [number.long() >> layer & 1 for layer in range(layers)]
    return torch.cat(layers_kept, dim=-1)[..., :keys].bool()


def _count_agreements(
    signs: Float64[torch.Tensor, "*places"],
) -> tuple[Float64[torch.Tensor, "*distances"], Float64[torch.Tensor, "*distances"]]:
    """Count the pairs that agree at each distance along all axes, and all pairs there.

    Negative distances are at the end of an axis, as in Fourier transforms; the last axis has
    none, because a distance and its opposite have the same pairs.
    """
    sizes = [2 * size - 1 for size in signs.shape]
    axes = range(signs.dim())
    # by NumPy: with torch 2.13.0 on a CPU this corrupted memory
    spectrum = np.fft.rfftn(signs.cpu().numpy(), s=sizes, axes=axes)
    power = np.abs(spectrum) ** 2
    sums = np.fft.irfftn(power, s=sizes, axes=axes)[..., : signs.shape[-1]].round()
    difference = torch.from_numpy(sums).to(signs.device)
    pairs = torch.ones((), dtype=torch.float64, device=signs.device)
    for axis, size in enumerate(signs.shape):
        counts = size - torch.arange(size, dtype=torch.float64, device=signs.device)
        if axis < signs.dim() - 1:
            counts = torch.cat([counts, counts[1:].flip(0)])
        pairs = pairs * counts.view(-1, *[1] * (signs.dim() - 1 - axis))
    return (pairs + difference) / 2, pairs


def _divergence(
    share: Float64[torch.Tensor, "*distances"], chance: Float64[torch.Tensor, "*distances"]
) -> Float64[torch.Tensor, "*distances"]:
    """Return KL(share ‖ chance) of two coins, in nats."""
    dropped, chance_dropped = 1 - share, 1 - chance
    nats: torch.Tensor = torch.xlogy(share, share / chance) + torch.xlogy(
        dropped, dropped / chance_dropped
    )
    return nats
