"""Masks of cases with padding at the end of a row, before its text, or anywhere."""

import torch
from jaxtyping import Int

from attnspec.reference.padding import token_positions
from attnspec.spec.padding import PaddedPositions

SIDES = ("right", "left", "anywhere")
"""The places of padding in a row."""


def draw_mask(
    lengths: list[int], longest: int, side: str, seed: int
) -> Int[torch.Tensor, "batch length"]:
    """Return 1 for real tokens and 0 for padding.

    Args:
        lengths: real tokens of each row; at least one.
        longest: tokens of each row, with padding.
        side: `right`, `left` or `anywhere`.
        seed: selects the slots of padding that is anywhere.
    """
    if side == "anywhere":
        draws = torch.Generator().manual_seed(seed)
        # ranks are a random order of the slots
        slots = torch.stack([torch.randperm(longest, generator=draws) for _ in lengths])
    else:
        slots = torch.arange(longest)
    if side == "left":
        slots = slots.flip(0)
    return (slots < torch.tensor(lengths)[:, None]).long()


def without_padding(
    ids: Int[torch.Tensor, "batch length"],
    mask: Int[torch.Tensor, "batch length"],
    row: int,
    rule: PaddedPositions,
) -> tuple[Int[torch.Tensor, " real"], Int[torch.Tensor, "1 real"], Int[torch.Tensor, " real"]]:
    """Return the slots of the real tokens of a row, their ids as a text, and their positions."""
    slots = mask[row].nonzero()[:, 0]
    return slots, ids[row, slots][None], token_positions(mask, rule)[row, slots]
