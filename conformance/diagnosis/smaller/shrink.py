"""Shrinking: the smallest case that still fails, by greedy reduction of its fields."""

import time
from collections.abc import Callable
from typing import Any

from attnspec.conformance.diagnosis.smaller.reductions import reductions_of


def shrink(case: Any, fails: Callable[[Any], bool], seconds: float) -> Any:
    """Return the smallest case found that still fails.

    Each reduction is tried in turn until none of them leaves a case that fails.

    Args:
        case: a case that fails.
        fails: returns whether another case fails in the same way.
        seconds: after which the smallest case so far is returned.
    """
    deadline = time.perf_counter() + seconds
    before = None
    while case != before:
        before = case
        for reduction in reductions_of(case):
            for changes in reduction(case):
                if time.perf_counter() > deadline:
                    return case
                try:
                    smaller = case.but(**changes)
                except ValueError:  # no case has these fields together
                    continue
                if fails(smaller):
                    case = smaller
                    break
    return case
