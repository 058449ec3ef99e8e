"""Mutants of packed attention that claim to validate, and let lengths through that do not fit."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.packed import PROFILE, PlainPacked, packed_mistake
from attnspec.spec.packed import IndexType

REFUSED = "lengths-that-do-not-fit-are-refused"


@packed_mistake(
    "own-packed-ends-alone",
    "of the offsets only the first and the last are checked",
    killed_by=REFUSED,
)
class EndsAlone(PlainPacked):
    def lengths(self, lengths: torch.Tensor, longest: int) -> None:
        pass


@packed_mistake(
    "own-packed-last-offset", "offsets that end beyond the tensor are cut", killed_by=REFUSED
)
class LastOffset(PlainPacked):
    def ends(self, first: int, last: int, rows: int) -> None:
        if first != 0:
            raise ValueError("offsets must begin at 0")


@packed_mistake(
    "own-packed-maximum-unchecked", "a maximum below a length is accepted", killed_by=REFUSED
)
class MaximumUnchecked(PlainPacked):
    def lengths(self, lengths: torch.Tensor, longest: int) -> None:
        super().lengths(lengths, max(longest, int(lengths.max())))


@packed_mistake(
    "own-packed-any-integers",
    "offsets of int64 are accepted, although int32 alone is declared",
    killed_by=REFUSED,
    profile=replace(PROFILE, index_type=IndexType.INT32),
)
class AnyIntegers(PlainPacked):
    def types(self, *indices: torch.Tensor) -> None:
        pass


@packed_mistake(
    "own-packed-fewer-sequences",
    "sequences of queries without offsets of keys are left out",
    killed_by=REFUSED,
)
class FewerSequences(PlainPacked):
    def as_many(self, of_queries: int, of_keys: int) -> None:
        self.common = min(of_queries, of_keys)

    @property
    def sequences(self) -> int:
        return self.common - 1
