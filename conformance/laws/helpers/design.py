"""The cases in which every two regimes meet, chosen for the claims of a subject."""

import functools
import math
from dataclasses import dataclass

from attnspec.conformance.attention.regimes import Regime
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.few_shapes import PlanOfFewShapes
from attnspec.conformance.laws.helpers.regimes import Plan, stored_rows
from attnspec.spec import Case


@dataclass(frozen=True, kw_only=True)
class Design:
    """Cases in which every two regimes meet.

    Attributes:
        cases: the cases, each claimed and affordable.
        claimed: the pairs of regimes that they are to cover.
        not_tried: pairs that would be claimed but for their cost, by the reason.
    """

    cases: tuple[Case, ...]
    claimed: frozenset[frozenset[Regime]]
    not_tried: dict[str, list[frozenset[Regime]]]


def design(subject: Subject, seed: int = 0, *, backward: bool = False) -> Design:
    """Choose cases in which every two regimes meet that a subject claims.

    The causal flag does not meet a scale of zero or less: other laws try these, which known bugs
    of PyTorch spoil (see `plain`).

    Args:
        subject: the subject, whose claims are read.
        seed: selects the values inside the classes.
        backward: true for cases with a backward pass, false for cases without.

    Returns:
        The design; without cases if the scalar definition judges, which is slow.
    """
    if subject.largest < math.inf:
        return Design(cases=(), claimed=frozenset(), not_tried={})
    return _design(DesignClaims.of(subject), seed, backward)


def _design(claims: DesignClaims, seed: int, backward: bool) -> Design:
    """Choose the values of a design of some claims."""
    plan = plan_of(claims, backward=backward)
    cases = [plan.rotated(number, seed) for number in range(len(plan.rows))]
    return Design(cases=tuple(dict.fromkeys(cases)), claimed=plan.claimed, not_tried=plan.not_tried)


@functools.lru_cache(maxsize=64)
def plan_of(claims: DesignClaims, *, backward: bool) -> Plan:
    """Compute the plan of some claims, once for all subjects that share them."""
    plan = Plan(claims, stored_rows(), backward=backward)
    return PlanOfFewShapes(plan) if claims.compiles_each_shape else plan
