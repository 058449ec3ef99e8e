"""Check the arguments that every implementation written in this folder refuses."""

import torch


def check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    *,
    enable_gqa: bool,
) -> None:
    """Refuse arguments without a meaning.

    Raises:
        ValueError: if shapes or types do not fit together; names them.
    """
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if operand.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions, got shape {tuple(operand.shape)}")
        if operand.dtype != query.dtype or not operand.is_floating_point():
            raise ValueError(f"{name} must be of query's floating type, got {operand.dtype}")
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"key and value must agree in batch, heads and keys, got shapes {tuple(key.shape)} "
            f"and {tuple(value.shape)}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"query and key must agree in batch and channels, got shapes {tuple(query.shape)} "
            f"and {tuple(key.shape)}"
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not (enable_gqa and kv_heads and heads % kv_heads == 0):
        raise ValueError(f"{heads} query heads cannot share {kv_heads} key/value heads")
    if attn_mask is None:
        return
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ValueError(f"attn_mask must be bool or floating point, got {attn_mask.dtype}")
    if not 2 <= attn_mask.dim() <= 4:
        raise ValueError(f"attn_mask must have 2 to 4 dimensions, got {attn_mask.dim()}")
    scores = (*query.shape[:3], key.shape[2])
    pairs = zip(reversed(attn_mask.shape), reversed(scores), strict=False)
    # not `size not in (1, needed)`: compiled code does not find symbolic sizes in a tuple
    if any(size != 1 and size != needed for size, needed in pairs):
        raise ValueError(
            f"attn_mask of shape {tuple(attn_mask.shape)} does not broadcast to {scores}"
        )
