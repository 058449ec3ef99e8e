"""Checks of an attention call: a bad argument raises one error, which names the argument."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Shaped


def check_arguments(
    query: Shaped[torch.Tensor, "..."],
    key: Shaped[torch.Tensor, "..."],
    value: Shaped[torch.Tensor, "..."],
    attn_mask: Shaped[torch.Tensor, "..."] | None,
    *,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    sinks: Shaped[torch.Tensor, "..."] | None,
    alibi_slopes: Shaped[torch.Tensor, "..."] | None,
    key_lengths: Shaped[torch.Tensor, "..."] | None = None,
    query_offset: Shaped[torch.Tensor, "..."] | None = None,
) -> None:
    """Raise an error for a call that has no meaning under the contract.

    Args:
        query: must be floating point, of shape (batch, heads, queries, d_head).
        key: must have the dtype and device of `query`, and the shape (batch, kv_heads, keys,
            d_head), where kv_heads is heads, or divides it.
        value: must have the dtype and device of `query`, and the shape (batch, kv_heads, keys,
            d_value).
        attn_mask: must be bool or floating point, of rank 2 to 4, and broadcastable to (batch,
            heads, queries, keys); or None.
        dropout_p: must lie in [0, 1].
        scale: must be finite, or None.
        enable_gqa: must be true if kv_heads differs from heads.
        window: must be ``(left, right)``, each not negative or None; or None.
        softcap: must be finite and positive, or None.
        sinks: must be floating point, of shape (heads,), or None.
        alibi_slopes: must be floating point, of shape (heads,), or None.
        key_lengths: must be int32 or int64, of shape (batch,), each from 0 to keys; or None.
        query_offset: must be int32 or int64, of shape (batch,), none negative; or None.

    Raises:
        TypeError: if a tensor has the wrong dtype.
        ValueError: if a shape, a device or a number is out of range.
    """
    _check_operands({"query": query, "key": key, "value": value})
    batch, heads, queries, d_head = query.shape
    kv_heads, keys = key.shape[1:3]
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value must have the batch, heads and length of key, {tuple(key.shape[:3])}, "
            f"got {tuple(value.shape[:3])}"
        )
    if key.shape[0] != batch:
        raise ValueError(f"key must have the batch of query, {batch}, got {key.shape[0]}")
    if key.shape[3] != d_head:
        raise ValueError(f"key must have the channels of query, {d_head}, got {key.shape[3]}")
    if heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"key has {kv_heads} heads where query has {heads}: pass enable_gqa=True to share them"
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} heads of query do not share {kv_heads} heads of key evenly")
    if attn_mask is not None:
        _check_mask(attn_mask, (batch, heads, queries, keys))
    for name, per_head in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if per_head is not None and per_head.shape != (heads,):
            raise ValueError(f"{name} must have shape ({heads},), got {tuple(per_head.shape)}")
        if per_head is not None and not per_head.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {per_head.dtype}")
    for name, per_element, most in (
        ("key_lengths", key_lengths, keys),
        ("query_offset", query_offset, None),
    ):
        if per_element is not None:
            _check_numbers(name, per_element, batch, most)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be finite or None, got {scale}")
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ValueError(f"softcap must be finite and positive, or None, got {softcap}")
    _check_window(window)


def _check_operands(operands: Mapping[str, torch.Tensor]) -> None:
    query = operands["query"]
    for name, operand in operands.items():
        if operand.ndim != 4:
            raise ValueError(
                f"{name} must have 4 axes (batch, heads, length, channels), got {operand.ndim}"
            )
        if not operand.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {operand.dtype}")
        if operand.dtype != query.dtype:
            raise TypeError(
                f"{name} must have the dtype of query, {query.dtype}, got {operand.dtype}"
            )
        if operand.device != query.device:
            raise ValueError(
                f"{name} must be on the device of query, {query.device}, got {operand.device}"
            )


def _check_numbers(name: str, numbers: torch.Tensor, batch: int, most: int | None) -> None:
    if numbers.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {numbers.dtype}")
    if numbers.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), got {tuple(numbers.shape)}")
    if bool((numbers < 0).any()) or (most is not None and bool((numbers > most).any())):
        least = "not be negative" if most is None else f"lie from 0 to {most}"
        raise ValueError(f"{name} must {least}, got {numbers.tolist()}")


def _check_mask(attn_mask: torch.Tensor, scores_shape: tuple[int, int, int, int]) -> None:
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(f"attn_mask must be bool or float, got {attn_mask.dtype}")
    if not 2 <= attn_mask.ndim <= 4:
        raise ValueError(f"attn_mask must have 2 to 4 axes, got {attn_mask.ndim}")
    full_shape = scores_shape[4 - attn_mask.ndim :]
    if any(size not in (1, full) for size, full in zip(attn_mask.shape, full_shape, strict=True)):
        raise ValueError(
            f"attn_mask must be broadcastable to (batch, heads, queries, keys) = {scores_shape}, "
            f"got {tuple(attn_mask.shape)}"
        )


def _check_window(window: tuple[int | None, int | None] | None) -> None:
    if window is None:
        return
    if len(window) != 2:
        raise ValueError(f"window must be (left, right), got {window}")
    for side, width in zip(("left", "right"), window, strict=True):
        if width is not None and width < 0:
            raise ValueError(f"window: {side} must not be negative, got {width}")
