"""Growth: the pinned cases of a law at lengths of several tiles and the widths of models.

A law about one matter, such as a second backward pass, is tried on few and small cases, since all
sizes meet in the laws of NUM. A kernel may have that mistake in the code of its longer calls alone,
which no small case runs. So each law is also tried on one of its pinned cases grown to such sizes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from attnspec.conformance.attention.decoding.session import Append, Session
from attnspec.spec import Case

LENGTHS = (257, 640)
"""The least and the largest length of a grown case: more than a tile of 256 in each."""

WIDTH = 64
"""Channels of a head up to which heads are widened."""

WIDEST = 256
"""Keys of a case that needs a channel of the values for each key."""

COST = 0.5e9
"""Products in a case times the cost of its law, which take a core a third of a second."""

OF_BACKWARD = 4
"""Cost of a case with a backward pass, whose bound takes most of it, in cases without one."""


def grown(
    case: Case, dice: random.Random, *, cost: float = 1.0, has_channel_per_key: bool = False
) -> Case:
    """Return a case of the same kind with long sequences and wide heads.

    Which of two lengths or widths is larger stays, as does a single query.

    Args:
        case: a pinned case, or a session of decoding, whose first chunk becomes long.
        dice: draws the lengths.
        cost: the cost of the law, in plain calls: an expensive one is tried on fewer keys.
        has_channel_per_key: whether the values must have as many channels as there are keys.
    """
    widening = max(1, WIDTH // max(1, case.d_head, case.d_value))
    wider = case.but(d_head=case.d_head * widening, d_value=case.d_value * widening)
    # short ones more often: scores grow with the square
    longest = dice.randint(LENGTHS[0], dice.randint(*LENGTHS))
    if isinstance(wider, Session):
        return _grown_session(wider, longest)
    lengths = (case.queries, case.keys)
    if has_channel_per_key:
        longest = min(longest, WIDEST)
    while longest > LENGTHS[0] and cost * _products(wider, longest) > COST:
        longest = max(LENGTHS[0], longest * 3 // 4)
    factor = max(1, longest // max(1, *lengths))
    rest = max(0, longest - factor * max(lengths)) if factor > 1 else 0
    queries, keys = (factor * length + rest if length > 1 else length for length in lengths)
    if lengths == (1, 1):
        queries = keys = longest
    long = wider.but(queries=queries, keys=keys)
    if has_channel_per_key:
        long = long.but(d_head=max(keys, long.d_head), d_value=max(keys, long.d_value))
    excess = cost * _products(long, keys) / COST
    if excess > 1 and case.queries < case.keys:
        long = long.but(queries=max(case.queries, int(queries / excess)))
    return long


def _products(case: Case, longest: int) -> float:
    """Return the products of a case, and of its bound, if the longer sequence has a length."""
    lengths = (case.queries, case.keys)
    scores = longest**2 * min(lengths) / max(1, *lengths)
    products = case.batch * case.heads * scores * (case.d_head + case.d_value)
    return products * (OF_BACKWARD if case.backward else 1)


def _grown_session(session: Session, longest: int) -> Session:
    """Return a session whose first chunk has a length."""
    steps = list(session.steps)
    first = next((n for n, step in enumerate(steps) if isinstance(step, Append)), None)
    if first is not None:
        steps[first] = Append(longest)
    return replace(session, steps=tuple(steps))


def grown_cases(
    law: str,
    pinned: Sequence[Case],
    seed: int,
    count: int,
    *,
    cost: float,
    fit: Callable[[Case], Case | None],
) -> list[Case]:
    """Return some pinned cases at large sizes, drawn anew for each seed.

    Args:
        law: the name of the law.
        pinned: its pinned cases.
        seed: selects them, and their lengths.
        count: how many to return, if as many are claimed.
        cost: the cost of the law, in plain calls.
        fit: returns the claimed case that is nearest to one, or None.
    """
    dice = random.Random(f"{seed}/{law}")
    per_key = bool(pinned) and all(0 < case.keys <= case.d_value for case in pinned)
    chosen: dict[Case, None] = {}
    for case in dice.sample(pinned, len(pinned)):
        if len(chosen) == count:
            break
        large = fit(grown(case, dice, cost=cost, has_channel_per_key=per_key))
        if large is not None:
            chosen[large] = None
    return list(chosen)
