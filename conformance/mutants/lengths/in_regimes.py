"""Mutants of LEN that are wrong in one class of calls alone."""

import torch

from attnspec.conformance.mutants.bases.lengths import Ragged, lengths_wrong_at
from attnspec.conformance.mutants.lengths.lengths import (
    GradientNotWritten,
    OffsetOfTheFirst,
    WholeBuffer,
)


class LastVectorUnread(Ragged):
    """Reads 16 keys fewer if these would fill the last vector of a batch element."""

    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        is_full = (lengths > 0) & (lengths % 16 == 0)
        return super().within(torch.where(is_full, lengths - 16, lengths), keys)


lengths_wrong_at(
    "own-lengths-ignored-where-eight-heads-decode",
    "lengths are ignored if 8 heads share over 1 000 keys",
    WholeBuffer,
    ("group", "8"),
    ("keys", "over 1000"),
)
lengths_wrong_at(
    "own-lengths-lose-a-full-vector-in-large-batches",
    "the last 16 keys of a multiple of 16 are not read in batches of over 16",
    LastVectorUnread,
    ("batch", "over 16"),
)
lengths_wrong_at(
    "own-lengths-offset-of-the-first-in-long-caches",
    "the offset of the first batch element is used for all if there are over 1 000 keys",
    OffsetOfTheFirst,
    ("query_offset", "yes"),
    ("keys", "over 1000"),
)
lengths_wrong_at(
    "own-lengths-gradient-not-written-in-long-contexts",
    "the gradient of keys beyond the length is never written if there are over 1 000 keys",
    GradientNotWritten,
    ("keys", "over 1000"),
    ("mode", "backward"),
)
