"""Cases of rotary positions: shapes, storage types, places of the tokens, and configurations."""

import zlib
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec import Layout
from attnspec.spec.rotary import RotaryScaling, ScalingKind

BASE = 10_000.0
"""The base of a call that gives none."""


class Places(StrEnum):
    """The positions of the tokens of a call."""

    COUNTED = "counted"
    """From `start` on: decoding behind a cache of so many tokens."""
    RESTARTED = "restarted"
    """From `start` on, and from 0 again behind the first third: packed texts."""
    PADDED = "padded"
    """Row b has b + 1 zeros before it counts: left padding."""
    SCATTERED = "scattered"
    """Any positions below `start` + 64, in any order."""


@dataclass(frozen=True, kw_only=True)
class RotaryCase:
    """One call of a rotary embedding.

    Attributes:
        batch: sequences.
        heads: of each token.
        length: tokens of each sequence.
        d_head: channels of a head.
        rotary_dim: channels that are turned; None for all.
        base: of the frequencies.
        scaling: of the frequencies; None for none.
        places: the positions.
        start: of the first token, or an offset.
        dtype: the storage type.
        layout: the strides of queries or keys.
        backward: whether the gradient is computed.
        seed: selects the numbers.
    """

    batch: int = 1
    heads: int = 1
    length: int = 3
    d_head: int = 4
    rotary_dim: int | None = None
    base: float = BASE
    scaling: RotaryScaling | None = None
    places: Places = Places.COUNTED
    start: int = 0
    dtype: torch.dtype = torch.float64
    layout: Layout = Layout.CONTIGUOUS
    backward: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return the shape, the storage type, and the fields that differ from the default."""
        words = [f"x={(self.batch, self.heads, self.length, self.d_head)}"]
        words.append(f"dtype={str(self.dtype).removeprefix('torch.')}")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _SAID and value != item.default:
                words.append(f"{item.name}={value.kind if item.name == 'scaling' else value}")
        return " ".join(words)

    @property
    def turned(self) -> int:
        """The number of channels that are turned."""
        return self.d_head if self.rotary_dim is None else self.rotary_dim

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {"partial"} if self.turned != self.d_head else set()
        if self.base != BASE:
            used.add("base")
        if self.scaling is not None:
            used.add(str(self.scaling.kind))
        return frozenset(used)

    def but(self, **changes: Any) -> "RotaryCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def draw(self) -> torch.Tensor:
        """Return queries or keys in the storage type."""
        shape = (self.batch, self.heads, self.length, self.d_head)
        return lay_out(normal(self.seed, "x", *shape).to(self.dtype), self.layout)

    def draw_gradient(self) -> torch.Tensor:
        """Return the incoming gradient."""
        shape = (self.batch, self.heads, self.length, self.d_head)
        return normal(self.seed, "grad_out", *shape).to(self.dtype)

    def positions(self) -> torch.Tensor:
        """Return the positions, (batch, length)."""
        counted = torch.arange(self.length).expand(self.batch, -1)
        if self.places is Places.COUNTED:
            return counted + self.start
        if self.places is Places.RESTARTED:
            first = -(-self.length // 3)
            return torch.where(counted < first, counted + self.start, counted - first)
        if self.places is Places.PADDED:
            pads = torch.arange(1, self.batch + 1)[:, None]
            return (counted - pads).clamp(min=0) + self.start
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/positions".encode()))
        shape = (self.batch, self.length)
        return torch.randint(self.start + 64, shape, generator=generator)


_SAID = ("rotary_dim", "base", "scaling", "places", "start", "layout", "backward", "seed")


SCALINGS = (
    RotaryScaling(kind=ScalingKind.LINEAR, factor=4.0),
    RotaryScaling(kind=ScalingKind.LINEAR, factor=2.5),
    RotaryScaling(kind=ScalingKind.DYNAMIC, factor=3.0, original_length=16),
    RotaryScaling(kind=ScalingKind.DYNAMIC, factor=2.0, original_length=40),
    RotaryScaling(kind=ScalingKind.YARN, factor=4.0, original_length=4096),
    RotaryScaling(kind=ScalingKind.YARN, factor=32.0, original_length=4096, truncate=False),
    RotaryScaling(kind=ScalingKind.YARN, factor=8.0, original_length=32_768, attention_factor=1.0),
    RotaryScaling(kind=ScalingKind.LLAMA3, factor=8.0, original_length=8192),
    RotaryScaling(kind=ScalingKind.LLAMA3, factor=32.0, original_length=8192),
)
"""Scalings of drawn cases; `dynamic` changes calls of a few tokens."""


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[RotaryCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    features = subject.implementation.features
    scalings = [each for each in SCALINGS if each.kind in features]
    bases = (BASE, 500.0, 500_000.0, 1_000_000.0) if "base" in features else (BASE,)

    @st.composite
    def draw(draw: Any) -> RotaryCase:
        d_head = draw(st.sampled_from([2, 4, 6, 8, 16, 20, 64, 80, 128]))
        widths = [d_head, *(w for w in (2, 4, 8, 16, 32) if w < d_head and "partial" in features)]
        rotary_dim = draw(st.sampled_from(widths))
        fitting = [each for each in scalings if rotary_dim >= 4]
        values = {
            "batch": draw(st.sampled_from([1, 2, 3])),
            "heads": draw(st.sampled_from([1, 2, 3])),
            "length": draw(st.sampled_from([1, 2, 5, 9, 33])),
            "d_head": d_head,
            "rotary_dim": None if rotary_dim == d_head else rotary_dim,
            "base": draw(st.sampled_from(bases)),
            "scaling": draw(st.sampled_from([None, *fitting])),
            "places": draw(st.sampled_from(Places)),
            "start": draw(st.sampled_from([0, 0, 1, 31, 1000, 4096, 100_000])),
            "dtype": draw(st.sampled_from(subject.implementation.dtypes)),
            "seed": draw(st.integers(0, 2**16 - 1)),
        }
        return RotaryCase(**(values | fixed))

    return draw().filter(lambda case: subject.refuses(case) is None)
