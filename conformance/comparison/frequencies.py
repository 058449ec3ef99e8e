"""Test whether draws follow a distribution, with a negligible probability of a false alarm."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from attnspec.conformance.comparison.violation import Violation

FALSE_ALARM = 1e-12
"""Upper bound of the probability that a correct sampler fails one check: 1e-9 in a thousand."""


def relative_entropy(share: float, probability: float) -> float:
    """Return KL(share ‖ probability) of two coins, in nats."""
    pairs = ((share, probability), (1 - share, 1 - probability))
    return sum(p * math.log(p / q) if q > 0 else math.inf for p, q in pairs if p > 0)


def check_frequencies(
    outcomes: Iterable[Hashable] | Mapping[Any, int],
    probabilities: Mapping[Any, float],
    name: str,
) -> None:
    """Check that independent draws follow a distribution.

    By Chernoff's bound an outcome of probability p has, in n draws, a share s on a given side of p
    with probability at most exp(−n·KL(s ‖ p)). Two sides and K outcomes make 2K events, so that
    n·KL > ln(2K/α) for any of them happens with probability at most α.

    Args:
        outcomes: the draws, or the count of each outcome.
        probabilities: of each possible outcome; zero for one that must not occur.
        name: the name of the quantity drawn, for the message.

    Raises:
        Violation: if the share of an outcome is impossible; names the outcome.

    Source:
        Hoeffding 1963, theorem 1
    """
    counts = Counter(outcomes)
    draws = counts.total()
    limit = math.log(2 * len(probabilities) / FALSE_ALARM)
    unknown = counts.keys() - probabilities.keys()
    if unknown:
        raise Violation(f"{name}: {sorted(map(str, unknown))[0]} is not a possible outcome")
    for outcome, probability in probabilities.items():
        share = counts[outcome] / draws
        if draws * relative_entropy(share, min(probability, 1.0)) > limit:
            raise Violation(
                f"{name}: {outcome} has probability {probability:.6g}, but occurred "
                f"{counts[outcome]} times in {draws} draws; a correct sampler does so less than "
                f"once in {1 / FALSE_ALARM:.0e} runs"
            )
