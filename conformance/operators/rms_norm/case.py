"""Cases of RMSNorm: shapes, storage types and contents."""

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
    normal_rows,
    rows_with_an_outlier,
    unlike_rows,
    with_first_row,
)
from attnspec.spec.rms_norm import Gain


class Rows(StrEnum):
    """The contents of the rows, each named after the property that it has."""

    NORMAL = "normal"
    OFFSET = "offset"
    """Far from zero, with a spread of one: a mean that is subtracted shows."""
    SMALL = "small"
    """Squares far below epsilon."""
    LARGE = "large"
    """Squares beyond the range of float16, whose numbers are within it."""
    OUTLIER = "outlier"
    """One channel a thousand times as large as the others."""
    UNLIKE = "unlike"
    """Each row eight times as large as the row before: statistics of a wrong row show."""
    ZERO = "zero"
    """The first row is zero."""


@dataclass(frozen=True, kw_only=True)
class RMSNormCase(RowsCase):
    """One call of an RMSNorm.

    Attributes:
        epsilon: is added to the mean square.
        rows: the contents of the rows.
    """

    epsilon: float = 2.0**-20
    rows: Rows = Rows.NORMAL

    def draw(self, gain: Gain) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows and the learned numbers, whose gain is about one and never zero."""
        weight = self.draw_gain()
        weight = weight - 1 if gain is Gain.ONE_PLUS else weight
        return self.stored(_CONTENTS[self.rows](self)), weight.to(self.dtype)


_CONTENTS: dict[Rows, Callable[[RMSNormCase], torch.Tensor]] = {
    Rows.NORMAL: normal_rows,
    Rows.OFFSET: lambda case: 20 + normal_rows(case),
    Rows.SMALL: lambda case: math.sqrt(case.epsilon) / 16 * normal_rows(case),
    Rows.LARGE: large_rows,
    Rows.OUTLIER: rows_with_an_outlier,
    Rows.UNLIKE: unlike_rows,
    Rows.ZERO: lambda case: with_first_row(case, 0.0),
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[RMSNormCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    return drawn_rows(
        RMSNormCase,
        subject,
        fixed,
        epsilon=st.sampled_from([2.0**-20, 1e-5, 1e-6, 1e-8, 0.5]),
        rows=st.sampled_from(Rows),
    )
