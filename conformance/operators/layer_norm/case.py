"""Cases of LayerNorm: those of RMSNorm with a bias, and rows that are far from zero."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rms_norm.case import normal
from attnspec.spec import Layout


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
class LayerNormCase:
    """One call of a LayerNorm.

    Attributes:
        shape: the axes before the channels.
        channels: the number of channels, at least 1.
        dtype: the storage type of rows, gain and bias.
        epsilon: is added to the variance.
        rows: the contents of the rows.
        layout: the strides of the rows.
        backward: whether gradients of rows, gain and bias are computed.
        seed: selects the numbers.
    """

    shape: tuple[int, ...] = (2,)
    channels: int = 4
    dtype: torch.dtype = torch.float64
    epsilon: float = 2.0**-17
    rows: Rows = Rows.NORMAL
    layout: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the shape, the storage type, and the fields that differ from the default."""
        words = [f"input={self.whole}", f"dtype={str(self.dtype).removeprefix('torch.')}"]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in ("shape", "channels", "dtype") and value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the rows with their channels."""
        return (*self.shape, self.channels)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses: none."""
        return frozenset()

    def but(self, **changes: Any) -> "LayerNormCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, the gain, which is about one and never zero, and the bias."""
        x = lay_out(_CONTENTS[self.rows](self).to(self.dtype), self.layout)
        weight = 1 + 0.25 * normal(self.seed, "weight", self.channels).clamp(-3, 3)
        bias = normal(self.seed, "bias", self.channels)
        return x, weight.to(self.dtype), bias.to(self.dtype)

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad_out", *self.whole).to(self.dtype)


def _normal(case: LayerNormCase) -> torch.Tensor:
    return normal(case.seed, "input", *case.whole)


def _outlier(case: LayerNormCase) -> torch.Tensor:
    x = _normal(case)
    x[..., case.seed % case.channels] *= 1000
    return x


def _unlike(case: LayerNormCase) -> torch.Tensor:
    sizes = 8.0 ** (torch.arange(math.prod(case.shape)) % 5 - 2).double()
    return _normal(case) * sizes.view(*case.shape, 1)


def _equal(case: LayerNormCase) -> torch.Tensor:
    x = _normal(case)
    x.view(-1, case.channels)[:1] = 0.75
    return x


_CONTENTS: dict[Rows, Callable[[LayerNormCase], torch.Tensor]] = {
    Rows.NORMAL: _normal,
    Rows.OFFSET: lambda case: 20 + _normal(case),
    Rows.FAR: lambda case: 4096 + _normal(case),
    Rows.SMALL: lambda case: math.sqrt(case.epsilon) / 16 * _normal(case),
    # 3 000 squared is beyond float16, whose largest number is 65 504
    Rows.LARGE: lambda case: (3000 * _normal(case)).clamp(-30_000, 30_000),
    Rows.OUTLIER: _outlier,
    Rows.UNLIKE: _unlike,
    Rows.EQUAL: _equal,
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[LayerNormCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "shape": st.sampled_from([(1,), (2,), (3,), (2, 3), (1, 2, 5), (33,)]),
        "channels": st.sampled_from([1, 2, 3, 4, 5, 8, 16, 31, 33, 64, 65, 128, 257, 768]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "epsilon": st.sampled_from([2.0**-17, 1e-5, 1e-6, 1e-12, 0.5]),
        "rows": st.sampled_from(Rows),
        "layout": st.sampled_from([Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED]),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[LayerNormCase] = st.builds(LayerNormCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
