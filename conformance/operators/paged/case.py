"""Cases of paged attention: pages, their places in the pool, and the table."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.attention.values import contents
from attnspec.conformance.operators.packed.case import (
    GARBAGE,
    PackedCase,
    case_values,
    normal,
    offsets,
)
from attnspec.conformance.operators.paged.call import PagedCall
from attnspec.spec import MaskedNonfinite
from attnspec.spec.packed import PackedProfile
from attnspec.spec.paged import PagedProfile


class Places(StrEnum):
    """The places of the pages of a sequence."""

    ORDERED = "ordered"
    """One after the other, sequence after sequence."""
    SHUFFLED = "shuffled"
    """Anywhere in the pool."""
    SHARED = "shared"
    """As shuffled; the full pages that a sequence has in common with the first one are its."""
    TWICE = "twice"
    """As shuffled; the first page of each sequence is its second page, too, if both are full."""


class Past(StrEnum):
    """The entries of the table past the last page of a sequence."""

    MINUS_ONE = "minus_one"
    POISONED = "poisoned"
    """A page that belongs to no sequence, full of NaN."""


@dataclass(frozen=True, kw_only=True)
class PagedCase(PackedCase):
    """One call of a paged attention; `keys` counts those after the call.

    Attributes:
        page_size: tokens of a page.
        places: the places of the pages.
        past: the entries of the table past the last page of a sequence.
        columns: columns of the table beyond those that the longest sequence needs.
        append: whether the call writes the keys and values of its queries.
    """

    page_size: int = 4
    places: Places = Places.SHUFFLED
    past: Past = Past.MINUS_ONE
    columns: int = 1
    append: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.append and any(n > m for n, m in zip(self.queries, self.keys, strict=True)):
            raise ValueError("a call that appends has at least as many keys as queries")

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        return super().features | ({"append"} if self.append else set())

    def draw(self, profile: PackedProfile) -> PagedCall:
        """Return the call: slots that belong to no token hold NaN, or large numbers."""
        assert isinstance(profile, PagedProfile)
        sequences, index = range(len(self.queries)), self.index_dtype(profile)
        drawn = [contents(self.of_sequence(b)) for b in sequences]
        query, key, value = (
            [each[i][0].transpose(0, 1).to(self.dtype) for each in drawn] for i in range(3)
        )
        table, pages = self._tables(key, value)
        blocked = profile.neighbours is MaskedNonfinite.BLOCKED
        pools = [self._pool(i, pages, blocked) for i in range(2)]
        rest_is_blocked = profile.unwritten is MaskedNonfinite.BLOCKED
        new: list[list[torch.Tensor]] = [[], []]
        for b in sequences:
            appended = self.queries[b] if self.append else 0
            for pool, tokens, appends in zip(pools, (key[b], value[b]), new, strict=True):
                appends.append(tokens[len(tokens) - appended :])
                self._write(pool, table[b], tokens, appended, rest_is_blocked)
        outside = normal(self.seed, "outside 0", self.outside, self.heads, self.d_head)
        slopes = 2.0 ** -(1 + torch.arange(self.heads, dtype=torch.float64) / 2)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        used = [m - (n if self.append else 0) for n, m in zip(self.queries, self.keys, strict=True)]
        call = PagedCall(
            query=torch.cat([*query, outside.to(self.dtype)]),
            key=pools[0],
            value=pools[1],
            cu_seq_q=offsets(self.queries, index),
            cu_seq_k=offsets(self.keys, index),
            max_q=max(self.queries) + self.slack,
            max_k=max(self.keys) + self.slack,
            window_size=self.window,
            scale=self.scale,
            softcap=self.softcap,
            sinks=normal(self.seed, "sinks", self.heads).to(self.dtype) if self.sinks else None,
            alibi_slopes=slopes.to(wide) if self.alibi else None,
            lse=self.lse,
            seqused_k=torch.tensor(used, dtype=index),
            block_table=table.to(index),
            new_key=torch.cat(new[0]) if self.append else None,
            new_value=torch.cat(new[1]) if self.append else None,
        )
        return call.strided() if self.strided else call

    def _tables(
        self, key: list[torch.Tensor], value: list[torch.Tensor]
    ) -> tuple[torch.Tensor, int]:
        """Return the table and the number of pages; keys that share a page become equal."""
        size, counts = self.page_size, [-(-m // self.page_size) for m in self.keys]
        pages = sum(counts) + 2  # two belong to no sequence
        order = torch.arange(pages)
        if self.places is not Places.ORDERED:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(pages, generator=generator)
        past = -1 if self.past is Past.MINUS_ONE else int(order[-1])
        columns = max(max(counts) + self.columns, 1)
        table = torch.full((len(counts), columns), past, dtype=torch.int32)
        taken = 0
        for b, count in enumerate(counts):
            table[b, :count] = order[taken : taken + count]
            taken += count
            full = (self.keys[b] - (self.queries[b] if self.append else 0)) // size
            if self.places is Places.SHARED and b > 0:
                first = self.keys[0] - (self.queries[0] if self.append else 0)
                shared = min(full, first // size)
                table[b, :shared] = table[0, :shared]
                for each in (key, value):
                    each[b][: shared * size] = each[0][: shared * size]
            if self.places is Places.TWICE and full >= 2:
                table[b, 1] = table[b, 0]
                for each in (key, value):
                    each[b][size : 2 * size] = each[b][:size]
        return table, pages

    def _pool(self, which: int, pages: int, blocked: bool) -> torch.Tensor:
        shape = (pages, self.page_size, self.kv_heads, self.d_head)
        if blocked:
            return torch.full(shape, torch.nan, dtype=self.dtype)
        return (GARBAGE * normal(self.seed, f"pool {which}", *shape)).to(self.dtype)

    def _write(
        self,
        pool: torch.Tensor,
        table: torch.Tensor,
        tokens: torch.Tensor,
        appended: int,
        blocked: bool,
    ) -> None:
        """Write the tokens before the call to their slots, and the rest of their last page."""
        before = len(tokens) - appended
        places = torch.arange(before)
        pool[table[places // self.page_size].long(), places % self.page_size] = tokens[:before]
        last = -(-len(tokens) // self.page_size) * self.page_size
        rest = torch.arange(before, last)
        page = table[rest // self.page_size].long()
        shape = (len(rest), *tokens.shape[1:])
        filler = torch.full(shape, torch.nan)
        if not blocked:
            filler = GARBAGE * normal(self.seed, "rest", *shape)
        pool[page, rest % self.page_size] = filler.to(pool.dtype)


PAGE_SIZES = (1, 2, 3, 4, 7, 16, 24)


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[PagedCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    sizes = subject.implementation.page_sizes or PAGE_SIZES

    @st.composite
    def draw(draw: Any) -> PagedCase:
        values = case_values(draw, subject)
        if fixed.get("append", False) or (
            "append" in subject.implementation.features and draw(st.integers(0, 3)) == 3
        ):
            pairs = zip(values["queries"], values["keys"], strict=True)
            values["keys"] = tuple(max(n, m) for n, m in pairs)
            values["append"] = fixed.get("append", True)
        values |= {
            "page_size": draw(st.sampled_from(sizes)),
            "places": draw(st.sampled_from(Places)),
            "past": draw(st.sampled_from(Past)),
            "columns": draw(st.sampled_from([0, 1, 5])),
        }
        return PagedCase(**(values | fixed))

    return draw().filter(lambda case: subject.refuses(case) is None)
