"""Frequencies: are so many draws those of a distribution? With a false alarm all but excluded."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from attnspec.conformance.violation import Violation

FALSE_ALARM = 1e-12
"""The probability, at most, that a correct sampler fails one check: below 1e-9 in a thousand."""


def relative_entropy(share: float, probability: float) -> float:
    """KL(share ‖ probability) of two coins, in nats."""
    parts = ((share, probability), (1 - share, 1 - probability))
    return sum(a * math.log(a / b) if b > 0 else math.inf for a, b in parts if a > 0)


def check_frequencies(
    outcomes: Iterable[Hashable] | Mapping[Any, int],
    probabilities: Mapping[Any, float],
    told: str,
) -> None:
    """Hold independent draws to a distribution.

    By Chernoff's bound an outcome of probability p has, in n draws, a share s on a given side of p
    with probability at most exp(−n·KL(s ‖ p)). Two sides and K outcomes make 2K events, so that
    n·KL > ln(2K/α) for any of them happens with probability at most α.

    Args:
        outcomes: the draws, or how many there are of each.
        probabilities: of each outcome that there can be; zero for one that must not come.
        told: what was drawn, for the message.

    Raises:
        Violation: naming the outcome whose share is impossible.

    Source:
        Hoeffding 1963, theorem 1
    """
    counts = Counter(outcomes)
    draws = counts.total()
    limit = math.log(2 * len(probabilities) / FALSE_ALARM)
    unknown = counts.keys() - probabilities.keys()
    if unknown:
        raise Violation(f"{told}: {sorted(map(str, unknown))[0]} cannot come at all")
    for outcome, probability in probabilities.items():
        share = counts[outcome] / draws
        if draws * relative_entropy(share, min(probability, 1.0)) > limit:
            raise Violation(
                f"{told}: {outcome} has probability {probability:.6g}, but came {counts[outcome]} "
                f"times in {draws} draws; a correct sampler does so less than once in "
                f"{1 / FALSE_ALARM:.0e} runs"
            )
