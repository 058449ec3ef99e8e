"""A correct paged attention whose steps mutants replace."""

from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.bases.packed import PlainPacked
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.paged.regimes import AXES, call_of
from attnspec.spec.packed import OutsideRows
from attnspec.spec.paged import PAGED_FEATURES, PagedImplementation, PagedProfile
from attnspec.spec.profiles import RoundingLevel

PROFILE = PagedProfile(outside_rows=OutsideRows.ZERO, rounding=RoundingLevel.EAGER)


class PlainPaged(PlainPacked):
    """A paged attention in torch's own operations, one sequence after the other."""

    table: torch.Tensor
    used: list[int]

    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: Any) -> None:
        """Read the offsets, the lengths and the table, and write the new tokens."""
        assert cu_seq_k is None
        self.types(cu_seq_q, paged["seqused_k"], paged["block_table"])
        self.offsets, self.used = cu_seq_q.tolist(), paged["seqused_k"].tolist()
        self.table, self.page_size = paged["block_table"], self.key.shape[1]
        self.pools = {"key": self.key, "value": self.value}
        new_key, new_value = paged.get("new_key"), paged.get("new_value")
        self.fits(cu_seq_q, len(self.query), self.max_q)
        self.as_many(self.sequences, len(self.table))
        self.as_many(self.sequences, len(self.used))
        added = cu_seq_q.diff() * (0 if new_key is None else 1)
        for b, length in enumerate(self.used):
            self.room(b, length, length + int(added[b]))
        if new_key is not None and new_value is not None:
            for b in range(self.sequences):
                self.append(b, new_key[self.rows(b)], new_value[self.rows(b)])

    def room(self, b: int, before: int, after: int) -> None:
        """Refuse a length that does not fit, and entries of the table beyond the pool."""
        if before < 0 or after > min(self.max_k, self.table.shape[1] * self.page_size):
            raise ValueError(f"no room for {after} tokens behind {before}")
        entries = self.table[b, : -(-after // self.page_size)]
        self.entries(entries, len(self.pools["key"]))

    def entries(self, entries: torch.Tensor, pages: int) -> None:
        """Refuse pages beyond the pool."""
        if bool(((entries < 0) | (entries >= pages)).any()):
            raise ValueError(f"entries must lie in 0 to {pages - 1}")

    def append(self, b: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the new tokens of a sequence behind its others."""
        tokens = torch.arange(self.used[b], self.used[b] + len(key))
        place = self.append_slots(b, tokens)
        self.pools["key"][place], self.pools["value"][place] = key, value
        self.used[b] += len(key)

    def append_slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the page and the slot to which new tokens are written."""
        return self.slots(b, tokens)

    def slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the page and the slot of some tokens."""
        return self.pages(b, tokens // self.page_size), tokens % self.page_size

    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        """Return entries of the table."""
        return self.table[b][columns].long()

    def tokens(self, b: int) -> torch.Tensor:
        """Return the tokens of a sequence that are read."""
        return torch.arange(self.used[b])

    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a sequence, (keys, kv_heads, d_head)."""
        place = self.slots(b, self.tokens(b))
        return self.pools["key"][place], self.pools["value"][place]


def correct(
    name: str = "correct",
    base: type[PlainPaged] = PlainPaged,
    profile: PagedProfile = PROFILE,
) -> PagedImplementation:
    """Return the declaration of a paged attention."""
    function = base()
    function.lse_layout, function.index_type = profile.lse_layout, profile.index_type
    return PagedImplementation(
        name=name, function=function, features=PAGED_FEATURES, profile=profile
    )


def paged_wrong_at(identifier: str, title: str, *regimes: tuple[str, str]) -> None:
    """Plant an attention that is wrong where all of some regimes hold."""
    subject = correct(identifier)
    function = wrong_at(subject.function, call_of, AXES, *regimes)
    plant(
        id=identifier,
        title=title,
        subject=replace(subject, function=function),
        killed_by="paged-attention-is-right-in-every-two-regimes",
    )


def paged_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    profile: PagedProfile = PROFILE,
    source: str = "",
) -> Any:
    """Plant a class as a mutant."""

    def register(base: type[PlainPaged]) -> type[PlainPaged]:
        subject = correct(identifier, base, profile)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
