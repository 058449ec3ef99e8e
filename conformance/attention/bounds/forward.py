r"""The error bound of attention: the largest distance of a conforming result from the exact one.

For every element, |out - O| ≤ bound, in the worst case: for any order of summation, tiling,
splitting and rescaling, with every rounding that the declared level permits and no other. No
constant is fitted to an implementation, and nothing is averaged. Scores and weights p, their errors
h and H, and the units u are derived in `bounds.scores` and `bounds.roundoff`.

The chapter on numerics states what follows as NUM-3 (eq-num-spread, eq-num-3), NUM-4 (eq-num-4),
NUM-11 and NUM-12.

    O_ic = Σ_j p_ij v_jc        lse_i = m_i + ln ℓ_i        T_k keys, g = γ_{2T_k+16}

**Logits.** Weights that err by relative η_j, |η_j| ≤ h_j, in numerator and denominator alike, give
O + Σ_j p_j (η_j - η̄) v_j / (1 + η̄) with η̄ = Σ p η. The numerator is Σ_j p_j η_j (v_j - O), so
their effect depends only on the spread of V about O. The sink counts as a key whose value is zero.

    spread = min( Σ p h|v| + H|O| ,  √(Σ p h²) √(Σ p (v - O)²) ) / (1 - H)
    spread ≤ max(vmax - O, O - vmin)           over readable values: O is a convex combination

and the last is used if H is 1/4 or more, and alone if H is 9/10 or more. A value that a row may not
read does not appear.

**Weights times values.** Σ_j p̂_j|v_j| ≤ N = Σ_j (p_j + dp_j)|v_j|, and ≤ max|v|. Each weight is
rounded to the storage type, each product and sum to the accumulator, and underflow costs a floor:

    product = ((1 + u_p)(1 + g) - 1) N + n f Σ_j |v_j|     n = 1; eager 3: exp, sum, quotient

Values that are rounded on the way in add (1 + u_in) to the first product, and a floor.

**Row sum and division.** The sum errs by g, at levels rowsum and eager by (1 + g)(1 + u_l) - 1 and
T_k f since its terms are rounded; L is this error. Dividing by the sum adds L/(1 - L) of all terms:

    body = spread + product + L/(1 - L) (|O| + spread + product)

**Merged parts.** A kernel that splits the keys gives each part s an output o_s and a log-sum-exp
l_s, takes l = M + ln Σ_s exp(l_s - M) with M = max l_s, and returns Σ_s w_s o_s with
w_s = exp(l_s - l), as flash-decoding does. The result is not divided by Σ w_s again, so the
relative error that the w_s have in common stays in the output. With errors η_s of w_s the output is
O + Σ_s w_s η_s (o_s - O) + η̄ O with η̄ = Σ_s w_s η_s: the first sum is in the spread, and η̄ is
what follows, the errors of the l_s themselves cancelling since l is computed from them.

- l is rounded when M is added, and twice by a change of base there and back; l_s is rounded once
  where it meets l; the sink may be merged last, with two more roundings: θ_6(u). Each is relative
  to |l|, |M| or |l_s|, whose mean Σ w_s |l_s| is at most |l| + Σ w_s (l - l_s), and the last sum is
  an entropy of at most T_k + 1 parts: |l| + ln(T_k + 1). So are the differences l_s - l, l_s - M.
- One logarithm of at most T_k + 1, and the exponentials of w_s and of the sum: 2 c_exp u.
- The sum over parts is among the 2 T_k + 16 roundings of L.

    merge = exp(θ_6(u)(|lse| + ln(T_k + 1)) + (LOG_ERROR ln(T_k + 1) + 2 c_exp) u) - 1
    body + merge (|O| + body)                      if the row reads two keys, or one and a sink

The l_s and l are held in the accumulator's type at every level: rounded to 16 bits, a log-sum-exp
of 100 would change every output by up to a quarter.

**Output.** body + u_o (|O| + body) + f.

**Log-sum-exp.** The logits change it by -ln(1 - H), and by no more than the largest exponent error;
the sum changes it by -ln(1 - L); one logarithm of at most ln(T_k + 1), and m, lse and a change of
base are rounded:

    min(-ln(1 - H), max_j E_j) - ln(1 - L) + LOG_ERROR u ln(T_k + 1) + θ_6(u)(|m| + |lse|)

It is returned in the accumulator's type; at level eager it may be stored, u_s(|lse| + …).

**Empty rows.** The output of a row that reads no key is zero up to f, its log-sum-exp exactly -∞.
Under the profile `mean`, whose output is the mean over all keys, the bound is the one for equal
weights.

**Range.** The bound is infinite if scores are out of range, or if Σ|v| over the readable keys
exceeds a quarter of the accumulator's range, since unnormalised sums may overflow.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.bounds.roundoff import (
    LOG_ERROR,
    SPARE,
    TILE,
    Roundoff,
    compound,
    inverse,
    theta,
)
from attnspec.conformance.attention.bounds.scores import PerRow, Weights

Mixed = Float64[torch.Tensor, "batch heads rows d_value"]

CAPPED_FROM = 0.25
"""The H from which on the range of the readable values is computed, which takes time."""

HOPELESS_FROM = 0.9
"""The H from which on the range alone bounds the result."""

LEAST = 1e-300
"""The size below which a weight is lost in float64."""

LARGEST_SQUARED = 1e140
"""The largest value that is squared; its inverse is the smallest."""

AT_ONCE = 2**22
"""Numbers held at once while ranges are computed."""


@dataclass(frozen=True, kw_only=True)
class ForwardBound:
    """The forward bound of some rows.

    Attributes:
        O: the exact output, zero in a row that reads no key.
        O_bound: its bound.
        lse_bound: the bound of the log-sum-exp.
        lse_roundings: `lse_bound` without the errors of the logits.
    """

    O: Mixed  # noqa: E741
    O_bound: Mixed
    lse_bound: PerRow
    lse_roundings: PerRow


def forward_bound(
    weights: Weights, value: Float64[torch.Tensor, "batch heads keys d_value"], r: Roundoff
) -> ForwardBound:
    """Return the bound of the output and the log-sum-exp (derived at the top of this file).

    Args:
        weights: the weights of some rows.
        value: finite; NaN and infinities have been replaced by zero.
        r: the permitted roundings.
    """
    keys = value.shape[-2]
    g = r.gamma(2 * keys + SPARE)
    size = value.abs()
    largest_size = size.amax((-1, -2), keepdim=True) if r.u_in and size.numel() else None
    O = weights.p @ value  # noqa: E741
    O_size = O.abs()
    of_sizes = torch.cat([weights.p, weights.ph, weights.readable], dim=-2) @ size
    N, grown, floors = torch.tensor_split(of_sizes, 3, dim=-2)
    # in place: with many keys a further copy of the values takes as long as the product
    squares = weights.p @ size.square_().clamp_(max=LARGEST_SQUARED * LARGEST_SQUARED)

    # LOGITS
    H = weights.H
    is_hopeless = H >= HOPELESS_FROM
    safe = (1 - H.clamp(max=HOPELESS_FROM)).reciprocal_().masked_fill_(is_hopeless, 0.0)
    h_squares = (weights.ph.square() / weights.p.clamp(min=LEAST)).sum(-1, keepdim=True)
    if weights.p_sink is not None and weights.ph_sink is not None:
        h_squares = h_squares + weights.ph_sink.square() / weights.p_sink.clamp(min=LEAST)
    variance = (squares - O.square()).clamp_(min=0) + 1e-15 * squares + 1 / LARGEST_SQUARED**2
    # a weight that vanishes in float64 but not in an implementation is missing from the variance
    is_lost = floors > LARGEST_SQUARED
    if bool((weights.worst > 1).any()):
        is_lost |= ((weights.p < LEAST) & (weights.ph > 1e-250)).any(-1, keepdim=True)
    by_variance = (h_squares * variance).sqrt_().masked_fill_(is_lost, math.inf)
    spread = torch.minimum(grown + H * O_size, by_variance) * safe
    N = (N + (grown + H * N)) * safe
    is_loose = H >= CAPPED_FROM
    if keys and bool(is_loose.any()):
        lowest, highest = _ranges(weights, value, is_loose)
        widest = torch.maximum(highest - O, O - lowest)
        largest = torch.maximum(highest, -lowest)
        spread = torch.where(is_hopeless, widest, torch.minimum(spread, widest))
        N = torch.where(is_hopeless, largest, torch.minimum(N, largest))

    # PRODUCT, SUM, OUTPUT
    product = compound(r.u_p, g, r.u_in) * N + (3 if r.stores_scores else 1) * r.f * floors
    product = product + (r.f if r.u_in else 0.0)
    L = compound(g, r.u_l)
    L_row = L + weights.reads * (r.f if r.u_l else r.f_u)
    body = spread + product
    body = body + _inverse(L_row) * (O_size + body)

    # MERGED PARTS
    is_empty = weights.lse == -math.inf
    lse_size = weights.lse.abs().masked_fill_(is_empty, 0.0)
    merge = merge_exponent(lse_size, keys, r)
    is_whole = weights.reads <= (1 if weights.p_sink is None else 0)
    merge = merge.clamp(max=60).expm1_().masked_fill_(is_whole, 0.0)
    body = body + merge * (O_size + body)
    bound = body + r.u_o * (O_size + body) + r.f
    is_out = weights.overflows | (4 * floors > r.largest)
    if r.stores_scores:
        is_out = is_out | (weights.reads > r.largest_stored)
    if largest_size is not None:
        # a hidden value that becomes an infinity is multiplied by zero
        is_out = is_out | (largest_size > r.largest)
    bound = bound.masked_fill_(is_out, math.inf)

    # LOG-SUM-EXP
    log_keys = math.log(keys + 1)
    sums = -torch.log1p(-L_row.clamp(max=0.5)).masked_fill_(L_row >= 1, -math.inf)
    roundings = sums + LOG_ERROR * r.u * log_keys + theta(6, r.u) * (weights.peak + lse_size)
    logits = -torch.log1p(-H.clamp(max=1 - 1e-15)).masked_fill_(H >= 1, -math.inf)
    lse_bound = torch.minimum(logits, weights.worst) + roundings
    lse_bound = lse_bound + r.u_s * (lse_size + lse_bound) + r.f_u
    lse_bound = lse_bound.masked_fill_(is_empty, 0.0)
    return ForwardBound(
        O=O,
        O_bound=bound,
        lse_bound=lse_bound.masked_fill_(weights.overflows, math.inf),
        lse_roundings=roundings,
    )


def merge_exponent(lse_size: torch.Tensor, keys: int, r: Roundoff) -> torch.Tensor:
    """Return the error of the exponents by which parts of the keys are merged (eq-num-merge).

    Args:
        lse_size: the magnitude of the log-sum-exp of each row, zero where it is not finite.
        keys: the number of all keys.
        r: the permitted roundings.
    """
    log_keys = math.log(keys + 1)
    return theta(6, r.u) * (lse_size + log_keys) + (LOG_ERROR * log_keys + 2 * r.exp) * r.u


def mean_bound(
    value: Float64[torch.Tensor, "batch heads keys d_value"], r: Roundoff
) -> Float64[torch.Tensor, "batch heads 1 d_value"]:
    """Return the bound of an empty row under the profile `mean`: equal weights over all keys.

    The exponents are all 0, so h = H = the errors of exp(u) only; the remaining terms are as for
    any row.
    """
    keys = value.shape[-2]
    g = r.gamma(2 * keys + SPARE)
    mean, N = value.mean(-2, keepdim=True), value.abs().mean(-2, keepdim=True)
    h = min(math.expm1((r.exp_w + r.exp * math.ceil(keys / TILE)) * r.u + r.u_s), 0.5)
    spread = 2 * h * N / (1 - h)
    floors = 3 * r.f * keys * N
    product = compound(r.u_p, g, r.u_in) * N * (1 + h) / (1 - h) + floors
    product = product + (r.f if r.u_in else 0.0)
    body = spread + product
    body = body + inverse(compound(g, r.u_l) + keys * r.f) * (mean.abs() + body)
    return body + r.u_o * (mean.abs() + body) + r.f


def _inverse(error: torch.Tensor) -> torch.Tensor:
    """Return x/(1 - x), or a useless 1e30 if x is 1/2 or more."""
    return (error / (1 - error.clamp(max=0.5))).masked_fill_(error >= 0.5, 1e30)


def _ranges(
    weights: Weights,
    value: Float64[torch.Tensor, "batch heads keys d_value"],
    selected: Bool[torch.Tensor, "batch heads rows 1"],
) -> tuple[Mixed, Mixed]:
    """Return the least and the greatest value that a row may read, the sink's zero included.

    Both are infinite for rows that are not selected.
    """
    shape = (*weights.p.shape[:3], value.shape[-1])
    lowest, highest = value.new_full(shape, -math.inf), value.new_full(shape, math.inf)
    batch, head, row = selected[..., 0].nonzero(as_tuple=True)
    step = max(1, AT_ONCE // max(1, value.shape[-2] * value.shape[-1]))
    for start in range(0, len(row), step):
        at = batch[start : start + step], head[start : start + step], row[start : start + step]
        readable = weights.readable[at][..., None]
        values = value[at[0], at[1]]
        lowest[at] = torch.where(readable, values, math.inf).amin(-2)
        highest[at] = torch.where(readable, values, -math.inf).amax(-2)
    if weights.p_sink is not None:
        lowest, highest = lowest.clamp(max=0), highest.clamp(min=0)
    return lowest, highest
