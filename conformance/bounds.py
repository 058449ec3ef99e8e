"""The error bound: how far from the exact result a conforming implementation may be, per element.

Worst case, from the data of the call, for the rounding that an implementation declares. Symbols
are those of chapter NUM; everything here is computed in float64 from the inputs as stored.

Unit roundoffs: u of the accumulator, u_o of the storage type, u_p of the type in which the
weights meet the values (the storage type). gamma(n) = n·u / (1 − n·u) bounds n roundings.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64

from attnspec.spec import Rounding, RoundingLevel

UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""The unit roundoff of each storage type: half the distance from 1 to the next number."""

FLOOR = {
    torch.float64: 2.0**-1018,
    torch.float32: 2.0**-122,
    torch.bfloat16: 2.0**-122,
    torch.float16: 2.0**-25,
}
"""What underflow may cost: flush to zero, and an exp that flushes a little early, are allowed;
float16 must underflow gradually, so half its smallest subnormal number."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The roundings that a level permits, as numbers."""

    u: float
    u_o: float
    u_p: float
    u_q: float
    u_s: float
    u_l: float
    exp_error: float
    tanh_error: float
    floor: float
    largest: float

    def gamma(self, n: int) -> float:
        """The relative error of n roundings one after another."""
        return n * self.u / (1 - n * self.u) if n * self.u < 0.5 else math.inf


def model(dtype: torch.dtype, rounding: Rounding) -> Model:
    """The numbers behind a declared rounding for one storage type."""
    storage = UNIT[dtype]
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    prescaled = rounding.level in (RoundingLevel.PRESCALED, RoundingLevel.EAGER)
    eager = rounding.level is RoundingLevel.EAGER
    rowsum = rounding.level in (RoundingLevel.ROWSUM, RoundingLevel.EAGER)
    return Model(
        u=rounding.accumulator or UNIT[accumulator],
        u_o=storage,
        u_p=storage,
        u_q=storage if prescaled else 0.0,
        u_s=storage if eager else 0.0,
        u_l=storage if rowsum else 0.0,
        exp_error=rounding.exp_error,
        tanh_error=rounding.tanh_error,
        floor=FLOOR[dtype],
        largest=torch.finfo(dtype if eager else accumulator).max,
    )


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the bound needs to know of the scores of a call, all (batch, heads, queries, keys).

    Attributes:
        products: A, the sum of |q||k| times |scale|; 0 where unreadable.
        capped: |score| before the bias.
        scaled: |score| before the cap.
        bias: |bias| from the mask plus |bias| from ALiBi.
        logits: the final scores; minus infinity where unreadable.
        visible: true where readable.
    """

    products: Float64[torch.Tensor, "batch heads queries keys"]
    scaled: Float64[torch.Tensor, "batch heads queries keys"]
    capped: Float64[torch.Tensor, "batch heads queries keys"] | None
    bias: Float64[torch.Tensor, "..."] | None
    logits: Float64[torch.Tensor, "batch heads queries keys"]
    visible: Bool[torch.Tensor, "batch heads queries keys"]


def forward(
    scores: Scores,
    value: Float64[torch.Tensor, "batch heads keys d_value"],
    sinks: Float64[torch.Tensor, " heads"] | None,
    out: Float64[torch.Tensor, "batch heads queries d_value"],
    d_head: int,
    m: Model,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the error of each output element and of each log-sum-exp.

    The exponent of weight p_j errs by at most

        e_j = gamma(d+4) A_j + u_q A_j + u_s (2 A_j + |t_j|) + cap_j + u (3 |b_j| + 4 (|s_j| + |m|))

    from the products, their rounding where the level stores them, the cap, the bias (a product
    and two sums) and the subtraction of the maximum m. tanh has slope at most 1, so the error of
    its argument passes unmagnified:  cap_j = 4u |t_j| + (tanh_error + 4) u |y_j|, and at level
    eager the three stored results t/c, tanh, c·tanh add  u_s (|t_j| + 2 |y_j|).

    So exp errs relatively by  h_j = expm1(e_j) + exp_error·u,  its row mean is  H = Σ p_j h_j,
    and with  g = gamma(2 keys + 16)  for sums in any order, tiles and rescaling,

        |Ô − O| ≤ spread + ((1+u_p)(1+g) − 1) Σ (p_j + dp_j)|v_j| + (g + u_l)(|O| + spread)
                  + f Σ |v_j|,   then   x + u_o (|O| + x) + f.

    dp_j = p_j (h_j + H)/(1 − H). An error in a weight enters numerator and denominator alike, so
    only the spread of the values about O feels it:

        spread = min(Σ p h |v| + H |O|,  √(Σ p h²) √(Σ p (v − O)²)) / (1 − H),

    the second by Cauchy and Schwarz. Where H ≥ 1/2 nothing better is known than that O is a
    convex combination: spread = max(v_max − O, O − v_min). A sink is one more key of value 0.
    The log-sum-exp is m + ln Σ e^(s−m), and the sum errs relatively by at most
    E = (1 + H)(1 + g)(1 + u_l) − 1:   −ln(1 − E) + 4u (|m| + |ln Σ| + 1) + u_o |lse|.

    Source:
        The calculus of gamma(n): Higham 2002, section 3.1; shifted softmax: Blanchard,
        Higham and Higham 2021.
    """
    keys = scores.logits.shape[-1]
    columns = [scores.logits]
    exponents = [_exponent_error(scores, sinks, d_head, m)]
    if sinks is not None:
        sink = sinks[:, None, None].expand(*scores.logits.shape[:-1], 1)
        peak = _peak(scores.logits, sinks)
        columns.append(sink)
        exponents.append(m.u * 4 * (sink.abs() + peak.abs()) + m.u_s * sink.abs())
        value = torch.cat([value, torch.zeros_like(value[..., :1, :])], dim=-2)
    logits, exponent = torch.cat(columns, dim=-1), torch.cat(exponents, dim=-1)
    live = logits != -torch.inf
    peak = _peak(scores.logits, sinks)
    p = torch.exp(logits - peak)
    total = p.sum(-1, keepdim=True)
    p = torch.where(total > 0, p / torch.where(total > 0, total, 1.0), 0.0)

    h = torch.where(live, torch.expm1(exponent.clamp(max=700)) + m.exp_error * m.u, 0.0)
    ph = p * h
    mean_h = ph.sum(-1, keepdim=True)
    room = torch.where(mean_h < 0.5, 1 / (1 - mean_h.clamp(max=0.5)), torch.inf)
    dp = torch.where(ph + p * mean_h > 0, (ph + p * mean_h) * room, 0.0).clamp(max=1.0)

    g = m.gamma(2 * keys + 16)
    size = value.abs()
    variance = (p @ value**2 - out**2).clamp(min=0) + 1e-15 * (p @ value**2)
    spread = torch.minimum(
        (ph @ size + mean_h * out.abs()), ((ph * h).sum(-1, keepdim=True) * variance).sqrt()
    )
    spread = torch.where(spread > 0, spread * room, 0.0)
    if bool((mean_h > 0.05).any()):
        spread = torch.minimum(spread, _convexity(value, live, out))
    weights = ((1 + m.u_p) * (1 + g) - 1) * ((p + dp) @ size)
    bound = spread + weights + (g + m.u_l) * (out.abs() + spread) + m.floor * (live.double() @ size)
    bound = bound + m.u_o * (out.abs() + bound) + m.floor

    lse = torch.where(total > 0, peak + torch.log(torch.where(total > 0, total, 1.0)), -torch.inf)
    relative = (1 + mean_h) * (1 + g) * (1 + m.u_l) - 1
    bound_lse = torch.where(relative < 1, -torch.log1p(-relative.clamp(max=1 - 1e-16)), torch.inf)
    log_total = torch.log(torch.where(total > 0, total, 1.0)).abs()
    bound_lse = bound_lse + 4 * m.u * (peak.abs() + log_total + 1) + m.u_o * lse.abs()
    bound_lse = torch.where(total > 0, bound_lse, 0.0).squeeze(-1)

    # Scores beyond the accumulator (at level eager: beyond the storage type) are out of range.
    beyond = (scores.products > m.largest).any(-1)
    bound = torch.where(beyond[..., None], torch.inf, bound)
    return bound, torch.where(beyond, torch.inf, bound_lse)


