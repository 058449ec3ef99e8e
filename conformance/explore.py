"""Exploration: Hypothesis looks for a case that breaks a law, and shrinks it within a budget."""

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.effort import Budget


def explore(
    attempt: Callable[[Any], None],
    strategy: SearchStrategy[Any],
    budget: Budget,
    cost: float,
) -> None:
    """Call `attempt` on drawn cases until one raises, then shrink that one.

    Args:
        attempt: raises on a case that breaks the law.
        strategy: draws cases.
        budget: how many to draw and how long to shrink.
        cost: of one case, in plain calls.

    Raises:
        Exception: what `attempt` raised on the smallest case found.
        Flaky: where the same case raised and did not.
    """
    failures: dict[str, float] = {}

    def bounded(case: Any) -> None:
        # Hypothesis has no limit on shrinking that a user can set. Once the time is up, cases
        # other than those already known to fail count as passing, so that it runs dry at once.
        spent = time.perf_counter() - min(failures.values(), default=time.perf_counter())
        if spent > budget.shrinking and repr(case) not in failures:
            return
        try:
            attempt(case)
        except Exception:
            failures.setdefault(repr(case), time.perf_counter())
            raise

    search = settings(
        max_examples=budget.examples_of(cost),
        derandomize=budget.derandomised,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(case=strategy)(bounded))
    try:
        search()
    except Unsatisfiable:
        # Nothing that the subject claims satisfies the strategy: the caller sees no examples.
        return
