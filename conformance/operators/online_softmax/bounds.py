r"""The error bounds of an online softmax and of a merge, element by element.

**Weights.** A row has *n* keys with scores :math:`x_j`, maximum *m* and weights :math:`p_j`; *w* is
the unit roundoff of the accumulator. Whatever the tiles, a key contributes a
product of exponentials, :math:`e^{x_j - m_1} e^{m_1 - m_2} \cdots`, one for the tile and one for
each tile that follows. Their arguments have one sign, so that the rounding of all differences
together is at most :math:`w (m - x_j)`. A kernel with powers of two rounds :math:`x_j` and *m*
times :math:`\log_2 e` before it subtracts: :math:`2 w M` more, where *M* is the largest absolute
value of a visible score. Each exponential has at most `EXP` units of its own, and there are up to
*n* of them, each with a product, a sum, and (in kernels that normalize in each tile) a division:
`STEP` units for each key. The logarithm of the relative error is thus at most

.. math::
    \theta_j = 2 w (M + m - x_j) + n\, \mathrm{STEP}\, w.

A row that keeps its log-sum-exp (`Kept.LOG_SUM_EXP`) rounds, for each part, that of the part, that
of the sum, and their difference: 3 units of :math:`M + \log n + 1` for each key, and twice that for
the other part of the sum. One that keeps the sum of exponentials subtracts nothing:
:math:`M w` as above, and nothing is promised where a sum leaves the range.

**Output.** Numerator and denominator have these errors with weights :math:`p_j |v_j|` and
:math:`p_j`; with :math:`D = \sum_j p_j (e^{\theta_j} - 1)` the output errs by at most
:math:`\sum_j p_j |v_j| (e^{\theta_j} / (1 - D) - 1)`. Exponentials that underflow add the smallest
number once for each step. In 16 bits the weights may be rounded to the storage type before they
multiply, and the output is.

**Log-sum-exp.** The logarithm adds :math:`-\log(1 - D)`, and rounding of *m*, of itself and of the
sum of both.

**Gradients.** Recomputed weights :math:`e^{x_j - L}` have the error of *L* and one more difference.
:math:`dx_j = p_j (a_j - \bar a)`, where :math:`a_j = g \cdot v_j`: both terms are sums of products
and :math:`\bar a = g \cdot o` has the error of the output as well. A backward pass through the
running maximum leaves, at each key that was one, what should cancel: `STEP` units of the sum of all
absolute terms for each key.

**Merge.** As a row of two keys whose scores are the log-sum-exps. The form
:math:`o_a + p_b (o_b - o_a)` rounds the difference: 3 units of :math:`|o_a| + |o_b|`.

Source:
    Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 3 and 4;
    Blanchard et al. 2021
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.operators.roundoff import Roundoff
from attnspec.spec.online_softmax import Kept, LogBase, OnlineSoftmaxProfile

EXP = 4
"""Units of an exponential or a logarithm: twice those of the fast ones of GPUs."""

STEP = EXP + 4
"""Units of one step: an exponential, a product, a sum, and a division of two roundings."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one call.

    Attributes:
        out: of the output.
        lse: of the log-sum-exp.
        scores: of the gradient of the scores; None without a backward pass.
        values: of the gradient of the values; None without a backward pass.
    """

    out: Float64[torch.Tensor, "*rows d_value"]
    lse: Float64[torch.Tensor, "*rows"]
    scores: Float64[torch.Tensor, "queries keys"] | None = None
    values: Float64[torch.Tensor, "keys d_value"] | None = None

    def plus(self, other: "Bounds") -> "Bounds":
        """Return the sums of these bounds and others; of gradients if both have them."""
        pairs = ((self.scores, other.scores), (self.values, other.values))
        of_scores, of_values = (
            None if one is None or two is None else one + two for one, two in pairs
        )
        return Bounds(
            out=self.out + other.out, lse=self.lse + other.lse, scores=of_scores, values=of_values
        )


def bounds(
    scores: Float[torch.Tensor, "queries keys"],
    values: Float[torch.Tensor, "keys d_value"],
    profile: OnlineSoftmaxProfile,
    grad_out: Float[torch.Tensor, "queries d_value"] | None = None,
) -> Bounds:
    """Return the largest error of each element that a conforming online softmax may have.

    Args:
        scores: in the storage type.
        values: in the storage type.
        profile: the declared answers.
        grad_out: the incoming gradient of the output, in the storage type.

    Returns:
        Zero for rows with a NaN, whose results are NaN; infinity where a sum of exponentials
        leaves its range.
    """
    unit = Roundoff.of(scores.dtype)
    row = _Row.of(scores, values, profile, unit)
    if grad_out is None:
        return Bounds(out=row.out, lse=row.lse)
    grad = grad_out.detach().double().abs()
    x, v = scores.detach().double(), values.detach().double().abs()
    terms = grad @ v.mT
    mean = (row.weights * terms).sum(-1, keepdim=True)
    count = scores.shape[-1] + values.shape[-1]
    # L is stored, and subtracted from the scores
    again = 2 * unit.working * (row.size[:, None] + row.gap) + row.lse_natural[:, None]
    theta = row.theta + again + math.log1p(unit.gamma(count + STEP)) + 4 * _stored(unit)
    relative = torch.expm1(theta) / (1 - row.spread)[:, None]
    through_maximum = scores.shape[-1] * STEP * unit.working * (mean + terms.amax(-1, keepdim=True))
    of_scores = row.weights * (
        (terms + mean) * relative + (grad * row.out).sum(-1, keepdim=True) * (1 + relative)
    )
    # what underflows, and is multiplied by the terms
    least = count * (unit.tiny + unit.floor) * row.magnified[:, None] * (1 + terms + mean)
    of_scores = torch.where(x == -torch.inf, 0.0, of_scores + through_maximum + least)
    gamma = math.log1p(unit.gamma(len(scores)))
    of_values = (row.weights * torch.expm1(theta + gamma) / (1 - row.spread)[:, None]).mT @ grad
    least_values = count * (unit.tiny + unit.floor) * ((1 + grad) * row.magnified[:, None]).sum(0)
    return Bounds(
        out=row.out,
        lse=row.lse,
        scores=_promised(of_scores, row, x),
        values=torch.where(
            row.is_promised.all() & ~x.isnan().any(), of_values + least_values, torch.inf
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The errors of the forward pass.

    Attributes:
        weights: the exact weights.
        gap: the distance of each score from the maximum; 0 for a hidden one.
        size: the largest absolute value of a visible score.
        theta: the logarithm of the relative error of each weight.
        spread: the relative error of the denominator.
        out: the bound of the output.
        lse: that of the log-sum-exp.
        lse_natural: that of the natural log-sum-exp.
        magnified: the size of an underflow relative to the sum.
        is_promised: false for rows whose sum leaves its range.
    """

    weights: torch.Tensor
    gap: torch.Tensor
    size: torch.Tensor
    theta: torch.Tensor
    spread: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    lse_natural: torch.Tensor
    magnified: torch.Tensor
    is_promised: torch.Tensor

    @classmethod
    def of(
        cls,
        scores: torch.Tensor,
        values: torch.Tensor,
        profile: OnlineSoftmaxProfile,
        unit: Roundoff,
    ) -> "_Row":
        x, v = scores.detach().double(), values.detach().double()
        count, w = x.shape[-1], unit.working
        is_visible = x != -torch.inf
        maximum = x.amax(-1)
        maximum = torch.where(maximum.isinf(), 0.0, maximum)
        gap = torch.where(is_visible, maximum[:, None] - x, 0.0)
        size = torch.where(is_visible, x.abs(), 0.0).amax(-1)
        masses = torch.where(is_visible, torch.exp(-gap), 0.0)
        total = masses.sum(-1)
        weights = masses / torch.where(total == 0, 1.0, total)[:, None]
        lse = maximum + torch.where(total == 0, 0.0, total.log())
        theta = 2 * w * (size[:, None] + gap) + count * STEP * math.log1p(w)
        if profile.keeps is Kept.LOG_SUM_EXP:
            theta = theta + count * 9 * w * (size + math.log(count) + 1)[:, None]
        spread = (weights * torch.expm1(theta)).sum(-1)
        is_promised = spread <= 0.5
        magnified = torch.ones_like(total)
        if profile.keeps is Kept.SUM:
            # relative to the sum itself, which is not near one
            magnified = torch.exp(-lse.clamp(-700.0, 700.0))
            most = maximum + math.log(count) + math.log1p(float(v.abs().amax()))
            is_promised = is_promised & (most < math.log(unit.largest))
            is_promised = is_promised & (maximum > math.log(unit.floor) + 40)
            is_promised = is_promised | (total == 0)
        spread = torch.where(is_promised, spread, 0.5)
        stored = _stored(unit)
        relative = (
            torch.expm1(theta + stored) / (1 - spread)[:, None] + (spread / (1 - spread))[:, None]
        )
        of_weights = (weights * relative) @ v.abs()
        flushed = (unit.floor + (unit.tiny if stored else 0.0)) * magnified[:, None]
        least = (count + 1) * flushed * (1 + 2 * v.abs().sum(0)) + unit.tiny
        out = of_weights + least
        mean = (weights @ v).abs()
        out = out + unit.storage * (mean + out)
        natural = -torch.log1p(-spread) + (count + 1) * unit.floor * magnified
        natural = natural + EXP * w * (1 + 2 * size + 2 * math.log(count + 1))
        base = profile.base.unit
        of_lse = natural / base + 2 * w * lse.abs() / base
        # a row without visible keys is exact
        of_lse = torch.where(total == 0, 0.0, of_lse)
        out = torch.where(total[:, None] == 0, 0.0, out)
        row = cls(
            weights=weights,
            gap=gap,
            size=size,
            theta=theta,
            spread=spread,
            out=out,
            lse=of_lse,
            lse_natural=natural,
            magnified=magnified,
            is_promised=is_promised,
        )
        return cls(**{**vars(row), "out": _promised(out, row, x), "lse": _promised(of_lse, row, x)})


