r"""The error bound of the gradients, built on the bounds of `bounds.scores` and `bounds.forward`.

The chapter on numerics states what follows as NUM-8 (eq-num-delta, eq-num-ds, eq-num-8), NUM-9
(eq-num-9), NUM-10 and NUM-11.

With the incoming gradient dO and χ = dτ/dt (1 without softcap), for rows i and keys j,

    dP_ij = dO_i · v_j      D_i = Σ_j p_ij dP_ij = dO_i · O_i      dS_ij = p_ij (dP_ij - D_i)
    dQ_i = scale Σ_j dt_ij k_j      dK_j = scale Σ_i dt_ij q_i      dt = χ dS
    dV_j = Σ_i p_ij dO_i

and dB is dS, summed over the axes along which the mask was broadcast; if the softcap comes after
the bias, χ = dx/dy with y = t + b, and dB is dt, with its error, for t and b enter y alike.
r, E_x bound the error of p, x in the backward pass; sums over a group of query heads belong to Σ_i.

**Weights.** Saved, or rebuilt from the log-sum-exp, whose roundings λ add to the roundings of the
weights (the scores may be computed again, in another order); eager: stored once more.

    r = dp + (p + dp)((1 + u_s) exp(λ + 2u) - 1) + f                dp ≤ 1

**Operands.** If they are rounded on the way in, dO and v add (1 + u_in)² to E_dP, and k, q and dO
(1 + u_in) to the products below; dO adds as much to D. Where dO underflows, dV loses a floor for
each weight.

**dP.** E_dP = γ_{d_v+4} Σ|dO||v| + flush; eager: three times rounded to the storage type (itself,
and the two derivatives of a quotient).

A quotient e/ℓ is differentiated into dP/ℓ and D/ℓ, which are multiplied by e = p ℓ again. So
underflow in them counts ℓ times: (1 + 2ℓ) floors in dP, and in D one for each term and for the sum.
ℓ is a sum of exponentials that are 1 at most, 1/max p up to the errors of the scores.

**D.** From the stored output, or as the sum of P dP; the larger of

    Σ_c |dO_c| (B_O + γ_{d_v+4} (|O| + B_O))                      B_O the forward bound
    Σ_j r|dP| + (p + r) E_dP + c Σ_j (p + r)(|dP| + E_dP)         c = (1 + u_p)(1 + g)(1 + u_s)³ - 1
        eager: + ℓ f (Σ_j (|dP| + E_dP) + T_k + 1)

**dS.** The error of D is common to a row, so it is a separate term: dS errs by E_dS + p E_D with

    E_dS = r X + p E_dP + c (p + r) X + f        c = θ_4(u), eager θ_2(u_s) besides
    X = |dP - D| + E_dP + E_D

**Shifts.** The maximum that is subtracted from a row, or its substitute, is a constant of the
backward pass: it cancels, so its derivative is zero. An implementation that differentiates it adds
the rounding errors of that zero to the gradient of the scores which attain the maximum: up to
Σ_j E_dS + E_D at one key, which may have next to no weight. No kernel does that, and the bound does
not allow it: each E_dS would have to be as wide as the sum over its row.

**dt.** Multiplied by χ, itself known up to E_χ: E_dt = E_dS (χ + E_χ) + |dS| E_χ + p E_D E_χ, and c
times the whole for the products: θ_4(u), eager θ_3(u_s). The term common to a row is p χ E_D. The
chain rule goes through c dS, c dS χ and a division by c: underflow in the first two is divided by
c, 1 + 2 max(1, 1/c) floors in all.

**Products.** dt is rounded to the storage type, sums are formed in any order, and written back in
the storage type n times while they grow. With M = |dt| + E_dt + p χ E_D,

    dQ: |scale| [ Σ_j E_dt|k| + E_D |Σ_j p χ k_j| + c Σ_j M|k| ]     c = (1 + γ_{2T_k+16}) ... - 1
    dK: |scale| [ Σ_i (E_dt + p χ E_D)|q| + c Σ_i M|q| ]
    dV: Σ_i r|dO| + c Σ_i (p + r)|dO|
    dB: Σ (E_dS + p E_D) + c Σ (|dS| + E_dS + p E_D)

    c + 1 = (1 + γ)(1 + u_p) (1 + u_o)^(n-1) (1 + u_q) (1 + u_s)²

u_q where scaled operands are stored, u_s² for a gradient that is stored before it is scaled. For a
row, D's error multiplies the *signed* mean key: it is the same for all keys. A group of G heads
may be summed from gradients that were rounded head by head: n + 1. Then f Σ|k| (|q|, |dO|) for the
underflow in dt or p, and the output: y + u_o (|ref| + y) + n f. Underflow does not shrink with the
number that is rounded, so each head that is rounded by itself adds a floor, G f in all; eager two,
before and after it is scaled.

Operands that were scaled before their product are scaled here too: dK = Σ_i dt_ij (scale q_i) if
the queries were, and dQ if the keys were. Underflow in scale q is then multiplied by dt, which may
be as large as the storage type allows, and not by k: max(1, |scale|) f_q Σ M. A sum that is scaled
after it was formed has its underflow scaled too: |scale| f.

**Range.** Nothing is promised for a row that is out of range forward, whose Σ|dO||v| exceeds a
quarter of the accumulator's range, or whose dt (eager: dP, dP - D and c dS too) may exceed the
range of the storage type; nor for the keys that it reads. Nor for a gradient of which a stored part
may exceed the range of the storage type. Parts are stored if a gradient is written n > 1 times, or
at level eager, and then before they are scaled: max(1, |scale|) Σ M|k| replaces Σ M|k| there. Two
such parts may be infinities of either sign.

A hidden pair has p = 0, and 0 · ∞ is NaN. If the profile permits that, a row may be NaN, and add
NaN to every key, if its dP, or dP - D, overflows at a hidden key, or if the row itself is out of
range, so that D is not finite.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.bounds.forward import ForwardBound
from attnspec.conformance.attention.bounds.roundoff import SPARE, Roundoff, compound, theta
from attnspec.conformance.attention.bounds.rows import Rows
from attnspec.conformance.attention.bounds.scores import PerRow, Weights

SomeRows = Bool[torch.Tensor, "batch heads rows 1"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A gradient, or the contribution of some rows, with its error before the last rounding.

    Attributes:
        exact: the gradient.
        error: the error that does not depend on the order of summation.
        mass: the sum of magnitudes that the roundings of a sum are relative to.
        largest: the largest magnitude of a sum, before or after it is scaled.
        underflow: the sum of magnitudes that multiply underflows, in units of *f*.
        undefined: the number of rows that make it undefined.
        may_be_nan: the number of rows that may make it NaN.
    """

    exact: torch.Tensor
    error: torch.Tensor
    mass: torch.Tensor
    largest: torch.Tensor
    underflow: torch.Tensor
    undefined: torch.Tensor
    may_be_nan: torch.Tensor

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Part":
        """Return a part with the same change applied to every tensor."""
        return Part(**{item.name: change(getattr(self, item.name)) for item in fields(self)})

    def join(
        self, other: "Part", combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> "Part":
        """Return the part of two chunks of rows, combined tensor by tensor."""
        names = [item.name for item in fields(self)]
        return Part(**{name: combine(getattr(self, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The gradients of some rows, by formula, with the parts of their bounds.

    Attributes:
        query: the gradient of the queries of these rows.
        key: the contribution of these rows to the gradient of the keys, head by head.
        value: likewise of the values.
        scores: the gradient of a full-size bias: of the scores before the softmax, or before the
            softcap if it comes after the bias; None without `with_scores`.
    """

    query: Part
    key: Part
    value: Part
    scores: Part | None


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
    exact: Callable[[torch.Tensor], Mapping[str, torch.Tensor]] | None = None,
    with_scores: bool = True,
) -> Backward:
    """Differentiate some rows, with the error of each gradient (derived at the top of this file).

    Args:
        w: the weights of the rows.
        forward: their forward bound.
        rows: finite operands.
        grad: the incoming gradient, finite.
        r: the permitted roundings.
        storable: the largest number of the storage type.
        undefined: true for rows of which nothing is promised, nor for the keys that they read.
        spoiling: true for rows that make every key's gradient undefined.
        may_be_nan: true for rows that may be NaN, and make every key's gradient NaN.
        propagates: whether a weight of zero may be multiplied by NaN or infinity.
        exact: returns the gradients for an incoming one, which is zero in undefined rows, by the
            names of the fields of `Backward`; by default they are computed by formula.
        with_scores: whether to compute the gradient of a bias.
    """
    live, p = w.readable.double(), w.p
    key, value, size = rows.key, rows.value, abs(rows.scale)
    d_value, floor = value.shape[-1], r.f if r.stores_scores else r.f_u

    # WEIGHTS
    e_p = weight_error(w, forward, r)
    p_most = p + e_p

    # dP
    dP, magnitude = grad @ value.mT, grad.abs() @ value.abs().mT
    everywhere = 4 * magnitude > r.largest, dP.abs() * (1 + 2 * r.u_s)
    # a hidden pair may be infinite, and must not be multiplied by zero
    dP, magnitude = dP.where(w.readable, 0.0), magnitude.where(w.readable, 0.0)
    operands = grad.abs().sum(-1, keepdim=True) + value.abs().sum(-1)[..., None, :] + d_value
    E_dP = compound(r.gamma(d_value + 4), theta(2, r.u_in)) * magnitude + r.f_u * operands
    divided = _sum_of_exponentials(w) if r.stores_scores else torch.ones_like(w.H)
    if r.u_s:
        E_dP = E_dP + theta(3, r.u_s) * (dP.abs() + E_dP)
    E_dP = E_dP + (1 + 2 * divided) * floor
    E_dP = E_dP.where(w.readable, 0.0)
    dP_most = (dP.abs() + E_dP) * live
    undefined = undefined | w.overflows | forward.O_bound.isinf().any(-1, keepdim=True)
    undefined |= ((4 * magnitude > r.largest) & w.readable).any(-1, keepdim=True)
    undefined |= (dP_most > r.largest_stored).any(-1, keepdim=True)

    # D
    D = (p * dP).sum(-1, keepdim=True)
    O_bound = torch.where(undefined, 0.0, forward.O_bound)
    inner = O_bound + compound(r.gamma(d_value + 4), r.u_in) * (forward.O.abs() + O_bound)
    from_output = (grad.abs() * inner).sum(-1, keepdim=True)
    c = compound(r.u_p, r.gamma(2 * key.shape[-2] + SPARE), theta(3, r.u_s))
    from_weights = e_p * dP.abs() * live + p_most * E_dP + (c * p_most + divided * r.f) * dP_most
    from_weights = from_weights.sum(-1, keepdim=True) + divided * floor * (w.reads + 1)
    E_D = torch.maximum(from_output, from_weights)

    # dS
    difference = dP - D
    dS = p * difference
    x = (difference.abs() + E_dP + E_D) * live
    undefined |= (x * (1 + 2 * r.u_s) > r.largest_stored).any(-1, keepdim=True)
    if propagates:
        overflows, size_dP = everywhere
        unread = overflows | (size_dP + D.abs() + E_D > r.largest_stored)
        may_be_nan = may_be_nan | (unread & ~w.readable).any(-1, keepdim=True)
    c = compound(theta(4, r.u), theta(2, r.u_s))
    E_dS = e_p * x + p * E_dP + c * p_most * x + 2 * floor * live
    common = p * E_D

    # dt
    dt, E_dt, common_dt = dS, E_dS, common
    if w.slope is not None and w.slope_error is not None:
        dt, common_dt = dS * w.slope, common * w.slope
        E_dt = E_dS * (w.slope + w.slope_error) + (dS.abs() + common) * w.slope_error
        c = compound(theta(4, r.u), theta(3, r.u_s))
        steps = 1 + 2 * max(1.0, 1 / (rows.softcap or 1.0))
        E_dt = E_dt + c * (dt.abs() + E_dt + common_dt) + steps * floor * live
        if r.stores_scores and rows.softcap:
            # the slope of a saturated cap is zero, and would be multiplied by infinity
            stretched = rows.softcap * (dS.abs() + E_dS + common)
            undefined |= (stretched > storable).any(-1, keepdim=True)
    mass = dt.abs() + E_dt + common_dt
    stretch = max(1.0, size, rows.softcap or 0.0 if r.stores_scores else 0.0)
    undefined |= (mass * stretch > storable).any(-1, keepdim=True)
    if propagates:
        may_be_nan = may_be_nan | undefined

    # PRODUCTS
    def kept(x: torch.Tensor) -> torch.Tensor:
        # an undefined row may be infinite, and must not be multiplied by zero
        return torch.where(undefined, 0.0, x) if any_undefined else x

    any_undefined = bool(undefined.any())
    dt, p_kept, E_D, grad = kept(dt), kept(p), kept(E_D), kept(grad)
    E_dt, common_dt = kept(E_dt), kept(common_dt)
    mass, e_p, p_most, live = kept(mass), kept(e_p), kept(p_most), kept(live)
    # the bias is added before the softcap, or its gradient is that of the scores
    of_bias = (dt, E_dt, common_dt) if rows.caps_bias else tuple(map(kept, (dS, E_dS, common)))
    if exact is None:
        gradients: Mapping[str, torch.Tensor] = {
            "query": rows.scale * (dt @ key),
            "key": rows.scale * (dt.mT @ rows.query),
            "value": p_kept.mT @ grad,
            "scores": of_bias[0],
        }
    else:
        gradients = exact(grad)
    operand_scale = max(1.0, size)
    # a sum that is stored before it is scaled must fit as it is
    sum_scale = operand_scale if r.stores_scores else size
    mean_key = ((p_kept if w.slope is None else p_kept * w.slope) @ key).abs()
    query_size, key_size, grad_size = rows.query.abs(), key.abs(), grad.abs()
    of_query, of_key, of_value = mass @ key_size, mass.mT @ query_size, p_most.mT @ grad_size
    spoils = (undefined & w.readable) | spoiling
    of_rows = {"undefined": undefined.double(), "may_be_nan": may_be_nan.double()}
    of_keys = {
        "undefined": spoils.double().sum(-2)[..., None],
        "may_be_nan": may_be_nan.double().sum(-2, keepdim=True).expand(*key.shape[:3], 1),
    }
    of_scores = None
    if with_scores:
        d_bias, E_bias, common_bias = of_bias
        size_bias = d_bias.abs() + E_bias + common_bias
        of_scores = Part(
            exact=gradients["scores"],
            error=E_bias + common_bias,
            mass=size_bias,
            largest=size_bias,
            underflow=live,
            undefined=spoils.double(),
            may_be_nan=may_be_nan.double().expand(spoils.shape),
        )
    return Backward(
        query=Part(
            exact=gradients["query"],
            error=size * (E_dt @ key_size + E_D * mean_key)
            + operand_scale * r.f_q * mass.sum(-1, keepdim=True),
            mass=size * of_query,
            largest=sum_scale * of_query,
            underflow=operand_scale * (live @ key_size),
            **of_rows,
        ),
        key=Part(
            exact=gradients["key"],
            error=size * ((E_dt + common_dt).mT @ query_size)
            + operand_scale * r.f_q * mass.sum(-2)[..., None],
            mass=size * of_key,
            largest=sum_scale * of_key,
            underflow=operand_scale * (live.mT @ query_size),
            **of_keys,
        ),
        value=Part(
            exact=gradients["value"],
            error=e_p.mT @ grad_size + (r.f if r.u_in else 0.0) * p_most.sum(-2)[..., None],
            mass=of_value,
            largest=of_value,
            underflow=live.mT @ grad_size,
            **of_keys,
        ),
        scores=of_scores,
    )


def weight_error(w: Weights, forward: ForwardBound, r: Roundoff) -> torch.Tensor:
    """Return *r*, the error of the weights in a backward pass, saved or rebuilt."""
    live, p = w.readable.double(), w.p
    floor = r.f if r.stores_scores else r.f_u
    safe = torch.where(w.H < 0.5, 1 / (1 - w.H.clamp(max=0.5)), 0.0)
    dp = torch.where(w.H < 0.5, (w.ph + p * w.H.clamp(max=0.5)) * safe, live).clamp(max=1)
    rebuilt = torch.expm1((forward.lse_roundings + 2 * r.u + math.log1p(r.u_s)).clamp(max=60))
    return dp + (p + dp) * rebuilt + floor * live


def _sum_of_exponentials(w: Weights) -> PerRow:
    """Return the largest ℓ that a row may have: no exponential exceeds 1."""
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
    group: int = 1,
    scale: float | None,
    unit: float,
    storable: float,
) -> torch.Tensor:
    """Return the bound of a gradient, with the roundings of its sums and of storing it.

    Args:
        part: the gradient, all rows and heads of a group together.
        r: the permitted roundings.
        terms: the number of terms of each sum.
        writes: the number of times that a sum is written back in the storage type, beside the once
            that the sums of a group's heads are added.
        group: the number of query heads in it, whose sums may each be rounded.
        scale: the factor applied to the sum, or None.
        unit: the unit roundoff of the gradient's type.
        storable: the largest number of that type.
    """
    writes += group > 1
    c = compound(r.gamma(2 * terms + SPARE), r.u_p, theta(writes - 1, r.u_o), r.u_in)
    c = compound(c, r.u_q, theta(2, r.u_s)) if scale is not None else c
    bound = part.error + c * part.mass + r.f * part.underflow
    bound = bound + max(unit, r.u_in) * (part.exact.abs() + bound)
    stores_parts = writes > 1 or r.stores_scores
    floors = writes + (2 * group + 1 if r.stores_scores else group)
    before = abs(scale or 0.0) * (writes + group - 1) * (r.f if stores_parts else r.f_u)
    bound = bound + floors * r.f + before
    is_out = (4 * part.mass > r.largest) | (part.undefined > 0)
    if stores_parts:
        # a part that is stored in between may be an infinity of either sign
        is_out |= part.largest > storable
    return torch.where(is_out, math.inf, bound)
