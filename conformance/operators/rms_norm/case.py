"""Cases of RMSNorm: shapes, storage types and contents."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st
from jaxtyping import Float64

from attnspec.conformance.attention.layouts import lay_out
from attnspec.spec import Layout
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
class RMSNormCase:
    """One call of an RMSNorm.

    Attributes:
        shape: the axes before the channels.
        channels: the number of channels, at least 1.
        dtype: the storage type of rows and gain.
        epsilon: is added to the mean square.
        rows: the contents of the rows.
        layout: the strides of the rows.
        backward: whether gradients of rows and gain are computed.
        seed: selects the numbers.
    """

    shape: tuple[int, ...] = (2,)
    channels: int = 4
    dtype: torch.dtype = torch.float64
    epsilon: float = 2.0**-20
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

    def but(self, **changes: Any) -> "RMSNormCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self, gain: Gain) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows and the learned numbers, whose gain is about one and never zero."""
        x = lay_out(_CONTENTS[self.rows](self).to(self.dtype), self.layout)
        weight = 1 + 0.25 * normal(self.seed, "weight", self.channels).clamp(-3, 3)
        weight = weight - 1 if gain is Gain.ONE_PLUS else weight
        return x, weight.to(self.dtype)

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad_out", *self.whole).to(self.dtype)


def normal(seed: int, purpose: str, *shape: int) -> Float64[torch.Tensor, "..."]:
    """Return standard normal numbers for one purpose of a case."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _normal(case: RMSNormCase) -> torch.Tensor:
    return normal(case.seed, "input", *case.whole)


def _large(case: RMSNormCase) -> torch.Tensor:
    # 3 000 squared is beyond float16, whose largest number is 65 504
    return (3000 * _normal(case)).clamp(-30_000, 30_000)


def _outlier(case: RMSNormCase) -> torch.Tensor:
    x = _normal(case)
    x[..., case.seed % case.channels] *= 1000
    return x


def _unlike(case: RMSNormCase) -> torch.Tensor:
    count = math.prod(case.shape)
    sizes = 8.0 ** (torch.arange(count) % 5 - 2).double()
    return _normal(case) * sizes.view(*case.shape, 1)


def _zero(case: RMSNormCase) -> torch.Tensor:
    x = _normal(case)
    x.view(-1, case.channels)[:1] = 0
    return x


_CONTENTS: dict[Rows, Callable[[RMSNormCase], torch.Tensor]] = {
    Rows.NORMAL: _normal,
    Rows.OFFSET: lambda case: 20 + _normal(case),
    Rows.SMALL: lambda case: math.sqrt(case.epsilon) / 16 * _normal(case),
    Rows.LARGE: _large,
    Rows.OUTLIER: _outlier,
    Rows.UNLIKE: _unlike,
    Rows.ZERO: _zero,
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[RMSNormCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "shape": st.sampled_from([(1,), (2,), (3,), (2, 3), (1, 2, 5), (33,)]),
        "channels": st.sampled_from([1, 2, 3, 4, 5, 8, 16, 31, 33, 64, 65, 128, 257, 768]),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "epsilon": st.sampled_from([2.0**-20, 1e-5, 1e-6, 1e-8, 0.5]),
        "rows": st.sampled_from(Rows),
        "layout": st.sampled_from([Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED]),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[RMSNormCase] = st.builds(RMSNormCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
