"""Comparison: element by element, each within its own bound; nothing is averaged or forgiven."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.conformance.tally import reached
from attnspec.conformance.violation import Errors, Mismatch, Violation

AXES = ("batch", "head", "query", "channel")
"""What the axes of a rank-4 tensor are called in a failure message."""


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
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> float:
    """Hold each element of `got` to its own bound.

    Args:
        got: what is judged.
        expected: in float64. NaN demands NaN; an infinity demands the same infinity.
        bound: the largest distance allowed, not negative; infinity where nothing is promised.
        what: the name of the tensor, for the failure.
        message: what it means if it is wrong, for the failure.
        dtype: the dtype that `got` must have; any floating point where not given.
        may_be_nan: true where NaN is allowed beside the expected value.
        axes: what the axes are called; as many of the last ones are used as there are axes.
        rows: which queries the last axis but one holds, where it is a sample; for the failure.

    Returns:
        The largest fraction of a bound that was used; elements whose bound is infinite or
        whose expected value is not finite do not count.

    Raises:
        Violation: naming the worst element.
        RuntimeError: where the bound itself is NaN or negative: a mistake of the caller.
    """
    got = _same_form(got, expected, dtype, what, message)
    least, most = (float(each) for each in bound.aminmax()) if bound.numel() else (0.0, 0.0)
    if bound.shape != expected.shape or not least >= 0:  # NaN where one of them is
        raise RuntimeError(f"{what}: the bound has the wrong shape, or is NaN or negative")
    largest = torch.finfo(got.dtype).max
    exact = got.detach().to(expected.device, torch.float64)
    distance = (exact - expected).abs()
    fraction = distance / bound
    # a quotient that is rounded to less than 1 is less; NaN is not
    if got.numel() and most < torch.inf and (used := float(fraction.max())) < 1:
        reached(used)
        return used
    close = (distance <= bound) | bound.isinf()
    if got.numel() and bool(close.all()):
        # what is within a finite bound is finite, and so is what it was held to
        used = float(fraction.nan_to_num(0.0).max())
        if least < torch.inf:
            reached(used)
        return used
    close |= exact == expected  # the same infinity, whose distance is NaN
    overflow = exact.isinf() & (exact.sign() == expected.sign())
    close |= overflow & (expected.abs() + bound >= largest)
    close = torch.where(expected.isnan(), exact.isnan(), close)
    close |= bound.isinf()
    if may_be_nan is not None:
        close |= exact.isnan() & may_be_nan
    counted = bound.isfinite() & expected.isfinite() & exact.isfinite()
    fraction = torch.where(distance == 0, 0.0, fraction)
    fraction = torch.where(counted, fraction, 0.0)
    if not bool(close.all()):
        reached(float("inf"))
        raise Violation(message, _worst(what, exact, expected, bound, fraction, close, axes, rows))
    used = float(fraction.max()) if fraction.numel() else 0.0
    if bool(counted.any()):
        reached(used)
    return used


def check_equal(
    got: Any,
    expected: torch.Tensor,
    *,
    what: str,
    message: str,
    axes: tuple[str, ...] = AXES,
) -> None:
    """Demand equal values: NaN equals NaN, and the two zeros are equal.

    Args:
        got: what is judged.
        expected: of the same shape and dtype.
        what: the name of the tensor, for the failure.
        message: what it means if it is wrong, for the failure.
        axes: what the axes are called.

    Raises:
        Violation: naming the element that is farthest off.
    """
    _check_tensor(got, what, message)
    if got.shape != expected.shape:
        raise Violation(f"{message}: {what} must have shape {_shape(expected)}, got {_shape(got)}")
    if got.dtype != expected.dtype:
        raise Violation(f"{message}: {what} must have dtype {expected.dtype}, got {got.dtype}")
    there = expected.detach().to(got.device)
    equal = (got == there) | (_nan(got) & _nan(there))
    if not bool(equal.all()):
        left, right = got.detach().double(), there.double()
        zero = torch.zeros_like(right)
        distance = (left - right).abs().nan_to_num(torch.inf)
        raise Violation(message, _worst(what, left, right, zero, distance, equal, axes))


def is_evidence(
    expected: Float[torch.Tensor, "*shape"], bound: Float[torch.Tensor, "*shape"]
) -> bool:
    """True where the bound is so small against the values that a wrong result would exceed it."""
    if not expected.numel():
        return False
    size, width = float(expected.abs().max()), float(bound.max())
    if math.isfinite(size):
        return width < 0.5 * size
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
    """Refuse what holds no numbers that could be compared."""
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
    rows: torch.Tensor | None = None,
) -> Mismatch:
    """Describe the wrong element that is farthest beyond its bound."""
    wrong = ~close
    # NaN where a number was due, or the reverse, is worse than any distance
    score = torch.where(got.isfinite() & expected.isfinite(), fraction, torch.inf)
    score = torch.where(wrong, score, -1.0)
    place = int(score.flatten().argmax())
    index = [int(each) for each in torch.unravel_index(torch.tensor(place), got.shape)]
    names = axes[len(axes) - len(index) :] if len(index) <= len(axes) else ("",) * len(index)
    # an infinity that was due is not off
    off = torch.where(wrong, score, torch.where(fraction.isfinite(), fraction, 0.0))
    errors = _around(what, off, index, names, bound, rows)
    if rows is not None:
        index[-2] = int(rows[index[-2]])
    where = ", ".join(f"{name} {each}".strip() for name, each in zip(names, index, strict=True))
    return Mismatch(
        what=what,
        where=where or "the only element",
        expected=f"{float(expected.flatten()[place]):.9g}",
        got=f"{float(got.flatten()[place]):.9g}",
        bound=f"{float(bound.flatten()[place]):.3g}",
        wrong=f"{int(wrong.sum())} of {wrong.numel()} elements wrong",
        errors=errors,
    )


def _around(
    what: str,
    off: torch.Tensor,
    index: list[int],
    names: tuple[str, ...],
    bound: torch.Tensor,
    rows: torch.Tensor | None,
) -> Errors:
    """The errors over the last two axes, at the place of the worst element along the others."""
    index, named = [0] * (2 - len(index)) + index, ("",) * (2 - len(index)) + names
    leading = index[:-2]
    matrix = off.reshape((1,) * (2 - off.dim()) + off.shape)[tuple(leading)]
    return Errors(
        what=what,
        matrix=matrix.clone(),  # not a view, which would keep all of it
        measure="error / bound" if bool(bound.any()) else "distance",
        axes=(named[-2], named[-1]),
        worst=(index[-2], index[-1]),
        leading=dict(zip(named[:-2], leading, strict=True)),
        rows=None if rows is None else rows.tolist(),
    )


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.isnan() if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)
    )


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