def _stored(unit: Roundoff) -> float:
    """Return the error of a weight that is rounded to a storage type of 16 bits, else zero."""
    return math.log1p(unit.storage) if unit.storage > unit.working else 0.0


def _promised(bound: torch.Tensor, row: _Row, x: torch.Tensor) -> torch.Tensor:
    """Return infinity where nothing is promised, and zero for rows with a NaN."""
    shape = (-1, *[1] * (bound.dim() - 1))
    bound = torch.where(row.is_promised.view(shape), bound, torch.inf)
    return torch.where(x.isnan().any(-1).view(shape), 0.0, bound)


def merge_bounds(
    out_a: Float[torch.Tensor, "*rows d_value"],
    lse_a: Float[torch.Tensor, "*rows"],
    out_b: Float[torch.Tensor, "*rows d_value"],
    lse_b: Float[torch.Tensor, "*rows"],
    base: LogBase,
) -> Bounds:
    """Return the largest error of each element that a conforming merge may have.

    Args:
        out_a: the output of the first part, in the storage type.
        lse_a: its log-sum-exp.
        out_b: the output of the second part.
        lse_b: its log-sum-exp.
        base: the base of the logarithms.
    """
    unit = Roundoff.of(out_a.dtype)
    w, u = unit.working, unit.storage
    a, b = (lse.detach().double() * base.unit for lse in (lse_a, lse_b))
    size = torch.maximum(*(torch.where(lse.isinf(), 0.0, lse.abs()) for lse in (a, b)))
    gap = torch.where(a.isinf() | b.isinf(), 0.0, (a - b).abs())
    one, two = out_a.detach().double().abs(), out_b.detach().double().abs()
    larger = torch.maximum(a, b)
    shift = torch.where(larger.isinf(), 0.0, larger)
    masses = torch.exp(a - shift), torch.exp(b - shift)
    total = masses[0] + masses[1]
    divisor = torch.where(total == 0, 1.0, total)
    # the log-sum-exp of the sum is rounded, and subtracted
    theta = w * (6 * size + 2 * gap + 6) + 3 * STEP * w
    mean = (masses[0] / divisor)[..., None] * one + (masses[1] / divisor)[..., None] * two
    out = mean * torch.expm1(2 * theta)[..., None] + 3 * w * (one + two)
    out = out + unit.floor * (1 + one + two) + unit.tiny
    out = out + u * (mean + out)
    lse = theta + EXP * w * (2 + size) + unit.floor
    lse = lse / base.unit
    is_empty = total == 0
    return Bounds(
        out=torch.where(is_empty[..., None], 0.0, out), lse=torch.where(is_empty, 0.0, lse)
    )
