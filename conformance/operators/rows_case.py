"""Cases of operators on rows of channels: fields, words and contents that they share."""

import math
import zlib
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import torch
from hypothesis import strategies as st
from jaxtyping import Float64

from attnspec.conformance.attention.layouts import lay_out
from attnspec.spec import Layout

SHAPES = ((1,), (2,), (3,), (2, 3), (1, 2, 5), (33,))
CHANNELS = (1, 2, 3, 4, 5, 8, 16, 31, 33, 64, 65, 128, 257, 768)
LAYOUTS = (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
"""The values from which cases are drawn."""


@dataclass(frozen=True, kw_only=True)
class RowsCase:
    """One call of an operator on rows of channels.

    Attributes:
        shape: the axes before the channels.
        channels: the number of channels, at least 1.
        dtype: the storage type of the operands.
        layout: the strides of the rows.
        backward: whether gradients of the operands are computed.
        seed: selects the numbers.
    """

    shape: tuple[int, ...] = (2,)
    channels: int = 4
    dtype: torch.dtype = torch.float64
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

    def but(self, **changes: Any) -> Self:
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw_gain(self) -> Float64[torch.Tensor, " channels"]:
        """Return a factor of each channel, about one and never zero."""
        return 1 + 0.25 * normal(self.seed, "weight", self.channels).clamp(-3, 3)

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad_out", *self.whole).to(self.dtype)

    def stored(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows in the storage type and the layout."""
        return lay_out(rows.to(self.dtype), self.layout)


Rowwise = TypeVar("Rowwise", bound=RowsCase)


def normal(seed: int, purpose: str, *shape: int) -> Float64[torch.Tensor, "..."]:
    """Return standard normal numbers for one purpose of a case."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{purpose}".encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def normal_rows(case: RowsCase) -> torch.Tensor:
    """Return standard normal rows."""
    return normal(case.seed, "input", *case.whole)


def large_rows(case: RowsCase) -> torch.Tensor:
    """Return rows in the thousands; 3 000 squared is beyond float16, which ends at 65 504."""
    return (3000 * normal_rows(case)).clamp(-30_000, 30_000)


def rows_with_an_outlier(case: RowsCase) -> torch.Tensor:
    """Return rows of which one channel is a thousand times as large as the others."""
    x = normal_rows(case)
    x[..., case.seed % case.channels] *= 1000
    return x


def unlike_rows(case: RowsCase) -> torch.Tensor:
    """Return rows of which each is eight times as large as the row before."""
    sizes = 8.0 ** (torch.arange(math.prod(case.shape)) % 5 - 2).double()
    return normal_rows(case) * sizes.view(*case.shape, 1)


def with_first_row(case: RowsCase, value: float) -> torch.Tensor:
    """Return rows of which every channel of the first has one value."""
    x = normal_rows(case)
    x.view(-1, case.channels)[:1] = value
    return x


def drawn_rows(
    kind: type[Rowwise], subject: Any, fixed: dict[str, Any], **others: st.SearchStrategy[Any]
) -> st.SearchStrategy[Rowwise]:
    """Return a strategy that draws cases a subject claims.

    Args:
        kind: the type of the cases.
        subject: refuses cases.
        fixed: values of some fields.
        others: strategies of the fields that cases of this type alone have.
    """
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "shape": st.sampled_from(SHAPES),
        "channels": st.sampled_from(CHANNELS),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "layout": st.sampled_from(LAYOUTS),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | others | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[Rowwise] = st.builds(kind, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
