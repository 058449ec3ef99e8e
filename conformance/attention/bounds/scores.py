r"""The error bound of scores, exponentials and weights, used by the forward and backward bounds.

Row *i* reads the keys *j* in S_i, T_k of them at most; a sink is one more key whose value is zero.
The chapter on numerics states what follows as eq-num-score, eq-num-exponent and eq-num-weights of
NUM-3, and as NUM-5, NUM-6 and NUM-7.

    raw_ij = q_i · k_j      t_ij = scale raw_ij      τ = c tanh(t / c), or t      x_ij = τ_ij + b_ij
    m_i = max_j x_ij        p_ij = exp(x_ij - m_i) / ℓ_i          lse_i = m_i + ln ℓ_i

**Scores.** A_ij = |scale| Σ_c |q_ic||k_jc|. Any order of the inner product, with the scale applied
before, after or by its root on both sides, errs by

    E_ij = ((1 + γ_{d_h+4})(1 + u_q)ⁿ - 1) A_ij + flush          n = 1 prescaled; 3 eager: q, raw, t

and (1 + u_in)² besides, for q and k, if operands are rounded on the way in. There flush bounds
underflow in operands (Σ|q| + Σ|k|), products and partial sums, a floor each.
Then each step carries the error E and adds its own rounding: a result y that is rounded n times
makes it E + θ_n (|y| + E).

- softcap: t/c carries ε = E + θ_3(u) (|t| + E). tanh is steepest towards zero, so it carries
  c (tanh(|t|/c) - tanh((|t| - ε)/c)), never more than ε: the cap has Lipschitz constant 1.
  It adds the declared error of tanh, the product with c, c itself and a change of base.
- bias: a float mask is converted once, a slope is converted and multiplied (3 roundings of slope ·
  distance); each sum of two terms is rounded, in either order of three terms.
- A float mask whose dtype holds numbers that the query's does not may be rounded to the query's at
  every level (MSK-20): u_o |b| + f. If that overflows, b becomes an infinity: see *Range*. Slopes
  and sinks have no such permission.
- softcap after the bias (SoftcapOrder.AFTER_BIAS): y = t + b has the error E^y of the bias step,
  with t in place of τ, and x = c tanh(y/c). The cap step applies as above with y and E^y in place
  of t and E: since the cap has Lipschitz constant 1, errors of the bias and the roundings of the
  sum do not grow, and the error of tanh and of its product come last. The sum may be formed of
  t/c and b/c: the three roundings of the quotient are relative to y, and the two that the bias
  step has for a change of base are those of 1/c and of the product with it.
- eager: t/c, tanh, τ, slopes, distances, their product and each sum once more to the storage type.
- A sink's logit is stored exactly and converted once.

**Exponent.** exp(x - m) is formed in base e or 2, tile by tile with rescaling, or split by split:

    θ_6(u) (|x| + |m|) + 2 LOG_ERROR u ln(T_k + 1)     (eager: and u_s |x - m|)

with x and m at the far end of their errors: a computed maximum lies from max(x - E) to max(x + E).

Two roundings for a change of base, one for each difference. Rescalings exp(m_t - m_t+1) telescope:
the differences of a running maximum add up to m - x at most, however many tiles there are. Merging
splits by their log-sum-exps adds two roundings and two logarithms. This is the error of one part
relative to the others; the error that all parts share is derived in `bounds.forward`.

The maximum cancels, as any common m̂ does. With a sink, m is taken both with and without it.

**Weights.** An error E of the exponent, the inexact exponential of the weight itself, c_w u, and
⌈T_k/16⌉ others of c_exp u (a merge, a rescaling per tile but the last) are a relative error of

    h_ij = expm1(E_ij + c_w u + c_exp u ⌈T_k/16⌉)        (eager: and u_s, the exponential stored)

and the relative error of their sum is H_i = Σ_j p_ij h_ij at most. So normalised weights err by

    dp_ij = p_ij (h_ij + H_i) / (1 - H_i)

in any implementation whose sums are exact. No weight exceeds 1, however large the error is.
If E is large, p h is taken as exp(ln p + E): a weight that vanishes in the oracle may be large in
an implementation.

**Range.** Nothing is promised for a row in which a key that it may read has a score beyond a
quarter of the accumulator's range (partial sums and a change of base included), or whose maximum
lies below minus a quarter of it; at level eager likewise beyond the range of the storage type. A
score below the range is harmless if the maximum is in range: its weight is zero either way.
Nor for a row that adds a number of a mask which overflows when it is rounded to the query's dtype:
plus infinity gives NaN, and minus infinity hides the key, which is harmless only if it has no
weight. If the softcap comes after the bias, a sum that is far below the range is not harmless
either: capped it has weight, and an implementation may take minus infinity in it for a hidden key.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.bounds.roundoff import (
    FLOOR,
    LOG_ERROR,
    TILE,
    UNIT,
    Roundoff,
    compound,
    theta,
)
from attnspec.conformance.attention.bounds.rows import Rows

Scored = Float64[torch.Tensor, "batch heads rows keys"]
PerRow = Float64[torch.Tensor, "batch heads rows 1"]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The attention weights of some rows, and the errors allowed to an implementation.

    Attributes:
        p: exact weights, zero at hidden keys.
        ph: p h, the worst error of an unnormalised weight relative to the sum of its row.
        worst: the largest exponent error of a row, the sink included.
        H: the worst relative error of the sum of a row; infinite if it is 1 or more.
        p_sink: the weight of the sink, None without one.
        ph_sink: likewise p h of the sink.
        peak: the largest magnitude that a maximum can have.
        lse: the exact log-sum-exp, minus infinity for a row that reads nothing.
        readable: the keys that a row reads.
        reads: the number of keys that a row reads.
        overflows: rows of which nothing is promised.
        overflows_unread: rows in which the score of a hidden key overflows.
        slope: dτ/dt, None without softcap; dx/dy if the softcap comes after the bias.
        slope_error: the worst error of `slope`.
    """

    p: Scored
    ph: Scored
    worst: PerRow
    H: PerRow
    p_sink: PerRow | None
    ph_sink: PerRow | None
    peak: PerRow
    lse: PerRow
    readable: Bool[torch.Tensor, "batch heads rows keys"]
    reads: PerRow
    overflows: Bool[torch.Tensor, "batch heads rows 1"]
    overflows_unread: Bool[torch.Tensor, "batch heads rows 1"]
    slope: Scored | None = None
    slope_error: Scored | None = None


