"""A factory of operators that are wrong in given regimes alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.operators.regimes import AXES, Axes, CallRegime


def _rows(input: torch.Tensor, *others: Any) -> torch.Tensor | None:
    # a single number is no row
    return input if input.dim() > 0 else None


@dataclass(frozen=True)
class WrongAt:
    """An operator whose output is off by far in some regimes, and right elsewhere."""

    function: Any
    read: Callable[..., Any]
    regimes: tuple[CallRegime, ...]

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        out = self.function(*operands, **keywords)
        call = self.read(*operands, **keywords)
        is_wrong = call is not None and all(each.holds(call) for each in self.regimes)
        if not is_wrong:
            return out
        if isinstance(out, tuple):  # scores and indices
            return (out[0] * 1.5 + 1, *out[1:])
        return out * 1.5 + 1


def wrong_at(
    function: Any, read: Callable[..., Any], axes: Axes, *regimes: tuple[str, str]
) -> WrongAt:
    """Return an operator that is wrong where all of some regimes hold.

    Args:
        function: a correct one.
        read: returns of operands and keywords what the conditions of the axes read, or None.
        axes: of the operator.
        regimes: the axis and the class of each.

    Raises:
        KeyError: for an axis or a class that does not exist.
    """
    classes = {axis: {each.name: each for each in members} for axis, members in axes.items()}
    return WrongAt(function, read, tuple(classes[axis][name] for axis, name in regimes))


def wrong_at_rows(function: Any, *regimes: tuple[str, str]) -> WrongAt:
    """Return an operator on rows alone that is wrong where all of some regimes hold."""
    return wrong_at(function, _rows, AXES, *regimes)
