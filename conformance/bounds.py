r"""The error bound of attention: how far from the exact result a conforming implementation may be.

For every element, |out - O| ≤ bound, in the worst case: for any order of summation, tiling,
splitting and rescaling, with every rounding that the declared level permits and no other. No
constant is fitted, nothing is averaged. Scores and weights p, their errors h and H, and the units u
are derived in `attnspec.conformance.bounds_scores` and `attnspec.conformance.roundoff`.

The chapter on numerics states what follows as NUM-3 (eq-num-spread, eq-num-3), NUM-4 (eq-num-4),
NUM-11 and NUM-12.

    O_ic = Σ_j p_ij v_jc        lse_i = m_i + ln l_i        T keys, g = γ_{2T+16}

**Logits.** Weights that err by relative η_j, |η_j| ≤ h_j, in numerator and denominator alike, give
O + Σ_j p_j (η_j - η̄) v_j / (1 + η̄) with η̄ = Σ p η. The numerator is Σ_j p_j η_j (v_j - O), so only
the spread of V about O feels them. The sink counts as a key whose value is zero.

    spread = min( Σ p h|v| + H|O| ,  √(Σ p h²) √(Σ p (v - O)²) ) / (1 - H)
    spread ≤ max(vmax - O, O - vmin)           over readable values: O is a convex combination

and the last is taken where H is 1/4 or more, alone from 9/10 on. A value that a row may not read
does not appear.

**Weights meet values.** Σ_j p̂_j|v_j| ≤ N = Σ_j (p_j + dp_j)|v_j|, and ≤ max|v|. Each weight is
rounded to the storage type, each product and sum to the accumulator, and what underflows is lost:

    product = ((1 + u_p)(1 + g) - 1) N + n f Σ_j |v_j|     n = 1; eager 3: exp, sum, quotient

**Row sum and division.** The sum errs by g, at levels rowsum and eager by (1 + g)(1 + u_l) - 1 and
T f since its terms are rounded; call that L. Dividing by it gives L/(1 - L) of everything so far:

    body = spread + product + L/(1 - L) (|O| + spread + product)

**Output.** body + u_o (|O| + body) + f.

**Log-sum-exp.** The logits move it by -ln(1 - H), and by no more than the largest exponent error;
the sum by -ln(1 - L); one logarithm of at most ln(T + 1), and m, lse and a change of base are
rounded:

    min(-ln(1 - H), max_j e_j) - ln(1 - L) + LOG_ERROR u ln(T + 1) + θ_6(u)(|m| + |lse|)

It is given in the accumulator's type; at level eager it may be stored, u_s(|lse| + …).

**Empty rows.** A row that reads nothing gives zero up to f, log-sum-exp -∞ exactly. Under the
profile that gives the mean over all keys, its bound is that of equal weights.

**Range.** Where nothing is promised (scores out of range; or Σ|v| over the readable keys beyond a
quarter of the accumulator's range, since unnormalised sums may overflow) the bound is infinite.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.bounds_scores import PerRow, Weights
from attnspec.conformance.roundoff import LOG_ERROR, Roundoff, compound, inverse, theta

Mixed = Float64[torch.Tensor, "batch heads rows d_value"]

CAPPED_FROM = 0.25
"""From this H on, the range of the readable values is worth its price."""

HOPELESS_FROM = 0.9
"""From this H on, nothing but the range is known."""

LEAST = 1e-300
"""Weights below this are lost in float64."""

LARGEST_SQUARED = 1e140
"""Beyond this, or below its inverse, values are not squared."""

AT_ONCE = 2**22
"""How many numbers are held at once while ranges are formed."""


@dataclass(frozen=True, kw_only=True)
class ForwardBound:
    """The forward bound of some rows.

    Attributes:
        O: the exact output, zero in a row that reads nothing.
        O_bound: its bound.
        lse_bound: the bound of the log-sum-exp.
        lse_roundings: the part of it that the logits do not cause.
    """

    O: Mixed  # noqa: E741
    O_bound: Mixed
    lse_bound: PerRow
    lse_roundings: PerRow


def forward_bound(
    weights: Weights, value: Float64[torch.Tensor, "batch heads keys d_value"], r: Roundoff
) -> ForwardBound:
    """Bound the output and the log-sum-exp (the derivation is at the top of this file).

    Args:
        weights: of some rows.
        value: finite; a value that is not has been replaced by zero.
        r: what may be rounded.
    """
    keys, d_value = value.shape[-2:]
    g = r.gamma(2 * keys + 16)
    size = value.abs()
    squared = value.clamp(-LARGEST_SQUARED, LARGEST_SQUARED).square()
    mixed = weights.p @ torch.cat([value, size, squared], dim=-1)
    O, N, squares = torch.split(mixed, d_value, dim=-1)  # noqa: E741
    floors = weights.readable.double() @ size

    # LOGITS
    H = weights.H
    grown = weights.ph @ size
    safe = torch.where(H < HOPELESS_FROM, 1 / (1 - H.clamp(max=HOPELESS_FROM)), 0.0)
    h_squares = (weights.ph.square() / weights.p.clamp(min=LEAST)).sum(-1, keepdim=True)
    if weights.p_sink is not None and weights.ph_sink is not None:
        h_squares = h_squares + weights.ph_sink.square() / weights.p_sink.clamp(min=LEAST)
    variance = (squares - O.square()).clamp(min=0) + 1e-15 * squares + 1 / LARGEST_SQUARED**2
    # where a weight vanishes in float64 but not in an implementation, the variance misses its value
    is_lost = floors > LARGEST_SQUARED
    if bool((weights.worst > 1).any()):
        is_lost |= ((weights.p < LEAST) & (weights.ph > 1e-250)).any(-1, keepdim=True)
    by_variance = torch.where(is_lost, math.inf, (h_squares * variance).sqrt())
    spread = torch.minimum(grown + H * O.abs(), by_variance) * safe
    N = (N + (grown + H * N)) * safe
    is_loose = H >= CAPPED_FROM
    if keys and bool(is_loose.any()):
        lowest, highest = _ranges(weights, value, is_loose)
        reach, most = torch.maximum(highest - O, O - lowest), torch.maximum(highest, -lowest)
        is_hopeless = H >= HOPELESS_FROM
        spread = torch.where(is_hopeless, reach, torch.minimum(spread, reach))
        N = torch.where(is_hopeless, most, torch.minimum(N, most))

    # PRODUCT, SUM, OUTPUT
    product = compound(r.u_p, g) * N + (3 if r.stores_scores else 1) * r.f * floors
    L = compound(g, r.u_l)
    L_row = L + weights.reads * (r.f if r.u_l else r.f_u)
    body = spread + product
    body = body + _inverse(L_row) * (O.abs() + body)
    bound = body + r.u_o * (O.abs() + body) + r.f
    is_out = weights.overflows | (4 * floors > r.largest)
    if r.stores_scores:
        is_out = is_out | (weights.reads > r.largest_stored)
    bound = torch.where(is_out, math.inf, bound)

    # LOG-SUM-EXP
    is_empty = weights.lse == -math.inf
    lse_size = torch.where(is_empty, 0.0, weights.lse.abs())
    sums = torch.where(L_row < 1, -torch.log1p(-L_row.clamp(max=0.5)), math.inf)
    logarithm = LOG_ERROR * r.u * math.log(keys + 1)
    roundings = sums + logarithm + theta(6, r.u) * (weights.peak + lse_size)
    logits = torch.where(H < 1, -torch.log1p(-H.clamp(max=1 - 1e-15)), math.inf)
    lse_bound = torch.minimum(logits, weights.worst) + roundings
    lse_bound = lse_bound + r.u_s * (lse_size + lse_bound) + r.f_u
    lse_bound = torch.where(is_empty, 0.0, lse_bound)
    return ForwardBound(
        O=O,
        O_bound=bound,
        lse_bound=torch.where(weights.overflows, math.inf, lse_bound),
        lse_roundings=roundings,
    )


def mean_bound(
    value: Float64[torch.Tensor, "batch heads keys d_value"], r: Roundoff
) -> Float64[torch.Tensor, "batch heads 1 d_value"]:
    """The bound of an empty row under the profile `mean`: equal weights over all keys.

    The exponents are all 0, so that h = H = exp(u) errors only; the rest is as for any row.
    """
    keys = value.shape[-2]
    g = r.gamma(2 * keys + 16)
    mean, N = value.mean(-2, keepdim=True), value.abs().mean(-2, keepdim=True)
    h = min(math.expm1((r.exp_w + r.exp * math.ceil(keys / 16)) * r.u + r.u_s), 0.5)
    spread = 2 * h * N / (1 - h)
    floors = 3 * r.f * keys * N
    product = compound(r.u_p, g) * N * (1 + h) / (1 - h) + floors
    body = spread + product
    body = body + inverse(compound(g, r.u_l) + keys * r.f) * (mean.abs() + body)
    return body + r.u_o * (mean.abs() + body) + r.f


def _inverse(error: torch.Tensor) -> torch.Tensor:
    """x/(1 - x), beyond any use from 1/2 on."""
    return torch.where(error < 0.5, error / (1 - error.clamp(max=0.5)), 1e30)


def _ranges(
    weights: Weights,
    value: Float64[torch.Tensor, "batch heads keys d_value"],
    wanted: Bool[torch.Tensor, "batch heads rows 1"],
) -> tuple[Mixed, Mixed]:
    """The least and the greatest value that a row may read, the sink's zero included.

    Infinite for the rows that are not wanted.
    """
    shape = (*weights.p.shape[:3], value.shape[-1])
    lowest, highest = value.new_full(shape, -math.inf), value.new_full(shape, math.inf)
    batch, head, row = wanted[..., 0].nonzero(as_tuple=True)
    step = max(1, AT_ONCE // max(1, value.shape[-2] * value.shape[-1]))
    for start in range(0, len(row), step):
        at = batch[start : start + step], head[start : start + step], row[start : start + step]
        seen = weights.readable[at][..., None]
        own = value[at[0], at[1]]
        lowest[at] = torch.where(seen, own, math.inf).amin(-2)
        highest[at] = torch.where(seen, own, -math.inf).amax(-2)
    if weights.p_sink is not None:
        lowest, highest = lowest.clamp(max=0), highest.clamp(min=0)
    return lowest, highest