def rounded(e: torch.Tensor, magnitude: torch.Tensor, relative: float) -> torch.Tensor:
    """Return the error of a result after rounding it: e + θ (|x| + e)."""
    return (1 + relative) * e + relative * magnitude


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """Scores, masked or not, and their errors.

    Attributes:
        s: the scores.
        e: the worst error of each.
        beyond: true where a score, or an intermediate result of it, exceeds the range.
        may_be_hidden: true where a rounded mask may become minus infinity; None if nowhere.
        slope: dτ/dt, None without softcap.
        slope_error: the worst error of `slope`.
    """

    s: Scored
    e: Scored
    beyond: Bool[torch.Tensor, "batch heads rows keys"]
    may_be_hidden: Bool[torch.Tensor, "#batch #heads #rows #keys"] | None
    slope: Scored | None
    slope_error: Scored | None


def _scores(rows: Rows, r: Roundoff) -> _Scores:
    d, size = rows.query.shape[-1], abs(rows.scale)
    raw = rows.query @ rows.key.mT
    query_size, key_size = rows.query.abs(), rows.key.abs()
    magnitude = query_size @ key_size.mT
    s, e = rows.scale * raw, size * magnitude
    e *= compound(r.gamma(d + 4), theta(3 if r.stores_scores else 1, r.u_q), theta(2, r.u_in))
    stretch = max(1.0, size)
    per_query = query_size.sum(-1, keepdim=True)
    per_key = key_size.sum(-1)[..., None, :]
    e += r.f_q * stretch * (per_query + per_key)
    e += (r.f_u * d + 4 * r.f_q) * (stretch + (rows.softcap or 0))
    beyond = magnitude > r.largest / (4 * stretch)
    if r.u_in:
        # an operand becomes an infinity
        beyond |= query_size.amax(-1, keepdim=True) > r.largest if d else False
        beyond |= (key_size.amax(-1) > r.largest)[..., None, :] if d else False
    if r.stores_scores:
        stored = raw.abs() * (1 + 2 * r.u_s) + r.gamma(d + 4) * magnitude
        beyond |= stored > r.largest_stored / stretch
    slope, slope_error = None, None
    if rows.softcap is not None and not rows.caps_bias:
        s, e, slope, slope_error = _cap(s, e, rows.softcap, r)
    if rows.bias is not None:
        s, e = _add_bias(s, e, rows, r)
        beyond |= (s.abs() if rows.caps_bias else s) + e > min(r.largest / 4, r.largest_stored)
    if rows.softcap is not None and rows.caps_bias:
        s, e, slope, slope_error = _cap(s, e, rows.softcap, r)
    may_be_hidden = None
    if rows.mask_bias is not None and rows.mask_rounded_to is not None:
        largest = torch.finfo(rows.mask_rounded_to).max
        beyond |= rows.mask_bias > largest
        may_be_hidden = rows.mask_bias < -largest
    return _Scores(
        s=s,
        e=e,
        beyond=beyond,
        may_be_hidden=may_be_hidden,
        slope=slope,
        slope_error=slope_error,
    )


