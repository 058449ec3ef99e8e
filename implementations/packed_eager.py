"""Packed attention in plain tensor operations: one softmax for each sequence."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.spec.packed import (
    PACKED_FEATURES,
    UNBOUNDED,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import RoundingLevel


def packed(
    query: Float[torch.Tensor, "total_q heads d_head"],
    key: Float[torch.Tensor, "total_k kv_heads d_head"],
    value: Float[torch.Tensor, "total_k kv_heads d_head"],
    cu_seq_q: Int[torch.Tensor, " sequences_plus_one"],
    cu_seq_k: Int[torch.Tensor, " sequences_plus_one"],
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, " heads"] | None = None,
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
) -> Any:
    """Attend within each sequence; rows outside all sequences are zero.

    Raises:
        ValueError: if the numbers of heads differ without `enable_gqa`.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"{heads} query heads on {kv_heads} key/value heads need enable_gqa")
    scale = query.shape[2] ** -0.5 if scale is None else scale
    out = torch.zeros_like(query)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    lse = torch.full((heads, len(query)), -torch.inf, dtype=wide)
    for b in range(len(cu_seq_q) - 1):
        rows = slice(int(cu_seq_q[b]), int(cu_seq_q[b + 1]))
        keys = slice(int(cu_seq_k[b]), int(cu_seq_k[b + 1]))
        q = query[rows].transpose(0, 1)
        k, v = (x[keys].transpose(0, 1) for x in (key, value))
        k, v = (x.repeat_interleave(heads // kv_heads, dim=0) for x in (k, v))
        scores = (q @ k.mT) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        place = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        after = torch.arange(k.shape[1]) - place
        if alibi_slopes is not None:
            slopes = alibi_slopes.to(scores.dtype)[:, None, None]
            scores = scores - slopes * after.abs().to(scores.dtype)
        weights, lse[:, rows] = _softmax(scores, _visible(after, window_size), sinks)
        out[rows] = (weights @ v).transpose(0, 1)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _visible(
    after: Int[torch.Tensor, "queries keys"], window_size: tuple[int, int]
) -> Bool[torch.Tensor, "queries keys"]:
    """Return whether a key that lies so far after its query's own position is readable."""
    left, right = window_size
    visible = torch.ones_like(after, dtype=torch.bool)
    if left != UNBOUNDED:
        visible &= after >= -left
    if right != UNBOUNDED:
        visible &= after <= right
    return visible


def _softmax(
    scores: Float[torch.Tensor, "heads queries keys"],
    visible: Bool[torch.Tensor, "queries keys"],
    sinks: Float[torch.Tensor, " heads"] | None,
) -> tuple[Float[torch.Tensor, "heads queries keys"], Float[torch.Tensor, "heads queries"]]:
    """Return the weights, zero for a row that reads nothing, and the log-sum-exp."""
    keys = scores.shape[-1]
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, sink], dim=-1)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    lse = scores.detach().to(wide).logsumexp(-1)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights[..., :keys], lse


IMPLEMENTATION = PackedImplementation(
    name="packed_eager",
    function=packed,
    features=PACKED_FEATURES - {"validates"},
    profile=PackedProfile(outside_rows=OutsideRows.ZERO, rounding=RoundingLevel.EAGER),
)
