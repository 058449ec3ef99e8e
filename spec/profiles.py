"""Profiles: the behaviours in which correct implementations differ."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch


class CausalAlignment(StrEnum):
    """The diagonal of the causal mask if there are fewer or more queries than keys."""

    UPPER_LEFT = "upper_left"
    """Query *i* may read key *j* iff *j ≤ i*."""
    LOWER_RIGHT = "lower_right"
    """Query *i* may read key *j* iff *j ≤ i + keys − queries*: cached decoding needs this one."""


class EmptyRow(StrEnum):
    """The output of a query that may read no key."""

    ZERO = "zero"
    MEAN = "mean"
    """The mean over all keys, readable or not."""
    NAN = "nan"


class CausalSingleQuery(StrEnum):
    """The effect of the causal flag if there is a single query, as in decoding."""

    HIDES = "hides"
    """As with more queries: under `upper_left`, the query may read key 0 alone."""
    IGNORED = "ignored"
    """None: the query may read every key."""


class MaskedNonfinite(StrEnum):
    """The effect of NaN and infinity in a key or a value that a query may not read."""

    BLOCKED = "blocked"
    """None: the row is the same as without them."""
    PROPAGATES = "propagates"
    """The row may become NaN, and never another finite value."""


class Grouping(StrEnum):
    """The key/value head of a query head, if there are fewer key/value heads than query heads."""

    CONSECUTIVE = "consecutive"
    """Query head *h* reads key/value head ``h // (heads // kv_heads)``."""
    INTERLEAVED = "interleaved"
    """Query head *h* reads key/value head ``h % kv_heads``."""


class SoftcapOrder(StrEnum):
    """The order of softcap and bias. Hidden keys stay hidden in either."""

    BEFORE_BIAS = "before_bias"
    """The softcap bounds the scaled scores; float mask and ALiBi are added to the result."""
    AFTER_BIAS = "after_bias"
    """The softcap bounds the sum of scaled scores, float mask and ALiBi."""


class Float64Precision(StrEnum):
    """The type in which a call with tensors of float64 is computed."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    """Every tensor is rounded to float32 first, and the result is accurate to float32."""

    def computed_in(self, dtype: "torch.dtype") -> "torch.dtype":
        """Return the type to which operands of a storage type are rounded before they are used."""
        import torch  # reading what a record says of a profile needs no torch

        is_narrowed = dtype == torch.float64 and self is Float64Precision.FLOAT32
        return torch.float32 if is_narrowed else dtype


class RoundingLevel(StrEnum):
    """The intermediate results that may be rounded to the storage type, from fewest to most."""

    FUSED = "fused"
    """Weights once, before they are multiplied by the values; the output once."""
    PRESCALED = "prescaled"
    """As fused, and the scaled queries (or keys)."""
    ROWSUM = "rowsum"
    """As fused, and the sum of a row is taken over rounded weights."""
    EAGER = "eager"
    """Every intermediate result: scaled queries, scores, weights."""


def one_write(queries: int, keys: int, group: int) -> tuple[int, int]:
    """Return one write for every gradient: the default of `Rounding.partial_writes`."""
    return 1, 1


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The roundings of an implementation; the error bound of chapter NUM is computed from them.

    Attributes:
        level: the intermediate results that are rounded to the storage type.
        accumulator: unit roundoff of sums and elementary functions; ``None`` means round to
            nearest in float32 (in float64 for float64 inputs). A tensor core whose adder
            truncates declares ``2.0**-23`` or more.
        partial_writes: ``(queries, keys, group) -> (n_q, n_kv)``, the number of times that dQ,
            and dK and dV, are written back in the storage type while they are summed; `group` is
            the number of query heads that share a head of keys.
        exp_error: relative error of ``exp`` in units of the accumulator's roundoff.
        weight_exp_error: likewise of the ``exp`` that becomes a weight, if the storage type has 16
            bits: kernels often use a coarser one there, and an exact one to rescale. ``None`` is
            `exp_error`.
        tanh_error: likewise of ``tanh``.
    """

    level: RoundingLevel = RoundingLevel.FUSED
    accumulator: float | None = None
    partial_writes: Callable[[int, int, int], tuple[int, int]] = one_write
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
    """The declared behaviour of one implementation wherever libraries disagree.

    The defaults are the behaviours that the specification recommends.
    """

    causal_alignment: CausalAlignment = CausalAlignment.UPPER_LEFT
    causal_single_query: CausalSingleQuery = CausalSingleQuery.HIDES
    empty_row: EmptyRow = EmptyRow.ZERO
    empty_row_bool_mask: EmptyRow | None = None
    """The same if a bool mask hides the keys; None if it makes no difference."""
    empty_row_float_mask: EmptyRow | None = None
    """The same if a float mask hides the keys; None if it makes no difference."""
    masked_keys: MaskedNonfinite = MaskedNonfinite.BLOCKED
    masked_values: MaskedNonfinite = MaskedNonfinite.BLOCKED
    grouping: Grouping = Grouping.CONSECUTIVE
    softcap_order: SoftcapOrder = SoftcapOrder.BEFORE_BIAS
    float64_precision: Float64Precision = Float64Precision.FLOAT64
    rounding: Rounding = field(default_factory=Rounding)
    deterministic: bool = True
    """Equal calls return equal bits."""
    batch_invariant: bool = False
    """The bits of a batch element are independent of the rest of the batch."""

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "causal_alignment": CausalAlignment,
        "causal_single_query": CausalSingleQuery,
        "empty_row": EmptyRow,
        "empty_row_bool_mask": EmptyRow,
        "empty_row_float_mask": EmptyRow,
        "masked_keys": MaskedNonfinite,
        "masked_values": MaskedNonfinite,
        "grouping": Grouping,
        "softcap_order": SoftcapOrder,
        "float64_precision": Float64Precision,
    }
    """The fields whose answers have names, with these answers."""

    def ignores_causal_flag(self, queries: int) -> bool:
        """Return whether `is_causal` has no effect on a call of so many queries."""
        return queries == 1 and self.causal_single_query is CausalSingleQuery.IGNORED

    @property
    def empty_row_answers(self) -> Mapping[str, EmptyRow]:
        """The output of an empty row, by what hides its keys: `position`, or a kind of mask."""
        return {
            "position": self.empty_row,
            "bool": self.empty_row_bool_mask or self.empty_row,
            "float": self.empty_row_float_mask or self.empty_row,
        }
