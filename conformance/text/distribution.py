r"""The distributions allowed to a sampler, for logits, settings and a working precision.

Let x = l/T, m = max x, u the unit roundoff. A sampler computes e^{x_j − m} up to a factor
e^{δ_j}(1 + 4u), where δ_j ≤ u(3|x_j| + 3|m| + |x_j − m|): T may be rounded to the working type, its
reciprocal taken, the product rounded, and then the difference; exp errs by two units in the last
place. Numerator and denominator may each err by that factor, the sum of n terms by (n − 1)u, the
quotient by u. Filters may normalize before and after, which doubles the error. With D = max δ_j
the relative error of a probability is at most

    r = e^{4D + (2n + 24)u} − 1.

A sum of probabilities errs by s = r + (n + 8)u. The decision for or against a token may lie that
far from `top_p`. The quotient of a probability and the largest one lies within a factor
(1 + s)/(1 − s) of the exact share, so that near `min_p` either decision may come; a token whose
logit is the largest has the share 1 in any arithmetic. The oracle's own r, in float64, is added to
every tolerance.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import Violation
from attnspec.spec import Sampling


@dataclass(frozen=True)
class Precision:
    """The unit roundoff and the smallest normal number of a type."""

    u: float
    floor: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """Return the precision of a dtype, as torch reports it."""
        info = torch.finfo(dtype)
        return cls(u=info.eps / 2, floor=info.smallest_normal)


def relative_error(scaled: list[float], precision: Precision) -> float:
    """Return the error r of this module's docstring, for finite logits over the temperature."""
    peak = max(scaled)
    widest = max(3 * abs(x) + 3 * abs(peak) + abs(x - peak) for x in scaled)
    return math.expm1(precision.u * (4 * widest + 2 * len(scaled) + 24))


def softmax(scaled: list[float]) -> list[float]:
    """Return the probabilities of finite scaled logits, with an exact sum."""
    peak = max(scaled)
    masses = [math.exp(x - peak) for x in scaled]
    total = math.fsum(masses)
    return [mass / total for mass in masses]


def sizes(scaled: list[float], sampling: Sampling, slack: float) -> set[int]:
    """Return the numbers of tokens that the filters may keep.

    Args:
        scaled: finite logits divided by the temperature, in descending order.
        sampling: the settings, with the filters.
        slack: the largest error of a sum of probabilities: s of this module's docstring.
    """
    return {
        size
        for kept in _sizes_after_top_p(scaled, sampling, slack)
        for size in _sizes_after_min_p(scaled[:kept], sampling.min_p, slack)
    }


def _sizes_after_min_p(scaled: list[float], min_p: float | None, slack: float) -> set[int]:
    if min_p is None:
        return {len(scaled)}
    shares = [math.exp(x - scaled[0]) for x in scaled]
    factor = (1 + slack) / (1 - slack)
    certain = sum(share >= min(1.0, min_p * factor) for share in shares)
    possible = sum(share >= min_p / factor for share in shares)
    if min_p * factor >= 1:
        certain = sum(x == scaled[0] for x in scaled)
    return set(range(certain, possible + 1))


def _sizes_after_top_p(scaled: list[float], sampling: Sampling, slack: float) -> set[int]:
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
    """Check probabilities against the exact distribution.

    Raises:
        Violation: if a probability is wrong, or the set of kept tokens; names it.
    """
    if not isinstance(got, torch.Tensor) or got.shape != logits.shape:
        raise Violation(f"the probabilities must be a tensor like the logits, got {got!r}")
    if got.dtype not in (logits.dtype, torch.float64):
        raise Violation(f"the probabilities must be no narrower than {logits.dtype}: {got.dtype}")
    probabilities = got.double().tolist()
    if not all(p >= 0 for p in probabilities):
        raise Violation(f"every probability must be at least 0, got {probabilities}")
    finite = [n for n, x in enumerate(logits.tolist()) if x > -math.inf]
    scaled = {n: logits[n].item() / sampling.temperature for n in finite}
    precision = Precision.of(logits.dtype)
    values = sorted(scaled.values(), reverse=True)
    r = relative_error(values, precision) + relative_error(values, Precision.of(torch.float64))
    kept = [n for n, p in enumerate(probabilities) if p > 0]
    if sampling.top_k is None and sampling.top_p is None and not sampling.min_p:
        # without a filter, a probability of zero has underflowed
        kept = sorted({*kept, *finite})
    slack = r + (len(probabilities) + 8) * precision.u
    _check_kept(kept, scaled, sizes(values, sampling, slack), probabilities)
    expected = dict(zip(kept, softmax([scaled[n] for n in kept]), strict=True))
    _check_values(probabilities, kept, expected, r, precision)


def _check_kept(
    kept: list[int], scaled: dict[int, float], allowed: set[int], probabilities: list[float]
) -> None:
    if not set(kept) <= scaled.keys():
        raise Violation(f"a token with logit minus infinity has a probability: {probabilities}")
    if len(kept) not in allowed:
        counts = " or ".join(map(str, sorted(allowed)))
        raise Violation(f"{counts} tokens must be kept, got {len(kept)}: {probabilities}")
    dropped = scaled.keys() - set(kept)
    if dropped and max(scaled[n] for n in dropped) > min(scaled[n] for n in kept):
        raise Violation(f"the tokens kept must be the most probable ones, got {probabilities}")


def _check_values(
    probabilities: list[float],
    kept: list[int],
    expected: dict[int, float],
    r: float,
    precision: Precision,
) -> None:
    for n in kept:
        tolerance = r * expected[n] + precision.floor
        distance = abs(probabilities[n] - expected[n])
        if not distance <= tolerance:
            raise Violation(
                f"the probability of token {n} must be {expected[n]:.17g}, "
                f"got {probabilities[n]:.17g}, allowed distance {tolerance:.3g}"
            )
        tally.record_fraction(distance / tolerance)
