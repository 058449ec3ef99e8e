r"""Quality: test whether errors within their bounds are as small as independent roundings'.

The bound is for the worst case, in which all roundings conspire. On generic random inputs they do
not: the roundings of weights, of dS and of results are as good as independent, each evenly spread
over ± u of its result, so that its variance is u²/3. With the symbols of the bound,

    σ²(O)  = ⅓ (u_p² Σ_j p²v² + u_o² O²)
    σ²(dV) = ⅓ (u_p² Σ_i p²dO² + u_o² dV²)
    σ²(dQ) = ⅓ (scale² (u_p² Σ_j dS²k² + v_D (Σ_j p k)²) + u_o² dQ²)
    σ²(dK) = ⅓ (scale² (u_p² Σ_i dS²q² + Σ_i v_D p²q²) + u_o² dK²)
    v_D    = u_o² Σ_c dO²O² + u_p² Σ_j p²dP²

and each variance has ⅓ f² besides for each number that may underflow. σ itself grows by the bound
of the same call in float32 whose sums err like √T roundings instead of T: it covers the
intermediate results that are not rounded to 16 bits.
"""

import math
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float64

from attnspec.conformance.attention.bounds.roundoff import FLOOR, UNIT
from attnspec.conformance.attention.bounds.rows import per_head
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.memoize import memoize
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.violation import QualityWarning
from attnspec.spec import Case, Profile, Rounding, RoundingLevel, Values

LARGEST = 1.2
"""The largest root mean square of error over σ that chance explains."""

LEAST = 32
"""The least number of queries and of keys: the mean needs many elements."""

KEPT = 16
"""Cached spreads; subjects that are judged by the same calls share them."""

GOOD_EXP = 8.0
"""Error of a usual exponential in units of *u*; the bound allows four times as much."""


def eligible(case: Case, profile: Profile, *, backward: bool = False) -> str | None:
    """Return the reason why σ does not apply to a case, or None if it applies.

    Args:
        case: the case.
        profile: the declared profile.
        backward: true for gradients.
    """
    rounding = profile.rounding
    if case.dtype not in (torch.float16, torch.bfloat16):
        return "errors are compared with σ in 16-bit types only"
    if case.values is not Values.NORMAL or min(case.queries, case.keys) < LEAST:
        return "the inputs are not generic"
    if rounding.level is not RoundingLevel.FUSED or rounding.accumulator is not None:
        return f"level {rounding.level} has roundings that σ does not include"
    group = case.heads // case.kv_heads
    if backward and rounding.partial_writes(case.queries, case.keys, group) != (1, 1):
        return "gradients are written back in parts"
    return None


@partial(memoize, kept=KEPT)
def spread_of_output(
    call: Call, profile: Profile
) -> Float64[torch.Tensor, "batch heads queries d_value"]:
    """Return σ of each element of the output of a plain call."""
    expected = expect(call, profile)
    p, v = (
        _weights(expected.weights),
        per_head(call.value.double(), call.query.shape[1], profile.grouping),
    )
    u, f = UNIT[call.value.dtype], FLOOR[call.value.dtype]
    variance = (u * p).square() @ v.square() + (u * expected.out).square()
    variance = variance + f**2 * ((p > 0).double() @ v.square() + 1)
    narrow = expect(_in_float32(call), _wide(call, profile))
    return (variance / 3).sqrt() + narrow.bound


@partial(memoize, kept=KEPT)
def spread_of_gradients(
    call: Call, grad: torch.Tensor, profile: Profile
) -> dict[str, Float64[torch.Tensor, "..."]]:
    """Return σ of each element of the gradients of a plain call whose heads share no keys.

    Returns:
        By operand: `query`, `key`, `value`.
    """
    expected = expect(call, profile)
    gradients = expect_gradients(call, grad, profile)
    p, O = _weights(expected.weights), expected.out  # noqa: E741
    q, k, v, dO = (x.double() for x in (call.query, call.key, call.value, grad))
    scale = 1 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale
    u, f = UNIT[call.value.dtype], FLOOR[call.value.dtype]
    live = (p > 0).double()
    dP = dO @ v.mT
    dS = p * (dP - (p * dP).sum(-1, keepdim=True))
    v_D = u**2 * (dO.square() * O.square()).sum(-1, keepdim=True)
    v_D = v_D + u**2 * (p * dP).square().sum(-1, keepdim=True)
    rounded = (u * dS).square() + f**2 * live
    variances = {
        "query": scale**2 * (rounded @ k.square() + v_D * (p @ k).square()),
        "key": scale**2 * ((rounded + v_D * p.square()).mT @ q.square()),
        "value": ((u * p).square() + f**2 * live).mT @ dO.square(),
    }
    narrow = expect_gradients(_in_float32(call), grad.float(), _wide(call, profile))
    spreads = {}
    for name, variance in variances.items():
        variance = variance + (u * getattr(gradients, name).exact).square() + f**2
        spreads[name] = (variance / 3).sqrt() + getattr(narrow, name).bound
    return spreads


def check_quality(
    got: torch.Tensor,
    exact: Float64[torch.Tensor, "*shape"],
    spread: Float64[torch.Tensor, "*shape"],
    *,
    what: str,
) -> float:
    """Check that the errors are together no larger than chance makes them.

    Args:
        got: a result within its bound.
        exact: the exact result.
        spread: σ of each element, positive.
        what: the name of the tensor.

    Returns:
        The root of the mean square of error over σ.

    Raises:
        QualityWarning: if that root exceeds `LARGEST`, or is NaN.
    """
    share = float(((got.double() - exact) / spread).square().mean().sqrt())
    if not share <= LARGEST:
        raise QualityWarning(
            f"the errors of {what} are {share:.2f} times as large as independent roundings make "
            f"them, {LARGEST} at most by chance: something is rounded too often, or to one side"
        )
    return share


def _weights(weights: torch.Tensor | None) -> torch.Tensor:
    if weights is None:
        raise ValueError("the call is too long to know its weights")
    return weights


def _in_float32(call: Call) -> Call:
    """Return the same call in float32, so that no result is rounded to 16 bits."""
    wide = {name: getattr(call, name).float() for name in ("query", "key", "value")}
    return call.but(**wide)


def _wide(call: Call, profile: Profile) -> Profile:
    """Return a profile of float32 arithmetic whose sums err like the root of their length."""
    longest = 2 * max(call.query.shape[2], call.key.shape[2]) + 16
    unit = UNIT[torch.float32] / math.sqrt(longest)
    return replace(profile, rounding=Rounding(accumulator=unit, exp_error=GOOD_EXP))
