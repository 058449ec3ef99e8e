"""Cases of LayerNorm: those of RMSNorm with a bias, and rows that are far from zero."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.operators.rows_case import (
    RowsCase,
    drawn_rows,
    large_rows,
    normal,
    normal_rows,
    rows_with_an_outlier,
    unlike_rows,
    with_first_row,
)


class Rows(StrEnum):
    """The contents of the rows, each named after the property that it has."""

    NORMAL = "normal"
    OFFSET = "offset"
    """Far from zero, with a spread of one: a mean that stays shows."""
    FAR = "far"
    """4096 away from zero: the mean of squares less the square of the mean shows."""
    SMALL = "small"
    """A variance far below epsilon."""
    LARGE = "large"
    """Squares beyond the range of float16, whose numbers are within it."""
    OUTLIER = "outlier"
    """One channel a thousand times as large as the others."""
    UNLIKE = "unlike"
    """Each row eight times as large as the row before: statistics of a wrong row show."""
    EQUAL = "equal"
    """All channels of the first row are equal, so that its variance is zero."""


@dataclass(frozen=True, kw_only=True)
class LayerNormCase(RowsCase):
    """One call of a LayerNorm.

    Attributes:
        epsilon: is added to the variance.
        rows: the contents of the rows.
    """

    epsilon: float = 2.0**-17
    rows: Rows = Rows.NORMAL

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, the gain, which is about one and never zero, and the bias."""
        bias = normal(self.seed, "bias", self.channels)
        x = self.stored(_CONTENTS[self.rows](self))
        return x, self.draw_gain().to(self.dtype), bias.to(self.dtype)


_CONTENTS: dict[Rows, Callable[[LayerNormCase], torch.Tensor]] = {
    Rows.NORMAL: normal_rows,
    Rows.OFFSET: lambda case: 20 + normal_rows(case),
    Rows.FAR: lambda case: 4096 + normal_rows(case),
    Rows.SMALL: lambda case: math.sqrt(case.epsilon) / 16 * normal_rows(case),
    Rows.LARGE: large_rows,
    Rows.OUTLIER: rows_with_an_outlier,
    Rows.UNLIKE: unlike_rows,
    Rows.EQUAL: lambda case: with_first_row(case, 0.75),
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[LayerNormCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    return drawn_rows(
        LayerNormCase,
        subject,
        fixed,
        epsilon=st.sampled_from([2.0**-17, 1e-5, 1e-6, 1e-12, 0.5]),
        rows=st.sampled_from(Rows),
    )
