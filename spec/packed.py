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


class Merging(StrEnum):
    """The order in which the outputs of parts of the keys become one."""

    TOGETHER = "together"
    """One weighted sum of all parts."""
    PAIRS = "pairs"
    """Two by two, then the results two by two."""
    RUNNING = "running"
    """Each part is merged into the output of those before it."""


@dataclass(frozen=True, kw_only=True)
class RoundedParts:
    """Parts of the keys of a sequence whose outputs are rounded to the storage type, and merged.

    An instance is an answer to `partial_outputs`. Of `splits`, `pages` and `size` at most one is
    given; without them there may be a part for each key.

    Attributes:
        splits: the number of parts.
        pages: pages of a part.
        size: keys of a part.
        merging: the order of the merges; every result but the last is rounded again.

    Raises:
        ValueError: if a number is not positive, or more than one is given.
    """

    splits: int | None = None
    pages: int | None = None
    size: int | None = None
    merging: Merging = Merging.TOGETHER

    def __post_init__(self) -> None:
        given = [each for each in (self.splits, self.pages, self.size) if each is not None]
        if len(given) > 1 or min(given, default=1) < 1:
            raise ValueError(f"give one positive number of splits, pages or keys, got {self}")

    def __str__(self) -> str:
        if self == NEVER_ROUNDED:
            return "never"
        numbers = {"splits": self.splits, "pages": self.pages, "keys": self.size}
        named = [f"{each} {name}" for name, each in numbers.items() if each is not None]
        return " ".join(["rounded", *named, self.merging])

    def parts(self, keys: int, page_size: int) -> int:
        """Return the largest number of parts of a sequence."""
        if self.splits is not None:
            return min(self.splits, keys)
        size = self.size or (self.pages or 0) * page_size or 1
        return -(-keys // size)

    def __call__(self, queries: int, keys: int, page_size: int) -> int:
        """Return how often an output is rounded before the last time."""
        parts = self.parts(keys, page_size)
        if parts < 2:
            return 0
        if self.merging is Merging.TOGETHER:
            return 1
        return (parts - 1).bit_length() if self.merging is Merging.PAIRS else parts - 1


NEVER_ROUNDED = RoundedParts(splits=1)
"""The answer of a kernel that keeps the outputs of parts in the accumulator's type."""


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
    partial_outputs: Callable[[int, int, int], int] = NEVER_ROUNDED
    """``(queries, keys, page_size) -> n``: how often the output of a part of the keys of a sequence
    is rounded to the storage type, on the longest way to the result; `page_size` is 0 if there are
    no pages. `RoundedParts` counts this for usual kernels."""
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


def causal_alone(case: Any) -> str | None:
    """Return the reason why a function that is always causal refuses a case, or None: a `supports`.

    A single query reads every key with the causal diagonal and without it.
    """
    is_causal = case.window[1] == CAUSAL[1] or max(case.queries) < 2
    return None if is_causal else "the function has no call of several queries that is not causal"


@dataclass(frozen=True, kw_only=True)
class PackedImplementation(OperatorImplementation):
    """A packed attention and its claims, as data.

    Attributes:
        profile: its behaviour wherever libraries disagree.

    Raises:
        ValueError: also if it declares gradients and `partial_outputs`.
    """

    function: PackedAttention | Callable[..., Any]
    profile: PackedProfile = field(default_factory=PackedProfile)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_gradients and self.profile.partial_outputs != NEVER_ROUNDED:
            raise ValueError(
                f"{self.name}: gradients have no bound if outputs of parts are rounded: declare "
                "has_gradients=False"
            )

    operator: ClassVar[str] = "packed"
    FEATURES: ClassVar[frozenset[str]] = PACKED_FEATURES
