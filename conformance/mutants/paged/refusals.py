"""Mutants of paged attention that claim to validate, and let tables through that do not fit."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.paged import PROFILE, PlainPaged, paged_mistake
from attnspec.spec.packed import IndexType

REFUSED = "tables-that-do-not-fit-are-refused"


@paged_mistake(
    "own-paged-first-entry",
    "only the first entry of a row is compared with the size of the pool",
    killed_by=REFUSED,
)
class FirstEntry(PlainPaged):
    def entries(self, entries: torch.Tensor, pages: int) -> None:
        super().entries(entries[:1], pages)

    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        return super().pages(b, columns).clamp(max=len(self.key) - 1)


@paged_mistake(
    "own-paged-negative-entry", "an entry of -1 is the last page of the pool", killed_by=REFUSED
)
class NegativeEntry(PlainPaged):
    def entries(self, entries: torch.Tensor, pages: int) -> None:
        super().entries(entries.abs(), pages)


@paged_mistake(
    "own-paged-any-integers",
    "lengths and a table of int64 are accepted, although int32 alone is declared",
    killed_by=REFUSED,
    profile=replace(PROFILE, index_type=IndexType.INT32),
)
class AnyIntegers(PlainPaged):
    def types(self, *indices: torch.Tensor) -> None:
        pass


@paged_mistake(
    "own-paged-clipped-length",
    "a length beyond the table is cut to its room",
    killed_by=REFUSED,
)
class ClippedLength(PlainPaged):
    def room(self, b: int, before: int, after: int) -> None:
        most = min(self.max_k, self.table.shape[1] * self.page_size)
        super().room(b, before, min(after, most))

    def tokens(self, b: int) -> torch.Tensor:
        return super().tokens(b)[: self.table.shape[1] * self.page_size]


@paged_mistake(
    "own-paged-writes-before-check",
    "new tokens of the first sequences are written before the last one is checked",
    killed_by=REFUSED,
)
class WritesBefore(PlainPaged):
    def room(self, b: int, before: int, after: int) -> None:
        super().room(b, before, after)
        if after > before:
            slots = self.slots(b, torch.arange(before, after))
            self.pools["key"][slots] = 0.0
