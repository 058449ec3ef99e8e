r"""The error bound of the gradients, continued from `attnspec.conformance.bounds`.

The chapter on numerics states what follows as NUM-8 (eq-num-delta, eq-num-ds, eq-num-8), NUM-9
(eq-num-9), NUM-10 and NUM-11.

With the incoming gradient dO and χ = dτ/dt (1 without softcap), for rows i and keys j,

    dP_ij = dO_i · v_j      D_i = Σ_j p_ij dP_ij = dO_i · O_i      dS_ij = p_ij (dP_ij - D_i)
    dQ_i = scale Σ_j dt_ij k_j      dK_j = scale Σ_i dt_ij q_i      dt = χ dS
    dV_j = Σ_i p_ij dO_i

and dB is dS, summed where the mask was broadcast. r, e_x bound the error of p, x in the backward
pass; sums over a group of query heads belong to Σ_i.

**Weights.** Saved, or rebuilt from the log-sum-exp, whose roundings λ come on top of those that
made the weights (the scores may be formed anew, in another order); eager: stored once more.

    r = dp + (p + dp)((1 + u_s) exp(λ + 2u) - 1) + f                dp ≤ 1

**dP.** e_dP = γ_{d_v+4} Σ|dO||v| + flush; eager: three times rounded to the storage type (itself,
and the two derivatives of a quotient).

A quotient e/l is differentiated into dP/l and D/l, which meet e = p l again. So what underflows in
them counts l times: (1 + 2l) floors in dP, and in D one for each term and for the sum. l is a sum
of exponentials that are 1 at most, 1/max p up to the errors of the scores.

**D.** From the stored output, or as the sum of P dP; the larger of

    Σ_c |dO_c| (B_O + γ_{d_v+4} (|O| + B_O))                      B_O the forward bound
    Σ_j r|dP| + (p + r) e_dP + c Σ_j (p + r)(|dP| + e_dP)         c = (1 + u_p)(1 + g)(1 + u_s)³ - 1
        eager: + l f (Σ_j (|dP| + e_dP) + T + 1)

**dS.** The error of D is common to a row, so it is kept apart: the error of dS is e_dS + p e_D with

    e_dS = r X + p e_dP + c (p + r) X + f        c = θ_4(u), eager θ_2(u_s) besides
    X = |dP - D| + e_dP + e_D

**Shifts.** The maximum that is subtracted from a row, or what stands in its place, is a constant
on the way back: it cancels, so its derivative is zero. Who differentiates it all the same adds to
the scores that it was read from what the roundings of the whole row leave of that zero: up to
Σ_j e_dS + e_D at one key, which may have next to no weight. No kernel does that, and it is not
allowed for: each e_dS would have to be as wide as those of its row together.

**dt.** Multiplied by χ, itself known up to e_χ: e_dt = e_dS (χ + e_χ) + |dS| e_χ + p e_D e_χ, and c
times the whole for the products: θ_4(u), eager θ_3(u_s). In common to a row: p χ e_D. The chain
rule goes through c dS, c dS χ and a division by c: what underflows in the first two comes back
divided, 1 + 2 max(1, 1/c) floors in all.

**Products.** dt is rounded to the storage type, sums are formed in any order, and written back in
the storage type n times while they grow. With M = |dt| + e_dt + p χ e_D,

    dQ: |scale| [ Σ_j e_dt|k| + e_D |Σ_j p χ k_j| + c Σ_j M|k| ]     c = (1 + γ_{2T+16}) ... - 1
    dK: |scale| [ Σ_i (e_dt + p χ e_D)|q| + c Σ_i M|q| ]
    dV: Σ_i r|dO| + c Σ_i (p + r)|dO|
    dB: Σ (e_dS + p e_D) + c Σ (|dS| + e_dS + p e_D)

    c + 1 = (1 + γ)(1 + u_p) (1 + u_o)^(n-1) (1 + u_q) (1 + u_s)²

u_q where scaled operands are stored, u_s² for a gradient that is stored before it is scaled. For a
row, D's error meets the *signed* mean key: it is the same for all keys. A group of heads
may be summed from gradients that were rounded head by head: n + 1. Then f Σ|k| (|q|, |dO|) for what
underflows in dt or p, and the output: x + u_o (|ref| + x) + n f.

Operands that were scaled before their product are scaled here too: dK = Σ_i dt_ij (scale q_i) when
the queries were, and dQ when the keys were. What underflows in scale q then meets dt, which may be
as large as the storage type allows, and not k: max(1, |scale|) f_q Σ M. A sum that is scaled after
it was formed brings what it lost with it: |scale| f.

**Range.** Nothing is promised for a row that is out of range forward, whose Σ|dO||v| exceeds a
quarter of the accumulator's range, or whose dt (eager: dP and dP - D too) may leave that of the
storage type; nor for the keys that it reads. Nor for a gradient of which a part may leave the range
of the storage type where parts are stored: written n > 1 times, or eager, and then before it is
scaled: max(1, |scale|) Σ M|k| stands for Σ M|k| there. Two such parts may be infinities of either
sign.

A pair that may not be read has p = 0, and 0 · ∞ is NaN: where the profile lets that happen, a row
may be NaN, and add NaN to every key, if its dP, or dP - D, overflows where it does not read, or it
is out of range itself, so that D is not finite.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.bounds import ForwardBound
from attnspec.conformance.bounds_scores import PerRow, Weights
from attnspec.conformance.roundoff import Roundoff, compound, theta
from attnspec.conformance.rows import Rows

SomeRows = Bool[torch.Tensor, "batch heads rows 1"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A gradient, or what some rows add to it, and its error before the last rounding.

    Attributes:
        exact: the gradient.
        error: what does not depend on how sums are formed.
        mass: the sum of magnitudes that the roundings of a sum are relative to.
        reach: the most that a sum, before or after it is scaled, can be.
        lost: the sum of magnitudes that underflow takes away, in units of *f*.
        undefined: how many rows spoil it.
        may_be_nan: how many rows may make it NaN.
    """

    exact: torch.Tensor
    error: torch.Tensor
    mass: torch.Tensor
    reach: torch.Tensor
    lost: torch.Tensor
    undefined: torch.Tensor
    may_be_nan: torch.Tensor

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Part":
        """Add up, or move, all alike."""
        return Part(**{item.name: change(getattr(self, item.name)) for item in fields(self)})

    def join(
        self, other: "Part", put: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> "Part":
        """Put together two runs of rows, all alike."""
        names = [item.name for item in fields(self)]
        return Part(**{name: put(getattr(self, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The gradients of some rows, by formula, with the parts of their bounds.

    Attributes:
        query: of these rows.
        key: what these rows add, head by head.
        value: likewise.
        scores: of the scores as they are before the softmax: of a bias that is not broadcast.
    """

    query: Part
    key: Part
    value: Part
    scores: Part


def backward(
    w: Weights,
    forward: ForwardBound,
    rows: Rows,
    grad: Float64[torch.Tensor, "batch heads rows d_value"],
    r: Roundoff,
    storable: float,
    undefined: SomeRows,
    spoiling: SomeRows,
    may_be_nan: SomeRows,
    propagates: bool,
) -> Backward:
    """Differentiate some rows, with the error of each gradient (derived at the top of this file).

    Args:
        w: the weights of the rows.
        forward: their forward bound.
        rows: finite operands.
        grad: the incoming gradient, finite.
        r: what may be rounded.
        storable: the largest number of the storage type.
        undefined: true for rows of which nothing is promised, nor for the keys that they read.
        spoiling: true for rows that spoil every key.
        may_be_nan: true for rows that may be NaN, and every key with them.
        propagates: whether a weight of zero may meet what is not finite.
    """
    live, p = w.readable.double(), w.p
    key, value, size = rows.key, rows.value, abs(rows.scale)
    d_value, floor = value.shape[-1], r.f if r.stores_scores else r.f_u

    # WEIGHTS
    safe = torch.where(w.H < 0.5, 1 / (1 - w.H.clamp(max=0.5)), 0.0)
    dp = torch.where(w.H < 0.5, (w.ph + p * w.H.clamp(max=0.5)) * safe, live).clamp(max=1)
    rebuilt = torch.expm1((forward.lse_roundings + 2 * r.u + math.log1p(r.u_s)).clamp(max=60))
    e_p = dp + (p + dp) * rebuilt + floor * live
    p_most = p + e_p

    # dP
    dP, magnitude = grad @ value.mT, grad.abs() @ value.abs().mT
    everywhere = 4 * magnitude > r.largest, dP.abs() * (1 + 2 * r.u_s)
    # what may not be read may be infinite, and must not meet a zero
    dP, magnitude = dP.where(w.readable, 0.0), magnitude.where(w.readable, 0.0)
    operands = grad.abs().sum(-1, keepdim=True) + value.abs().sum(-1)[..., None, :] + d_value
    e_dP = r.gamma(d_value + 4) * magnitude + r.f_u * operands
    divided = _sum_of_exponentials(w) if r.stores_scores else torch.ones_like(w.H)
    e_dP = e_dP + theta(3, r.u_s) * (dP.abs() + e_dP) + (1 + 2 * divided) * floor
    e_dP = e_dP.where(w.readable, 0.0)
    dP_most = (dP.abs() + e_dP) * live
    undefined = undefined | w.overflows | forward.O_bound.isinf().any(-1, keepdim=True)
    undefined |= ((4 * magnitude > r.largest) & w.readable).any(-1, keepdim=True)
    undefined |= (dP_most > r.largest_stored).any(-1, keepdim=True)

    # D
    D = (p * dP).sum(-1, keepdim=True)
    O_bound = torch.where(undefined, 0.0, forward.O_bound)
    inner = O_bound + r.gamma(d_value + 4) * (forward.O.abs() + O_bound)
    from_output = (grad.abs() * inner).sum(-1, keepdim=True)
    c = compound(r.u_p, r.gamma(2 * key.shape[-2] + 16), theta(3, r.u_s))
    from_weights = e_p * dP.abs() * live + p_most * e_dP + (c * p_most + divided * r.f) * dP_most
    from_weights = from_weights.sum(-1, keepdim=True) + divided * floor * (w.reads + 1)
    e_D = torch.maximum(from_output, from_weights)

    # dS
    difference = dP - D
    dS = p * difference
    x = (difference.abs() + e_dP + e_D) * live
    undefined |= (x * (1 + 2 * r.u_s) > r.largest_stored).any(-1, keepdim=True)
    if propagates:
        overflows, size_dP = everywhere
        unread = overflows | (size_dP + D.abs() + e_D > r.largest_stored)
        may_be_nan = may_be_nan | (unread & ~w.readable).any(-1, keepdim=True)
    c = compound(theta(4, r.u), theta(2, r.u_s))
    e_dS = e_p * x + p * e_dP + c * p_most * x + 2 * floor * live
    common = p * e_D

    # dt
    dt, e_dt, common_dt = dS, e_dS, common
    if w.slope is not None and w.slope_error is not None:
        dt, common_dt = dS * w.slope, common * w.slope
        e_dt = e_dS * (w.slope + w.slope_error) + (dS.abs() + common) * w.slope_error
        c = compound(theta(4, r.u), theta(3, r.u_s))
        steps = 1 + 2 * max(1.0, 1 / (rows.softcap or 1.0))
        e_dt = e_dt + c * (dt.abs() + e_dt + common_dt) + steps * floor * live
    mass = dt.abs() + e_dt + common_dt
    stretch = max(1.0, size, rows.softcap or 0.0 if r.stores_scores else 0.0)
    undefined |= (mass * stretch > storable).any(-1, keepdim=True)
    if propagates:
        may_be_nan = may_be_nan | undefined

    # PRODUCTS
    def kept(x: torch.Tensor) -> torch.Tensor:
        # what is undefined may be infinite, and must not meet a zero
        return torch.where(undefined, 0.0, x) if spoilt else x

    spoilt = bool(undefined.any())
    dS, dt, p_kept, e_D, grad = kept(dS), kept(dt), kept(p), kept(e_D), kept(grad)
    e_dS, common, e_dt, common_dt = kept(e_dS), kept(common), kept(e_dt), kept(common_dt)
    mass, e_p, p_most, live = kept(mass), kept(e_p), kept(p_most), kept(live)
    folded = max(1.0, size)
    # a sum that is stored before it is scaled must fit as it is
    widest = folded if r.stores_scores else size
    mean_key = ((p_kept if w.slope is None else p_kept * w.slope) @ key).abs()
    query_size, key_size, grad_size = rows.query.abs(), key.abs(), grad.abs()
    of_query, of_key, of_value = mass @ key_size, mass.mT @ query_size, p_most.mT @ grad_size
    spoils = (undefined & w.readable) | spoiling
    of_rows = {"undefined": undefined.double(), "may_be_nan": may_be_nan.double()}
    of_keys = {
        "undefined": spoils.double().sum(-2)[..., None],
        "may_be_nan": may_be_nan.double().sum(-2, keepdim=True).expand(*key.shape[:3], 1),
    }
    of_pairs = {
        "undefined": spoils.double(),
        "may_be_nan": may_be_nan.double().expand(spoils.shape),
    }
    return Backward(
        query=Part(
            exact=rows.scale * (dt @ key),
            error=size * (e_dt @ key_size + e_D * mean_key)
            + folded * r.f_q * mass.sum(-1, keepdim=True),
            mass=size * of_query,
            reach=widest * of_query,
            lost=folded * (live @ key_size),
            **of_rows,
        ),
        key=Part(
            exact=rows.scale * (dt.mT @ rows.query),
            error=size * ((e_dt + common_dt).mT @ query_size)
            + folded * r.f_q * mass.sum(-2)[..., None],
            mass=size * of_key,
            reach=widest * of_key,
            lost=folded * (live.mT @ query_size),
            **of_keys,
        ),
        value=Part(
            exact=p_kept.mT @ grad,
            error=e_p.mT @ grad_size,
            mass=of_value,
            reach=of_value,
            lost=live.mT @ grad_size,
            **of_keys,
        ),
        scores=Part(
            exact=dS,
            error=e_dS + common,
            mass=dS.abs() + e_dS + common,
            reach=dS.abs() + e_dS + common,
            lost=live,
            **of_pairs,
        ),
    )


def _sum_of_exponentials(w: Weights) -> PerRow:
    """The largest l that a row may have: no exponential exceeds 1."""
    if not w.p.shape[-1]:
        return torch.ones_like(w.H)
    top = w.p.amax(-1, keepdim=True)
    top = top if w.p_sink is None else torch.maximum(top, w.p_sink)
    grown = (2 * w.worst).clamp(max=60).exp() / top.clamp(min=1e-300)
    return torch.minimum(grown, w.reads + 1)


def bounded(
    part: Part,
    r: Roundoff,
    *,
    terms: int,
    writes: int,
    scale: float | None,
    unit: float,
    storable: float,
) -> torch.Tensor:
    """Round what was summed, and store it: the bound of a gradient.

    Args:
        part: the gradient, all rows and heads of a group together.
        r: what may be rounded.
        terms: how many numbers each sum has.
        writes: how often a sum is written back in the storage type while it grows.
        scale: what is applied to it; `None` where nothing is.
        unit: the unit roundoff of the type in which the gradient is given.
        storable: the largest number of that type.
    """
    c = compound(r.gamma(2 * terms + 16), r.u_p, theta(writes - 1, r.u_o))
    c = compound(c, r.u_q, theta(2, r.u_s)) if scale is not None else c
    bound = part.error + c * part.mass + r.f * part.lost
    bound = bound + unit * (part.exact.abs() + bound)
    floors = writes + (3 if r.stores_scores else 1)
    before = abs(scale or 0.0) * (r.f if r.stores_scores else r.f_u)
    bound = bound + floors * r.f + before
    is_out = (4 * part.mass > r.largest) | (part.undefined > 0)
    if writes > 1 or r.stores_scores:
        # what is stored on the way may be infinite, and of either sign
        is_out |= part.reach > storable
    return torch.where(is_out, math.inf, bound)
