"""Cases of GELU: shapes, storage types and contents."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout


class Arguments(StrEnum):
    """The arguments, each named after the property that they have."""

    NORMAL = "normal"
    WIDE = "wide"
    """Between -6 and 6, where the curve bends."""
    PEAKS = "peaks"
    """Near -2.699 and 2.699, where the two forms differ most."""
    FAR = "far"
    """Of magnitude 10 to 100: the result is zero or the argument."""
    SMALL = "small"
    """About a thousandth: the result is half of the argument."""
    LARGE = "large"
    """In the thousands, whose cubes are beyond float16."""


@dataclass(frozen=True, kw_only=True)
class GELUCase:
    """One call of a GELU.

    Attributes:
        shape: the axes; none for a single number.
        dtype: the storage type.
        arguments: the contents.
        layout: the strides.
        backward: whether the gradient is computed.
        seed: selects the numbers.
    """

    shape: tuple[int, ...] = (8,)
    dtype: torch.dtype = torch.float64
    arguments: Arguments = Arguments.NORMAL
    layout: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the shape, the storage type, and the fields that differ from the default."""
        words = [f"input={self.shape}", f"dtype={str(self.dtype).removeprefix('torch.')}"]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in ("shape", "dtype") and value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses: none."""
        return frozenset()

    def but(self, **changes: Any) -> "GELUCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> torch.Tensor:
        """Return the arguments."""
        drawn = _CONTENTS[self.arguments](normal(self.seed, "input", *self.shape))
        return lay_out(drawn.to(self.dtype), self.layout)

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        return normal(self.seed, "grad_out", *self.shape).to(self.dtype)


_CONTENTS: dict[Arguments, Callable[[torch.Tensor], torch.Tensor]] = {
    Arguments.NORMAL: lambda x: x,
    Arguments.WIDE: lambda x: (3 * x).clamp(-6, 6),
    Arguments.PEAKS: lambda x: x.sign() * (2.699 + 0.01 * x),
    Arguments.FAR: lambda x: x.sign() * (10 + 30 * x.abs()).clamp(max=100),
    Arguments.SMALL: lambda x: 1e-3 * x,
    Arguments.LARGE: lambda x: (3000 * x).clamp(-30_000, 30_000),
}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[GELUCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "shape": st.sampled_from(
            [(), (1,), (7,), (8,), (33,), (2, 3), (3, 65), (1, 2, 5), (1025,)]
        ),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "arguments": st.sampled_from(Arguments),
        "layout": st.sampled_from([Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED]),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {name: st.just(value) for name, value in fixed.items()}
    built: st.SearchStrategy[GELUCase] = st.builds(GELUCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)