def weights(rows: Rows, r: Roundoff) -> Weights:
    """Return the weights of some rows, with the error of each (derived at the top of this file).

    Args:
        rows: finite operands; NaN and infinities have been replaced by zero.
        r: the permitted roundings.
    """
    keys = rows.key.shape[-2]
    scores = _scores(rows, r)
    readable = rows.visible.expand(scores.s.shape)
    hidden = ~readable
    reads = readable.sum(-1, keepdim=True, dtype=torch.float64)
    reads_none = reads == 0
    s, e = scores.s.masked_fill(hidden, -math.inf), scores.e.masked_fill(hidden, 0.0)

    # MAXIMUM
    own_peak = s.amax(-1, keepdim=True) if keys else torch.full_like(reads, -math.inf)
    peak, sink = own_peak, None
    if rows.sinks is not None:
        sink = rows.sinks[None, :, None, None].expand(own_peak.shape)
        peak = torch.maximum(peak, sink)
    is_empty = peak == -math.inf
    base = peak.masked_fill(is_empty, 0.0)
    own_peak = torch.where(reads_none, base, own_peak)
    peak_size = torch.maximum(own_peak.abs(), base.abs())
    e_peak = torch.zeros_like(base)
    if keys:
        above, below = (s + e).amax(-1, keepdim=True), (s - e).amax(-1, keepdim=True)
        e_peak = torch.maximum(above - own_peak, own_peak - below).masked_fill_(reads_none, 0.0)
    overflows = base < -min(r.largest / 4, r.largest_stored / 2)
    overflows |= (scores.beyond & readable).any(-1, keepdim=True)

    # EXPONENT
    shifted = s - base
    w = shifted.exp()
    total = w.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - base).exp()
    log_total = total.log()
    lse = base + log_total
    logarithms = 2 * LOG_ERROR * r.u * math.log(keys + 1)
    exponentials = (r.exp_w + r.exp * math.ceil(keys / TILE)) * r.u + r.u_s

    def exponent(score: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        e = rounded(error, score.abs() + (peak_size + e_peak), theta(6, r.u))
        if r.stores_scores:
            e += r.u_s * ((score - base).abs_() + error + e_peak)
        return e.add_(logarithms + exponentials)

    e = exponent(s.masked_fill(hidden, 0.0), e).masked_fill_(hidden, 0.0)

    # WEIGHTS
    p = w / total.masked_fill(total == 0, 1.0)
    if scores.may_be_hidden is not None:
        overflows |= (scores.may_be_hidden & (p > 0)).any(-1, keepdim=True)
    ph = _times_expm1(p, shifted - log_total, e)
    worst = e.amax(-1, keepdim=True) if keys else torch.zeros_like(base)
    # an underflowing weight is missing from a sum of at least 1
    H = ph.sum(-1, keepdim=True) + reads * r.f_u
    p_sink, ph_sink = None, None
    if sink is not None:
        conversions = theta(1, r.u) + (theta(1, r.u_s) if rows.sinks_are_wider else 0.0)
        finite_sink = torch.where(sink == -math.inf, 0.0, sink)
        e_sink = exponent(finite_sink, conversions * finite_sink.abs())
        p_sink = (sink - lse).exp()
        ph_sink = _times_expm1(p_sink, sink - lse, e_sink)
        worst, H = torch.maximum(worst, e_sink), H + ph_sink
    return Weights(
        p=p,
        ph=ph,
        worst=worst,
        H=H.masked_fill(~(H < 1), math.inf),
        p_sink=p_sink,
        ph_sink=ph_sink,
        peak=peak_size,
        lse=lse,
        readable=readable,
        reads=reads,
        overflows=overflows,
        overflows_unread=(scores.beyond & hidden).any(-1, keepdim=True),
        slope=scores.slope,
        slope_error=scores.slope_error,
    )


def _times_expm1(p: torch.Tensor, log_p: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Return p expm1(e), also if p underflows and e is large."""
    small = p * torch.expm1(e.clamp(max=1.0))
    if not e.numel() or float(e.max()) <= 1.0:
        return small
    return torch.where(e <= 1.0, small, (log_p + e).clamp(max=700.0).exp())


def _cap(
    t: torch.Tensor, e: torch.Tensor, cap: float, r: Roundoff
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cap the scores: return τ, its error, dτ/dt = 1 - tanh², and the error of dτ/dt.

    dτ/dt has the derivative -2 tanh (1 - tanh²)/c. Within the error of t it is no steeper than
    2 tanh at the far end times 1 - tanh² at the near end, and never steeper than 0.77.
    Computed from a tanh of relative error η, it errs by ((1 + η)² (1 + u) - 1) tanh² + u besides.
    """
    size = t.abs()
    e = rounded(e, size, theta(3, r.u))
    if r.stores_scores:
        e = rounded(e, size, r.u_s)
    x, delta = size / cap, e / cap
    tanh, near, far = x.tanh(), (x - delta).tanh(), (x + delta).tanh()
    tau_error = cap * (delta.tanh() * (1 - tanh * near)).clamp(min=0)
    eta = compound(r.tanh * r.u, r.u_s)
    products = compound(eta, theta(4, r.u), r.u_s)
    tau_error = rounded(tau_error, cap * tanh, products)
    slope = 1 - tanh.square()
    gentlest = 1 - near.clamp(min=0).square()
    slope_error = delta * (2 * far * gentlest).clamp(max=0.77)
    square = compound(eta, eta, r.u, r.u_s)
    slope_error += square * far.square() + (r.u + r.u_s)
    return cap * t.sign() * tanh, tau_error, slope, slope_error


def _add_bias(
    s: torch.Tensor, e: torch.Tensor, rows: Rows, r: Roundoff
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the float mask and the slopes, in either order, and return scores and errors."""
    terms = s.abs()
    of_mask, floor = 0.0, 0.0
    if rows.mask_rounded_to is not None:
        of_mask, floor = UNIT[rows.mask_rounded_to], FLOOR[rows.mask_rounded_to]
    for bias, conversions, stored, underflow in (
        (rows.mask_bias, 1, of_mask, floor),
        (rows.alibi, 3, theta(3, r.u_s), 0.0),
    ):
        if bias is None:
            continue
        # two more roundings in the accumulator for a change of base before the sum
        relative = compound(theta(conversions + 2, r.u), stored)
        e = e + relative * bias.abs() + underflow
        terms = terms + bias.abs()
    once = compound(r.u, r.u_s)
    if rows.mask_bias is not None and rows.alibi is not None:
        e = rounded(e, terms, once)
    bias = rows.bias
    s = s if bias is None else s + bias
    return s, rounded(e, s.abs(), once)
