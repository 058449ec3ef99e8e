"""torch's `scaled_dot_product_attention` on nested tensors of jagged layout, as packed attention.

A nested tensor holds the offsets of its sequences. On a CPU the function takes no causal flag.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch.nn.functional import scaled_dot_product_attention

from attnspec.spec.packed import (
    UNBOUNDED,
    EmptySequences,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import MaskedNonfinite, RoundingLevel


def packed(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "total_k heads d_head"],
    value: Float[torch.Tensor, "total_k heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
) -> Any:
    """Nest the sequences, call torch's function, and append rows outside all sequences as zeros.

    Raises:
        ValueError: for a window, which the function does not take here.
    """
    if window_size != (UNBOUNDED, UNBOUNDED):
        raise ValueError(f"window_size must be (-1, -1), got {window_size}")
    total, total_k = int(cu_seq_q[-1]), int(cu_seq_k[-1])
    out = scaled_dot_product_attention(
        _nested(query[:total], cu_seq_q),
        _nested(key[:total_k], cu_seq_k),
        _nested(value[:total_k], cu_seq_k),
        scale=scale,
    )
    rows = out.transpose(1, 2).values()
    # not torch.cat, whose gradient is a part of a tensor (docs/findings.md)
    return torch.zeros_like(query).index_copy(0, torch.arange(total), rows)


def _nested(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor (sequences, heads, length, channels)."""
    lengths = offsets.diff()
    if torch.is_inference_mode_enabled():
        x = x.clone()  # torch 2.13 nests no tensor there that was made outside of that mode
    nested = torch.nested.nested_tensor_from_jagged(
        x.contiguous(),
        offsets.long().contiguous(),
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )
    return nested.transpose(1, 2)


IMPLEMENTATION = PackedImplementation(
    name="packed_nested",
    function=packed,
    profile=PackedProfile(
        outside_rows=OutsideRows.ZERO,
        empty_sequences=EmptySequences.UNDEFINED,
        neighbours=MaskedNonfinite.BLOCKED,
        rounding=RoundingLevel.EAGER,  # see nested_sdpa
    ),
)