def _peak(logits: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The largest logit of each row, 0 where there is none."""
    rows = (*logits.shape[:-1], 1)
    peak = logits.amax(-1, keepdim=True) if logits.shape[-1] else logits.new_full(rows, -torch.inf)
    if sinks is not None:
        peak = torch.maximum(peak, sinks[:, None, None])
    return torch.where(peak == -torch.inf, 0.0, peak)


def _exponent_error(
    scores: Scores, sinks: torch.Tensor | None, d_head: int, m: Model
) -> torch.Tensor:
    """The e of `forward`, 0 where unreadable."""
    a, t = scores.products, scores.scaled
    peak = _peak(scores.logits, sinks)
    final = torch.where(scores.visible, scores.logits, 0.0).abs()
    e = (m.gamma(d_head + 4) + m.u_q) * a + m.u_s * (2 * a + t)
    if scores.capped is not None:
        y = scores.capped
        e = e + m.u * (4 * t + (m.tanh_error + 4) * y) + m.u_s * (t + 2 * y)
    if scores.bias is not None:
        e = e + (3 * m.u + 2 * m.u_s) * scores.bias
    e = e + m.u * 4 * (final + peak.abs()) + m.u_s * final
    return torch.where(scores.visible, e, 0.0)


def _convexity(value: torch.Tensor, live: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """How far a mean of readable values can be from O: one channel at a time, to save memory."""
    far = [
        torch.maximum(
            torch.where(live, value[..., c][..., None, :], -torch.inf).amax(-1) - out[..., c],
            out[..., c] - torch.where(live, value[..., c][..., None, :], torch.inf).amin(-1),
        )
        for c in range(value.shape[-1])
    ]
    return torch.stack(far, dim=-1).clamp(min=0) if far else torch.zeros_like(out)
