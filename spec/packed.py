"""The contract of packed attention, and the questions on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.profiles import EmptyRow, MaskedNonfinite, RoundingLevel

UNBOUNDED = -1
"""A side of `window_size` that hides no key; the padded contract says None."""

EVERYWHERE = (UNBOUNDED, UNBOUNDED)
"""The `window_size` that hides nothing."""

CAUSAL = (UNBOUNDED, 0)
"""The `window_size` of causal attention."""


class AuxRequest(NamedTuple):
    """The further results that a call asks for: `torch.nn.attention.varlen.AuxRequest`."""

    lse: bool = False
    """True if the log-sum-exp is returned too."""


class EmptySequences(StrEnum):
    """The meaning of a sequence without queries or without keys."""

    ALLOWED = "allowed"
    """It has no effect on other sequences; its queries read nothing."""
    UNDEFINED = "undefined"


class OutsideRows(StrEnum):
    """The output of rows that lie behind the last sequence."""

    ZERO = "zero"
    UNDEFINED = "undefined"
    """Any number: the memory may never have been written."""


class IndexType(StrEnum):
    """The integer type of offsets, and of the lengths and the table of a paged call.

    All of them have one type in a call. One that is not declared is undefined, unless `validates`
    is claimed.
    """

    EITHER = "either"
    """int32 or int64."""
    INT32 = "int32"
    INT64 = "int64"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The declared types; calls that are not about them have the first one."""
        if self is IndexType.EITHER:
            return torch.int32, torch.int64
        return (torch.int32,) if self is IndexType.INT32 else (torch.int64,)


class LseLayout(StrEnum):
    """The order of the axes of the log-sum-exp."""

    HEADS_FIRST = "heads_first"
    """(heads, total_q)."""
    TOKENS_FIRST = "tokens_first"
    """(total_q, heads)."""


@dataclass(frozen=True, kw_only=True)
class PackedProfile:
    """The declared behaviour of one packed attention wherever libraries disagree."""

    empty_row: EmptyRow = EmptyRow.ZERO
    """The output of a query that may read no key of its sequence."""
    empty_sequences: EmptySequences = EmptySequences.ALLOWED
    outside_rows: OutsideRows = OutsideRows.UNDEFINED
    neighbours: MaskedNonfinite = MaskedNonfinite.BLOCKED
    """The effect of NaN and infinity in keys and values of other sequences, or of none."""
    index_type: IndexType = IndexType.EITHER
    lse_layout: LseLayout = LseLayout.HEADS_FIRST
    rounding: RoundingLevel = RoundingLevel.FUSED
    """The intermediate results that may be rounded to the storage type."""
    accumulator: float | None = None
    """Unit roundoff of sums, as that of `attnspec.spec.Rounding`; None is float32's own."""
    batch_invariant: bool = False
    """The bits of a sequence are independent of the other sequences."""

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "empty_row": EmptyRow,
        "empty_sequences": EmptySequences,
        "outside_rows": OutsideRows,
        "neighbours": MaskedNonfinite,
        "index_type": IndexType,
        "lse_layout": LseLayout,
        "rounding": RoundingLevel,
    }
    """The fields whose answers have names, with the type of these."""


class PackedAttention(Protocol):
    """Attention over sequences that are packed one after the other, without padding.

    The parameters are those of `torch.nn.attention.varlen.varlen_attn`. The keywords `softcap`,
    `sinks` and `alibi_slopes` mean what they mean in `attnspec.spec.Attention`, and are passed only
    to an implementation that declares them.
    """

    def __call__(
        self,
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "total_k kv_heads d_head"],
        value: Float[torch.Tensor, "total_k kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
        max_q: int,
        max_k: int,
        *,
        return_aux: AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = EVERYWHERE,
        enable_gqa: bool = False,
        **features: Any,
    ) -> Any:
        """Return attention of each sequence over its own keys; with `return_aux` (out, lse)."""


PACKED_FEATURES = frozenset(
    {"causal", "window", "gqa", "lse", "softcap", "sinks", "alibi", "validates"}
)
"""The features of a packed attention: `causal` is the window (-1, 0), `window` any other.

One that claims `validates` raises for lengths that do not fit, and for an integer type that is not
declared, which are undefined for others.
"""


@dataclass(frozen=True, kw_only=True)
class PackedImplementation(OperatorImplementation):
    """A packed attention and its claims, as data.

    Attributes:
        profile: its behaviour wherever libraries disagree.
    """

    function: PackedAttention | Callable[..., Any]
    profile: PackedProfile = field(default_factory=PackedProfile)

    operator: ClassVar[str] = "packed"
    FEATURES: ClassVar[frozenset[str]] = PACKED_FEATURES
