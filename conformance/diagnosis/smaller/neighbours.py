"""Neighbours: which sizes beside those of a failing case fail as well, and which pass.

A kernel that is wrong at one tile length or width fails at 128 and 256, and passes at 127 and 129.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.models.case import ModelCase
from attnspec.spec import Case

Fails = Callable[[Any], bool | None]
"""Returns whether a case fails; None if it is not tried."""

Sized = Callable[[Any, int], dict[str, Any]]
"""Returns the fields that give a case another size."""

SEEDS = 3
"""Cases of a size that must pass, each with other numbers, before the size is said to pass."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A size of a case.

    Attributes:
        name: its name in a report.
        size: returns the size of a case.
        changes: ways to give a case another size, of which the first that is claimed is tried.
        least: the smallest size that is tried; below it results are trivial.
    """

    name: str
    size: Callable[[Any], int]
    changes: tuple[Sized, ...]
    least: int = 1


def _alone(name: str) -> Sized:
    return lambda case, size: {name: size}


def _heads(case: Case, size: int) -> dict[str, Any]:
    """Change the query heads, and those of keys and values with them if they are as many."""
    return {"heads": size} | ({"kv_heads": size} if case.heads == case.kv_heads else {})


_ATTENTION = (
    Axis(name="batch", size=lambda case: case.batch, changes=(_alone("batch"),)),
    Axis(name="heads", size=lambda case: case.heads, changes=(_heads,)),
    Axis(name="queries", size=lambda case: case.queries, changes=(_alone("queries"),)),
    Axis(name="keys", size=lambda case: case.keys, changes=(_alone("keys"),), least=2),
    Axis(
        name="d_head",
        size=lambda case: case.d_head,
        changes=(_alone("d_head"), lambda case, size: {"d_head": size, "d_value": size}),
        least=2,
    ),
    Axis(name="d_value", size=lambda case: case.d_value, changes=(_alone("d_value"),), least=2),
)
_MODEL = (
    *(
        Axis(name=name, size=lambda case, name=name: getattr(case, name), changes=(_alone(name),))  # type: ignore[misc]
        for name in ("n_layer", "n_head", "d_head", "batch")
    ),
    Axis(
        name="length",
        size=lambda case: case.length,
        changes=(lambda case, size: {"length": size, "n_positions": max(size, case.n_positions)},),
    ),
    Axis(
        name="vocab_size",
        size=lambda case: case.vocab_size,
        changes=(_alone("vocab_size"),),
        least=2,
    ),
)


def compared_sizes(case: Any, fails: Fails, seconds: float) -> tuple[str, ...]:
    """Compare the sizes of a failing case with their neighbours.

    Args:
        case: a case that fails.
        fails: returns whether another case fails.
        seconds: after which no further size is tried.

    Returns:
        For each size that decides whether the law fails, a line such as "keys: fails at 64 and
        128, passes at 63, 65, 127 and 129"; an empty tuple if none does, or of other kinds of case.
    """
    deadline = time.perf_counter() + seconds
    lines = []
    for axis in sorted(_axes_of(case), key=lambda axis: -axis.size(case)):
        outcomes = _outcomes(case, axis, fails, deadline)
        if not all(outcomes.values()):
            lines.append(_line(axis.name, outcomes))
    return tuple(lines)


def _axes_of(case: Any) -> tuple[Axis, ...]:
    if type(case) is Case:  # a session with a cache has no number of queries or keys
        return _ATTENTION
    return _MODEL if isinstance(case, ModelCase) else ()


def _outcomes(case: Any, axis: Axis, fails: Fails, deadline: float) -> dict[int, bool]:
    """Return the sizes of an axis that were tried, and whether each fails."""
    own = axis.size(case)
    outcomes = {own: True}
    # two tiles are the double of one
    for size in (own + 1, own - 1, 2 * own, 2 * own - 1, 2 * own + 1, own // 2):
        if size < axis.least or size in outcomes or time.perf_counter() > deadline:
            continue
        for changes in axis.changes:
            try:
                changed = case.but(**changes(case, size))
            except ValueError:  # no case has these sizes together
                continue
            outcome = _with_seeds(changed, fails)
            if outcome is not None:
                outcomes[size] = outcome
                break
        if size == 2 * own and all(outcomes.values()):
            break  # this size does not matter
    return outcomes


def _with_seeds(case: Any, fails: Fails) -> bool | None:
    """Return whether a case fails with any of some seeds; None if one of them is not tried."""
    for number in range(SEEDS):
        # by twos: an odd seed turns the sign of some scores round
        outcome = fails(case.but(seed=case.seed + 2 * number))
        if outcome is not False:
            return outcome
    return False


def _line(axis: str, outcomes: dict[int, bool]) -> str:
    ordered = sorted(outcomes)
    failing = [size for size in ordered if outcomes[size]]
    passing = [size for size in ordered if not outcomes[size]]
    return f"{axis}: fails at {_listed(failing)}, passes at {_listed(passing)}"


def _listed(sizes: Iterable[int]) -> str:
    """Return sizes in words: "1", "1 and 2", or "1, 2 and 3"."""
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}" if most else last
