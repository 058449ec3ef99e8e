"""Compare results element by element, each within its own bound, without averaging."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from attnspec.conformance.comparison.tally import record_fraction
from attnspec.conformance.comparison.violation import Errors, Mismatch, Violation

AXES = ("batch", "head", "query", "channel")
"""Names of the axes of a rank-4 tensor in a failure message."""

NO_PLACES: Mapping[str, torch.Tensor] = MappingProxyType({})
"""The places of a result that is whole."""


def check_close(
    got: Any,
    expected: Float[torch.Tensor, "*shape"],
    bound: Float[torch.Tensor, "..."],
    *,
    what: str,
    message: str,
    dtype: torch.dtype | None = None,
    may_be_nan: Bool[torch.Tensor, "*shape"] | None = None,
    axes: tuple[str, ...] = AXES,
    places: Mapping[str, Int[torch.Tensor, " places"]] = NO_PLACES,
) -> float:
    """Check that each element of `got` is within its own bound.

    Args:
        got: the result under test.
        expected: in float64. NaN demands NaN; an infinity demands the same infinity.
        bound: the largest distance allowed, not negative; infinity where nothing is promised.
        what: the name of the tensor, for the failure message.
        message: the meaning of a wrong result, for the failure message.
        dtype: the dtype that `got` must have; None accepts any floating-point dtype.
        may_be_nan: true where NaN is allowed beside the expected value.
        axes: names of the axes; a tensor of lower rank uses the last ones.
        places: the places of the whole result that an axis holds, by its name, if it is a sample
            of them; for the failure message.

    Returns:
        The largest fraction of a bound that was used; elements whose bound is infinite or
        whose expected value is not finite do not count.

    Raises:
        Violation: if an element exceeds its bound; names the worst element.
        RuntimeError: if the bound is NaN, negative or of another shape: an error of the caller.
    """
    got = _same_form(got, expected, dtype, what, message)
    smallest, largest = (float(end) for end in bound.aminmax()) if bound.numel() else (0.0, 0.0)
    if bound.shape != expected.shape or not smallest >= 0:  # a NaN bound makes the minimum NaN
        raise RuntimeError(f"{what}: the bound has the wrong shape, or is NaN or negative")
    largest_number = torch.finfo(got.dtype).max
    exact = got.detach().to(expected.device, torch.float64)
    distance = (exact - expected).abs()
    fraction = distance / bound
    # a quotient that rounds to less than 1 is less than 1; a NaN fails this comparison
    if got.numel() and largest < torch.inf and (used := float(fraction.max())) < 1:
        record_fraction(used)
        return used
    close = (distance <= bound) | bound.isinf()
    if got.numel() and bool(close.all()):
        # an element within a finite bound is finite, and so is its expected value
        used = float(fraction.nan_to_num(0.0).max())
        if smallest < torch.inf:
            record_fraction(used)
        return used
    close |= exact == expected  # the same infinity, whose distance is NaN
    overflow = exact.isinf() & (exact.sign() == expected.sign())
    close |= overflow & (expected.abs() + bound >= largest_number)
    close = torch.where(expected.isnan(), exact.isnan(), close)
    close |= bound.isinf()
    if may_be_nan is not None:
        close |= exact.isnan() & may_be_nan
    counted = bound.isfinite() & expected.isfinite() & exact.isfinite()
    fraction = torch.where(distance == 0, 0.0, fraction)
    fraction = torch.where(counted, fraction, 0.0)
    if not bool(close.all()):
        record_fraction(float("inf"))
        raise Violation(
            message, _worst(what, exact, expected, bound, fraction, close, axes, places)
        )
    used = float(fraction.max()) if fraction.numel() else 0.0
    if bool(counted.any()):
        record_fraction(used)
    return used


def check_equal(
    got: Any,
    expected: torch.Tensor,
    *,
    what: str,
    message: str,
    axes: tuple[str, ...] = AXES,
) -> None:
    """Check that values are equal: NaN equals NaN, and the two zeros are equal.

    Args:
        got: the result under test.
        expected: of the same shape and dtype.
        what: the name of the tensor, for the failure message.
        message: the meaning of a wrong result, for the failure message.
        axes: names of the axes.

    Raises:
        Violation: if an element differs; names the one with the largest error.
    """
    _check_tensor(got, what, message)
    if got.shape != expected.shape:
        raise Violation(f"{message}: {what} must have shape {_shape(expected)}, got {_shape(got)}")
    if got.dtype != expected.dtype:
        raise Violation(f"{message}: {what} must have dtype {expected.dtype}, got {got.dtype}")
    expected_here = expected.detach().to(got.device)
    equal = (got == expected_here) | (_nan(got) & _nan(expected_here))
    if not bool(equal.all()):
        left, right = got.detach().double(), expected_here.double()
        zero = torch.zeros_like(right)
        distance = (left - right).abs().nan_to_num(torch.inf)
        raise Violation(message, _worst(what, left, right, zero, distance, equal, axes))


def agree_but_for_rounding(
    one: torch.Tensor, two: torch.Tensor, tolerance: float | torch.Tensor
) -> bool:
    """Return whether two results agree but for rounding, although both may be wrong.

    NaN agrees with NaN, and an infinity with the same one. An error bound holds for right results
    and says nothing of wrong ones, whose rounding error grows with their size. So the tolerance of
    an element is scaled with its size.

    Args:
        one: a result under test.
        two: another; results of different shapes do not agree.
        tolerance: the distance allowed between right results.
    """
    if one.shape != two.shape:
        return False
    one, two = one.detach().double(), two.detach().double()
    size = torch.maximum(one.abs(), two.abs()).nan_to_num(0.0, 0.0, 0.0)
    close = (one - two).abs() <= tolerance * (1 + size)
    return bool((close | (one == two) | (one.isnan() & two.isnan())).all())


def is_evidence(
    expected: Float[torch.Tensor, "*shape"], bound: Float[torch.Tensor, "*shape"]
) -> bool:
    """Return whether the bound is so small beside the values that a wrong result exceeds it."""
    if not expected.numel():
        return False
    largest, widest = float(expected.abs().max()), float(bound.max())
    if math.isfinite(largest):
        return widest < 0.5 * largest
    finite = expected.isfinite()
    if not bool(finite.any()):
        return True
    return float(bound[finite].max()) < 0.5 * float(expected[finite].abs().max())


def _same_form(
    got: Any, expected: torch.Tensor, dtype: torch.dtype | None, what: str, message: str
) -> torch.Tensor:
    _check_tensor(got, what, message)
    if got.shape != expected.shape:
        raise Violation(f"{message}: {what} must have shape {_shape(expected)}, got {_shape(got)}")
    if dtype is not None and got.dtype != dtype:
        raise Violation(f"{message}: {what} must have dtype {dtype}, got {got.dtype}")
    if not got.is_floating_point():
        raise Violation(f"{message}: {what} must be floating point, got {got.dtype}")
    checked: torch.Tensor = got
    return checked


def _check_tensor(got: Any, what: str, message: str) -> None:
    """Check that a result is a dense tensor with data, whose numbers can be compared."""
    if not isinstance(got, torch.Tensor):
        raise Violation(f"{message}: {what} must be a tensor, got {type(got).__name__}")
    if got.layout is not torch.strided or got.is_meta:
        kind = "meta" if got.is_meta else str(got.layout).removeprefix("torch.")
        raise Violation(f"{message}: {what} must be a dense tensor with data, got {kind}")


def _worst(
    what: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    bound: torch.Tensor,
    fraction: torch.Tensor,
    close: torch.Tensor,
    axes: tuple[str, ...],
    places: Mapping[str, torch.Tensor] = NO_PLACES,
) -> Mismatch:
    """Describe the wrong element that is farthest beyond its bound."""
    wrong = ~close
    # NaN instead of an expected number, or the reverse, is worse than any distance
    score = torch.where(got.isfinite() & expected.isfinite(), fraction, torch.inf)
    score = torch.where(wrong, score, -1.0)
    worst = int(score.flatten().argmax())
    # not torch's own function, which imports sympy: that takes longer than most laws
    index = [int(position) for position in np.unravel_index(worst, tuple(got.shape))]
    names = axes[len(axes) - len(index) :] if len(index) <= len(axes) else ("",) * len(index)
    # an expected infinity has no error
    error = torch.where(wrong, score, torch.where(fraction.isfinite(), fraction, 0.0))
    errors = _errors_around(what, error, index, names, bound, places)
    index = _in_whole(index, names, places)
    where = ", ".join(f"{name} {place}".strip() for name, place in zip(names, index, strict=True))
    values = [float(each.flatten()[worst]) for each in (expected, got, bound)]
    expected_text, got_text = distinct(values[0], values[1])
    difference, bound_text = _difference(*values)
    return Mismatch(
        what=what,
        where=where or "the only element",
        expected=expected_text,
        got=got_text,
        bound=bound_text,
        difference=difference,
        wrong=f"{int(wrong.sum())} of {wrong.numel()} elements wrong",
        errors=errors,
    )


LEAST_DIGITS, MOST_DIGITS = 9, 17
"""Significant digits of a number in a message: 17 tell all numbers of float64 apart."""


FEW_DIGITS = 3
"""Significant digits of a distance, unless it looks like its bound."""


def distinct(one: float, other: float, least: int = LEAST_DIGITS) -> tuple[str, str]:
    """Return two numbers with so many digits that their difference shows two of its own."""
    for digits in range(least, MOST_DIGITS):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        difference = one - other
        if not math.isfinite(difference):
            break
        if abs(float(texts[0]) - float(texts[1]) - difference) <= 0.05 * abs(difference):
            break
    else:
        texts = f"{one:.{MOST_DIGITS}g}", f"{other:.{MOST_DIGITS}g}"
    return texts


def _difference(expected: float, got: float, bound: float) -> tuple[str, str]:
    """Return the distance of a result in words, with its ratio to the bound, and the bound."""
    distance = abs(got - expected)
    distance_text, bound_text = distinct(distance, bound, FEW_DIGITS)
    if not math.isfinite(distance):
        return "", bound_text
    if not bound:
        return distance_text, bound_text
    ratio, _ = distinct(distance / bound, 1.0, FEW_DIGITS)
    return f"{distance_text}, {ratio} times the bound", bound_text


def _errors_around(
    what: str,
    error: torch.Tensor,
    index: list[int],
    names: tuple[str, ...],
    bound: torch.Tensor,
    places: Mapping[str, torch.Tensor],
) -> Errors:
    """Return the errors over the last two axes, at the worst element's index along the others."""
    index, axes = [0] * (2 - len(index)) + index, ("",) * (2 - len(index)) + names
    leading = index[:-2]
    matrix = error.reshape((1,) * (2 - error.dim()) + error.shape)[tuple(leading)]
    return Errors(
        what=what,
        matrix=matrix.clone(),  # a view would keep the whole tensor alive
        measure="error / bound" if bool(bound.any()) else "distance",
        axes=(axes[-2], axes[-1]),
        worst=(index[-2], index[-1]),
        leading=dict(zip(axes[:-2], _in_whole(leading, axes, places), strict=True)),
        rows=places[axes[-2]].tolist() if axes[-2] in places else None,
    )


def _in_whole(
    index: list[int], names: tuple[str, ...], places: Mapping[str, torch.Tensor]
) -> list[int]:
    """Return an index of the whole tensor for one of a sample of its places."""
    return [
        int(places[name][place]) if name in places else place
        for name, place in zip(names, index, strict=False)
    ]


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.isnan() if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)
    )


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
