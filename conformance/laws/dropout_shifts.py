"""A law of DRP that looks at all distances at once: no fates repeat, in a call or the next one."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.frequencies import FALSE_ALARM
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.dropout_sides import seeded, without
from attnspec.conformance.strategies import every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature

LAYERS = 4
"""Keys that share a channel: 1, 2, 4 and 8 tell which of them are kept."""

COARSE = 2.0**-8
"""How far from one half a probability may be that a kernel keeps in eight bits."""

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
    judges=Judged.ATTENTION,
    pinned=(
        SMALL,
        SMALL.but(queries=33, keys=256, d_head=64, d_value=64),
        SMALL.but(batch=1, heads=2, kv_heads=2, queries=257, keys=64, d_head=64, d_value=64),
        *every(SMALL, dtype=(torch.float64, torch.float16, torch.bfloat16), kv_heads=(1,)),
    ),
    needs={Feature.DROPOUT},
)
def law_fates_repeat_at_no_distance(subject: Subject, case: Case) -> None:
    """DRP-5: fates agree with those any way off, in this call or the next, no more than by chance.

    With probability one half, whether the fates of two places agree is a fair coin; and the pairs
    of places one distance apart form chains, so that all these coins are independent.
    """
    call = _coded(subject, case)
    with seeded(case):
        fates = torch.stack([_fates(subject, call) for _ in range(2)])
    signs = fates.double() * 2 - 1
    agreeing, pairs = _agreement(signs)
    share = agreeing / pairs
    chance = share.clamp(0.5 - COARSE, 0.5 + COARSE)
    surprise = pairs * _divergence(share, chance)
    surprise[(0,) * surprise.dim()] = 0.0  # a place agrees with itself
    # above and below, at each distance
    limit = math.log(2 * surprise.numel() / FALSE_ALARM)
    if float(surprise.max()) > limit:
        at = torch.unravel_index(surprise.argmax(), surprise.shape)
        names = ("calls", "batch elements", "heads", "queries", "keys")
        distance = [
            int(index) if index < size else int(index) - whole
            for index, size, whole in zip(at, fates.shape, surprise.shape, strict=True)
        ]
        told = ", ".join(f"{each} {name}" for each, name in zip(distance, names, strict=True))
        raise Violation(
            f"of {int(pairs[at])} pairs of weights {told} apart, {int(agreeing[at])} share their "
            "fates; a correct implementation does so less than once in "
            f"{1 / FALSE_ALARM:.0e} runs"
        )


def _coded(subject: Subject, case: Case) -> Call:
    """A call of equal weights whose every channel tells the fates of several keys.

    Raises:
        NotClaimed: where the case is refused, or rounding could hide a fate.
    """
    call = subject.draw(case)
    key = torch.arange(case.keys, device=call.value.device)
    code = torch.zeros(case.keys, case.d_value, dtype=case.dtype, device=key.device)
    code[key, key % case.d_value] = (2.0 ** (key // case.d_value)).to(case.dtype)
    call = call.but(query=torch.zeros_like(call.query), value=code.expand_as(call.value).clone())
    coarse = float(subject.expect(without(call)).bound.max())
    if case.keys > LAYERS * case.d_value or 2 * coarse * case.keys >= 1:
        raise NotClaimed("a fate could be hidden by rounding")
    return call


def _fates(subject: Subject, call: Call) -> Bool[torch.Tensor, "batch heads queries keys"]:
    """What one call keeps, read from its output; each channel must be a sum of grown weights."""
    out = subject.call(call)
    expected = subject.expect(without(call))
    keys, d_value = call.value.shape[2:]
    layers = -(-keys // d_value)
    number = (out.double() * keys / 2).nan_to_num(0.0).round().clamp(0, 2**layers - 1)
    check_close(
        out,
        number * 2 / keys,
        2 * expected.bound,
        what="out",
        message="no sum of weights that are dropped or doubled",
        dtype=call.value.dtype,
    )
    kept = [number.long() >> layer & 1 for layer in range(layers)]
    return torch.cat(kept, dim=-1)[..., :keys].bool()


def _agreement(
    signs: Float64[torch.Tensor, "*places"],
) -> tuple[Float64[torch.Tensor, "*distances"], Float64[torch.Tensor, "*distances"]]:
    """How many pairs agree at each distance along all axes, and how many pairs there are.

    Distances below zero stand at the end of an axis, as Fourier transforms have them; along the
    last axis there are none, because a distance and its opposite have the same pairs.
    """
    sizes = [2 * size - 1 for size in signs.shape]
    axes = range(signs.dim())
    # by NumPy: processes that did this with torch 2.13.0 on a CPU ended with corrupted memory
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
    """KL(share ‖ chance) of two coins, in nats."""
    dropped, due = 1 - share, 1 - chance
    nats: torch.Tensor = torch.xlogy(share, share / chance) + torch.xlogy(dropped, dropped / due)
    return nats
