r"""The distributions that a sampler may give, for logits, settings and a working precision.

Let x = l/T, m = max x, u the unit roundoff. A sampler computes e^{x_j − m} up to a factor
e^{δ_j}(1 + 4u), where δ_j ≤ u(3|x_j| + 3|m| + |x_j − m|): T may be rounded to the working type, its
reciprocal taken, the product rounded, and then the difference; exp errs by two units in the last
place. Numerator and denominator each may be off by that, the sum of n terms by (n − 1)u, the
quotient by u. Filters may normalize before and after: twice all of it. With D = max δ_j the
relative error of a probability is at most

    r = e^{4D + (2n + 24)u} − 1.

A sum of probabilities errs by r and another (n + 8)u, which is how far from `top_p` the decision
for or against a token may lie. The oracle's own r, in float64, is added to every gate.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float

from attnspec.conformance import tally
from attnspec.conformance.violation import Violation
from attnspec.spec import Sampling


@dataclass(frozen=True)
class Precision:
    """Unit roundoff and smallest normal number of a type."""

    u: float
    floor: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """Read them from torch."""
        info = torch.finfo(dtype)
        return cls(u=info.eps / 2, floor=info.smallest_normal)


def relative_error(scaled: list[float], precision: Precision) -> float:
    """The error r of this module's docstring, for finite logits divided by the temperature."""
    peak = max(scaled)
    widest = max(3 * abs(x) + 3 * abs(peak) + abs(x - peak) for x in scaled)
    return math.expm1(precision.u * (4 * widest + 2 * len(scaled) + 24))


def softmax(scaled: list[float]) -> list[float]:
    """Probabilities of finite scaled logits, the sum taken exactly."""
    peak = max(scaled)
    masses = [math.exp(x - peak) for x in scaled]
    total = math.fsum(masses)
    return [mass / total for mass in masses]


def sizes(scaled: list[float], sampling: Sampling, slack: float) -> set[int]:
    """How many tokens may be kept.

    Args:
        scaled: finite logits divided by the temperature, in descending order.
        sampling: whose filters are applied.
        slack: how far from `top_p` a decision may lie.
    """
    count = len(scaled)
    after_top_k = {count}
    if sampling.top_k is not None and sampling.top_k < count:
        least = scaled[sampling.top_k - 1]
        after_top_k = set(range(sampling.top_k, sum(x >= least for x in scaled) + 1))
    if sampling.top_p is None:
        return after_top_k
    allowed: set[int] = set()
    for kept in after_top_k:
        masses = softmax(scaled[:kept])
        for size in range(1, kept + 1):
            enough = math.fsum(masses[:size]) >= sampling.top_p - slack
            needed = math.fsum(masses[: size - 1]) < sampling.top_p + slack
            if enough and needed:
                allowed.add(size)
    return allowed


def check_distribution(
    got: Float[torch.Tensor, " vocab"],
    logits: Float[torch.Tensor, " vocab"],
    sampling: Sampling,
) -> None:
    """Hold probabilities to the rule.

    Raises:
        Violation: naming the token that is wrong, or the set of tokens kept.
    """
    if not isinstance(got, torch.Tensor) or got.shape != logits.shape:
        raise Violation(f"the probabilities must be a tensor like the logits, got {got!r}")
    if got.dtype not in (logits.dtype, torch.float64):
        raise Violation(f"the probabilities must be no narrower than {logits.dtype}: {got.dtype}")
    found = got.double().tolist()
    if not all(p >= 0 for p in found):
        raise Violation(f"every probability must be at least 0, got {found}")
    finite = [n for n, x in enumerate(logits.tolist()) if x > -math.inf]
    scaled = {n: logits[n].item() / sampling.temperature for n in finite}
    precision = Precision.of(logits.dtype)
    values = sorted(scaled.values(), reverse=True)
    r = relative_error(values, precision) + relative_error(values, Precision.of(torch.float64))
    kept = [n for n, p in enumerate(found) if p > 0]
    if sampling.top_k is None and sampling.top_p is None:
        # without a filter a probability of zero is one too small for the type
        kept = sorted({*kept, *finite})
    slack = r + (len(found) + 8) * precision.u
    _check_kept(kept, scaled, sizes(values, sampling, slack), found)
    _check_values(
        found, kept, dict(zip(kept, softmax([scaled[n] for n in kept]), strict=True)), r, precision
    )


def _check_kept(
    kept: list[int], scaled: dict[int, float], allowed: set[int], found: list[float]
) -> None:
    if not set(kept) <= scaled.keys():
        raise Violation(f"a token with logit minus infinity has a probability: {found}")
    if len(kept) not in allowed:
        told = " or ".join(map(str, sorted(allowed)))
        raise Violation(f"{told} tokens must be kept, got {len(kept)}: {found}")
    left = scaled.keys() - set(kept)
    if left and max(scaled[n] for n in left) > min(scaled[n] for n in kept):
        raise Violation(f"the tokens kept must be the most probable ones, got {found}")


def _check_values(
    found: list[float],
    kept: list[int],
    expected: dict[int, float],
    r: float,
    precision: Precision,
) -> None:
    for n in kept:
        gate = r * expected[n] + precision.floor
        distance = abs(found[n] - expected[n])
        if not distance <= gate:
            raise Violation(
                f"the probability of token {n} must be {expected[n]:.17g}, got {found[n]:.17g}, "
                f"allowed distance {gate:.3g}"
            )
        tally.reached(distance / gate)
