"""Profiles: the questions on which correct implementations differ, each with its answers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class CausalAlignment(StrEnum):
    """Which diagonal the causal mask follows when there are fewer or more queries than keys."""

    UPPER_LEFT = "upper_left"
    """Query *i* may read key *j* iff *j ≤ i*."""
    LOWER_RIGHT = "lower_right"
    """Query *i* may read key *j* iff *j ≤ i + keys − queries*: cached decoding needs this one."""


class EmptyRow(StrEnum):
    """What a query that may read nothing gives."""

    ZERO = "zero"
    MEAN = "mean"
    """The mean over all keys, readable or not."""
    NAN = "nan"


class MaskedNonfinite(StrEnum):
    """What NaN and infinity do in keys and values that a query may not read."""

    BLOCKED = "blocked"
    """Nothing: the row is what it would be without them."""
    PROPAGATES = "propagates"
    """The row may become NaN, and never another finite value."""


class RoundingLevel(StrEnum):
    """Which intermediate results may be rounded to the storage type, from fewest to most."""

    FUSED = "fused"
    """Weights once, before they meet the values; the output once."""
    PRESCALED = "prescaled"
    """As fused, and the scaled queries (or keys)."""
    ROWSUM = "rowsum"
    """As fused, and the sum of a row is taken over rounded weights."""
    EAGER = "eager"
    """Every intermediate: scaled queries, scores, weights."""


def one_write(queries: int, keys: int) -> tuple[int, int]:
    """Write every gradient back once: the default of `Rounding.partial_writes`."""
    return 1, 1


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """How an implementation rounds; the error bound of chapter NUM is computed from it.

    Attributes:
        level: which intermediate results are rounded to the storage type.
        accumulator: unit roundoff of sums and elementary functions; ``None`` means round to
            nearest in float32 (in float64 for float64 inputs). A tensor core whose adder
            truncates declares ``2.0**-23`` or more.
        partial_writes: ``(queries, keys) -> (n_q, n_kv)``, how often dQ, and dK and dV, are
            written back in the storage type while they are summed.
        exp_error: relative error of ``exp`` in units of the accumulator's roundoff.
        weight_exp_error: that of the ``exp`` which gives a weight, where the storage type has 16
            bits: kernels often take a coarser one there, and an exact one to rescale. ``None`` is
            `exp_error`.
        tanh_error: likewise of ``tanh``.
    """

    level: RoundingLevel = RoundingLevel.FUSED
    accumulator: float | None = None
    partial_writes: Callable[[int, int], tuple[int, int]] = one_write
    exp_error: float = 32.0
    weight_exp_error: float | None = None
    tanh_error: float = 32.0

    def __post_init__(self) -> None:
        if self.accumulator is not None and not 0 < self.accumulator < 1:
            raise ValueError(f"accumulator must lie in (0, 1) or be None, got {self.accumulator}")
        for name in ("exp_error", "tanh_error", "weight_exp_error"):
            error = getattr(self, name)
            if error is not None and not (math.isfinite(error) and error >= 1):
                raise ValueError(f"{name} must be finite and at least 1, got {error}")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One implementation's answers to every question on which the field is split.

    The defaults are the answers that the specification recommends.
    """

    causal_alignment: CausalAlignment = CausalAlignment.UPPER_LEFT
    empty_row: EmptyRow = EmptyRow.ZERO
    masked_nonfinite: MaskedNonfinite = MaskedNonfinite.BLOCKED
    rounding: Rounding = field(default_factory=Rounding)
    deterministic: bool = True
    """Two equal calls give equal bits."""
    batch_invariant: bool = False
    """A batch element's bits do not depend on the rest of the batch."""
