"""Declare a bare function as a rotary embedding: its claims and its profile by calls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.operators.rotary.case import SCALINGS, Places, RotaryCase
from attnspec.conformance.operators.rotary.explanation import is_of_precision
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.conformance.runner.claims import DTYPES
from attnspec.conformance.runner.declare import parameters_of
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import (
    AnglePrecision,
    Pairing,
    RotaryImplementation,
    RotaryProfile,
    ScalingKind,
)

_DTYPES = tuple(DTYPES.values())
_CASE = RotaryCase(batch=2, heads=2, length=9, d_head=16, places=Places.SCATTERED, start=300)
"""Of positions at which angles of float32 differ from those of float64."""


def rotary_profiles() -> Iterator[RotaryProfile]:
    """Return the profiles that calls tell apart, the default first."""
    answers = product(Float64Precision, AnglePrecision, Working, Pairing)
    for precision, angles, working, pairing in answers:
        yield RotaryProfile(
            pairing=pairing, angles=angles, working=working, float64_precision=precision
        )


def rotary_features(function: Callable[..., Any], dtypes: Sequence[torch.dtype]) -> frozenset[str]:
    """Return the features that a function takes: keywords that it names, scalings that it accepts.

    A scaling whose call raises is not claimed; one that is accepted is judged, also if it changes
    nothing.
    """
    names = parameters_of(function) or {}
    keywords = {"partial": "rotary_dim", "base": "base"}
    found = {feature for feature, keyword in keywords.items() if keyword in names}
    if "scaling" in names:
        bare = RotaryImplementation(
            name="it", function=function, features=frozenset(ScalingKind), dtypes=tuple(dtypes)
        )
        for scaling in SCALINGS:
            if any(_runs(bare, dtype, _CASE.but(scaling=scaling)) for dtype in dtypes):
                found.add(str(scaling.kind))
    return frozenset(found)


def declare_rotary(
    declared: RotaryImplementation,
    profiles: Sequence[RotaryProfile],
    dtypes: tuple[torch.dtype, ...] | None,
) -> RotaryImplementation:
    """Return the declaration under the profile that calls find.

    Args:
        declared: the function and its features.
        profiles: those with the answers that the user gives.
        dtypes: the storage types that the user claims; None for those in which a call returns.

    Returns:
        Under the first of the profiles that is right in most types. If none is right, only those
        count whose pairs are those that a single channel shows, if there are any, and of these the
        first under which a well-known mistake explains most types.
    """
    ran = dtypes or tuple(dtype for dtype in _DTYPES if _runs(declared, dtype, _CASE))
    if torch.float64 in ran:
        precision = _float64_precision(declared)
        profiles = [each for each in profiles if each.float64_precision is precision] or profiles
    candidates = [replace(declared, profile=each, dtypes=ran or _DTYPES[:2]) for each in profiles]
    counts = [sum(_is_right(each, dtype) for dtype in ran) for each in candidates]
    if max(counts):
        return candidates[counts.index(max(counts))]
    similar = [each for each in candidates if ran and _shows_its_pairs(each, ran[0])] or candidates
    named = [sum(_has_a_mistake(each, dtype) for dtype in ran) for each in similar]
    return similar[named.index(max(named))]


def _runs(implementation: RotaryImplementation, dtype: torch.dtype, case: RotaryCase) -> bool:
    """Return whether a call returns a result of the right form."""
    case = case.but(dtype=dtype)
    try:
        RotarySubject(implementation=implementation).call(case.draw(), case.positions(), case)
    except (Violation, Raised):
        return False
    return True


def _float64_precision(implementation: RotaryImplementation) -> Float64Precision:
    """Return the type in which float64 is computed, by a call that turns nothing.

    Wrong angles do not matter at position 0: a result is x itself, or x rounded to float32.
    """
    case = _CASE.but(dtype=torch.float64)
    x, positions = case.draw(), torch.zeros_like(case.positions())
    try:
        got = RotarySubject(implementation=implementation).call(x, positions, case)
    except (Violation, Raised):
        return Float64Precision.FLOAT64
    is_rounded = torch.equal(got, x.float().double())
    return Float64Precision.FLOAT32 if is_rounded else Float64Precision.FLOAT64


def _is_right(implementation: RotaryImplementation, dtype: torch.dtype) -> bool:
    try:
        RotarySubject(implementation=implementation).judge_case(_CASE.but(dtype=dtype), "wrong")
    except (Violation, Raised):
        return False
    return True


def _has_a_mistake(implementation: RotaryImplementation, dtype: torch.dtype) -> bool:
    """Return whether a well-known mistake, other than in precision, explains a call."""
    case = _CASE.but(dtype=dtype)
    subject = RotarySubject(implementation=implementation)
    try:
        cause = subject.cause(case.draw(), case.positions(), case)
    except (Violation, Raised):
        return False
    return bool(cause) and not is_of_precision(cause)


def _shows_its_pairs(implementation: RotaryImplementation, dtype: torch.dtype) -> bool:
    """Return whether the first channel, alone in a head, is turned into the other of its pair."""
    case = _CASE.but(dtype=dtype)
    x = torch.zeros_like(case.draw())
    x[..., 0] = 1
    try:
        got = RotarySubject(implementation=implementation).call(x, case.positions(), case)
    except (Violation, Raised):
        return False
    is_half = implementation.profile.pairing is Pairing.HALF
    own, other = (case.d_head // 2, 1) if is_half else (1, case.d_head // 2)
    return bool(got[..., own].any()) and not bool(got[..., other].any())
