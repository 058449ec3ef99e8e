"""Exploration: Hypothesis looks for a case that breaks a law, and shrinks it within a budget."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.strategies import NothingClaimed
from attnspec.conformance.laws.law import Source
from attnspec.conformance.runner.effort import Budget

STEPS = 10
"""Rules that a state machine follows in one example."""

SEED = 0
"""The default seed: all laws that draw from the same strategy then meet the same cases."""


def explore(
    attempt: Callable[[Any], None],
    source: Source,
    budget: Budget,
    cost: float,
    fresh: int | None = None,
    name: str = "",
) -> None:
    """Call `attempt` on drawn cases until one raises, then shrink that one.

    Args:
        attempt: called with each case; raises if the case breaks the law.
        source: a strategy that draws cases, or a machine that grows them step by step.
        budget: how many cases to draw and how long to shrink.
        cost: the cost of one case, in plain calls.
        fresh: the seed from which cases are drawn; `None` draws the same on every run.
        name: under which failing cases are kept for later runs to try first, if the budget keeps
            any: in the folder `.hypothesis` of the current one.

    Raises:
        Exception: the one that `attempt` raised on the smallest failing case.
        Flaky: if the same case raised and did not.
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

    database: DirectoryBasedExampleDatabase | None = None
    phases = [Phase.generate, Phase.shrink]
    if not budget.derandomised:
        # each law has its folder: to Hypothesis all laws are one test, this function
        folder = re.sub(r"[^\w.-]", "_", name)
        database = DirectoryBasedExampleDatabase(Path(".hypothesis", "attnspec", folder))
        phases.append(Phase.reuse)
    limits = settings(
        max_examples=budget.examples_of(cost),
        stateful_step_count=STEPS,
        database=database,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    # Hypothesis' own option for this, derandomize, reads the source of a test each time
    same = seed(SEED if fresh is None else fresh)
    try:
        with _without_constants_of_modules():
            if isinstance(source, SearchStrategy):
                limits(same(given(case=source)(bounded)))()
            else:
                machine: Any = same(lambda: source(bounded))
                run_state_machine_as_test(machine, settings=limits)
    except (Unsatisfiable, NothingClaimed):
        # Nothing that the subject claims satisfies the strategy: the caller sees no examples.
        return


_CONSTANTS_OF_HYPOTHESIS: dict[str, Any] = {
    "_get_local_constants": Constants,
    "CONSTANTS_CACHE": LRUCache(1024),
}
"""Values of names of `hypothesis.internal.conjecture.providers` while cases are drawn."""


@contextlib.contextmanager
def _without_constants_of_modules() -> Iterator[None]:
    """Hide from Hypothesis the numbers in the source of imported modules, which it would draw.

    There is no setting for it. These numbers would let the cases of a seed depend on which modules
    are imported, and on whether attnspec is installed from a wheel or from a checkout, whose
    hundreds of files are parsed for them, in seconds. A version that has none of these names draws
    as it does.
    """
    replaced = {
        name: getattr(providers, name)
        for name in _CONSTANTS_OF_HYPOTHESIS
        if hasattr(providers, name)
    }
    for name in replaced:
        setattr(providers, name, _CONSTANTS_OF_HYPOTHESIS[name])
    try:
        yield
    finally:
        for name, own in replaced.items():
            setattr(providers, name, own)
