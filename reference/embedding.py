"""Embeddings: from token ids to the first state of the residual stream."""

import torch
from jaxtyping import Float, Int


def embed(
    input_ids: Int[torch.Tensor, "batch length"],
    token_table: Float[torch.Tensor, "vocab d_model"],
    position_table: Float[torch.Tensor, "positions d_model"],
    position_ids: Int[torch.Tensor, "#batch length"] | None = None,
) -> Float[torch.Tensor, "batch length d_model"]:
    """Look up each token's row and add the row of its position.

    Args:
        input_ids: in [0, vocab).
        token_table: one row per token, dimensionless.
        position_table: one row per position, dimensionless.
        position_ids: in [0, positions); None counts from 0.

    Returns:
        The sum of two rows per token.

    Raises:
        TypeError: for ids that are not integers.
        ValueError: for an id or a position without a row; it names the number and its place.

    Clauses:
        EMB-1, EMB-2, EMB-3, EMB-4

    Source:
        Radford et al. 2018, equation 2 (GPT-2 keeps it)
    """
    if position_ids is None:
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    _check_rows("input_ids", input_ids, "vocab", token_table.shape[0])
    _check_rows("position_ids", position_ids, "positions", position_table.shape[0])
    return token_table[input_ids] + position_table[position_ids]


def _check_rows(name: str, ids: torch.Tensor, axis: str, rows: int) -> None:
    """Refuse an index without a row: a negative one would count from the end."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {ids.dtype}")
    outside = (ids < 0) | (ids >= rows)
    if outside.any():
        place = outside.nonzero()[0].tolist()
        raise ValueError(f"{name}{place} must lie in [0, {axis}) = [0, {rows}), got {ids[*place]}")
