"""The contract of paged attention, and the questions on which implementations differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.packed import (
    EVERYWHERE,
    PACKED_FEATURES,
    AuxRequest,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import MaskedNonfinite


@dataclass(frozen=True, kw_only=True)
class PagedProfile(PackedProfile):
    """The declared behaviour of one paged attention wherever libraries disagree."""

    unwritten: MaskedNonfinite = MaskedNonfinite.BLOCKED
    """The effect of NaN and infinity in the rest of the last page of a sequence."""

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        **PackedProfile.QUESTIONS,
        "unwritten": MaskedNonfinite,
    }


class PagedAttention(Protocol):
    """Packed attention whose keys and values lie in pages of one pool.

    The parameters are those of `torch.nn.attention.varlen.varlen_attn` with a block table. With the
    feature `append`, `new_key` and `new_value` hold a key and a value for each query, which the
    call writes into the pages behind the first `seqused_k` tokens before it attends.
    """

    def __call__(
        self,
        query: Float[torch.Tensor, "total_q heads d_head"],
        key: Float[torch.Tensor, "pages page_size kv_heads d_head"],
        value: Float[torch.Tensor, "pages page_size kv_heads d_head"],
        cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
        cu_seq_k: None,
        max_q: int,
        max_k: int,
        *,
        seqused_k: Int[torch.Tensor, " sequences"],
        block_table: Int[torch.Tensor, "sequences columns"],
        return_aux: AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = EVERYWHERE,
        enable_gqa: bool = False,
        **features: Any,
    ) -> Any:
        """Return attention of each sequence over the keys in its pages."""


PAGED_FEATURES = PACKED_FEATURES | {"append"}
"""The features of a paged attention."""


@dataclass(frozen=True, kw_only=True)
class PagedImplementation(PackedImplementation):
    """A paged attention and its claims, as data.

    Attributes:
        profile: its behaviour wherever libraries disagree.
        page_sizes: the page sizes that it accepts; None for all.
    """

    function: PagedAttention | Callable[..., Any]
    profile: PagedProfile = field(default_factory=PagedProfile)
    has_gradients: bool = False
    page_sizes: tuple[int, ...] | None = None

    operator: ClassVar[str] = "paged"
    FEATURES: ClassVar[frozenset[str]] = PAGED_FEATURES
