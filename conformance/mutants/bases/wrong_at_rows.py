"""A factory of operators on rows that are wrong in given regimes alone."""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.operators.regimes import AXES, RowRegime


@dataclass(frozen=True)
class WrongAtRows:
    """An operator whose output is off by far in some regimes, and right elsewhere."""

    function: Any
    regimes: tuple[RowRegime, ...]

    def __call__(self, input: torch.Tensor, *others: Any) -> Any:
        out = self.function(input, *others)
        # a single number is no row
        is_wrong = input.dim() > 0 and all(each.holds(input) for each in self.regimes)
        return out * 1.5 + 1 if is_wrong else out


def wrong_at_rows(function: Any, *regimes: tuple[str, str]) -> WrongAtRows:
    """Return an operator that is wrong where all of some regimes hold.

    Args:
        function: a correct one.
        regimes: the axis and the class of each, as in `attnspec.conformance.operators.regimes`.

    Raises:
        KeyError: for an axis or a class that does not exist.
    """
    classes = {axis: {each.name: each for each in members} for axis, members in AXES.items()}
    return WrongAtRows(function, tuple(classes[axis][name] for axis, name in regimes))
