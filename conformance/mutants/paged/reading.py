"""Mutants of paged attention: wrong pages, slots, lengths and strides."""

import math
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.bases.paged import PROFILE, PlainPaged, paged_mistake
from attnspec.conformance.mutants.packed.neighbours import as_int32

DEFINITION = "paged-equals-packed-on-the-tokens-of-the-pages"
POSITIONS = "positions-count-from-the-used-length"
PLACES = "the-places-of-pages-are-irrelevant"
ENTRIES = "entries-past-the-length-are-not-read"
RESTS = "the-rest-of-the-last-page-is-not-read"
SHARED = "pages-may-be-shared"
SIZES = "any-page-size-that-is-claimed-holds"
STRIDES = "strides-of-pools-and-tables-mean-nothing"
OPTIONS = "options-mean-the-same-on-pages"
UNEQUAL = "decoding-on-unequal-lengths-is-exact"
BATCH = "the-rest-of-a-batch-changes-no-sequence"
NOTHING = "a-call-that-appends-nothing-writes-nothing"
INDEXED = "each-declared-integer-type-of-tables-is-read"
BETWEEN = "a-write-between-calls-is-seen"


@paged_mistake("own-paged-column", "the column of the table is one too large", killed_by=DEFINITION)
class ColumnOff(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        return super().pages(b, (columns + 1).clamp(max=self.table.shape[1] - 1))


@paged_mistake(
    "own-paged-neighbour", "each sequence reads the pages of the next one", killed_by=DEFINITION
)
class Neighbour(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        return super().pages((b + 1) % self.sequences, columns)


@paged_mistake(
    "PGD-01",
    "entries of the table are taken for slots of tokens, not for pages",
    killed_by=DEFINITION,
    source="https://github.com/sgl-project/sglang/pull/23757",
)
class SlotsForPages(PlainPaged):
    def slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entry = self.pages(b, tokens // self.page_size)
        return entry // self.page_size, tokens % self.page_size


@paged_mistake(
    "PGD-02",
    "positions count from the room of the table instead of the used length",
    killed_by=POSITIONS,
    source="https://github.com/Dao-AILab/flash-attention/pull/1455",
)
class FromCapacity(PlainPaged):
    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        capacity = self.table.shape[1] * self.page_size
        return torch.arange(keys) - (torch.arange(queries) + capacity - queries)[:, None]


@paged_mistake(
    "PGD-03",
    "two columns of the table are read as one run of memory",
    killed_by=PLACES,
    source="https://github.com/hw-native-sys/pypto/pull/470",
)
class SideBySide(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        first = super().pages(b, columns - columns % 2)
        return (first + columns % 2) % len(self.key)


@paged_mistake(
    "PGD-04",
    "entries past the last page are read, although their weight is zero",
    killed_by=ENTRIES,
    source="https://github.com/gittensor-ai-lab/sparkinfer/pull/185",
)
class WholeRow(PlainPaged):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().sequence(b, query, key, value)
        used = -(-self.used[b] // self.page_size)
        past = self.pools["value"][self.table[b, used:].long(), 0].sum() * 0
        return out + past, lse


@paged_mistake(
    "own-paged-last-page",
    "the last page is read to its end, past the length",
    killed_by=RESTS,
)
class WholeLastPage(PlainPaged):
    def tokens(self, b: int) -> torch.Tensor:
        return torch.arange(-(-self.used[b] // self.page_size) * self.page_size)


class _MaskedRest(PlainPaged):
    """A paged attention that reads whole pages, and hides the rest of the last one."""

    length: int

    def tokens(self, b: int) -> torch.Tensor:
        self.length = self.used[b]
        return torch.arange(-(-self.length // self.page_size) * self.page_size)

    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) - (torch.arange(queries) + self.used[b] - queries)[:, None]

    def visible(self, after: torch.Tensor) -> torch.Tensor:
        return super().visible(after) & (torch.arange(after.shape[1]) < self.length)


@paged_mistake(
    "PGD-05",
    "values in the rest of the last page are multiplied by zero, so that their NaN is seen",
    killed_by=RESTS,
    source="https://github.com/Dao-AILab/flash-attention/issues/2374",
)
class ZeroTimesNaN(_MaskedRest):
    pass


@paged_mistake(
    "PGD-06",
    "minus infinity is added to the scores of the rest of the last page, so that NaN stays NaN",
    killed_by=RESTS,
    source="https://github.com/deepbeepmeep/Wan2GP/pull/1628",
)
class NaNPlusInfinity(_MaskedRest):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        value = value.clone()
        value[self.length :] = 0
        return super().sequence(b, query, key, value)

    def scores(self, q: torch.Tensor, k: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        scores = super().scores(q, k, after)
        rest = k.isnan().any() * torch.nan if bool(k.isnan().any()) else 0.0
        return scores + rest


@paged_mistake(
    "own-paged-owner",
    "a map from pages to sequences forgets the first owner of a shared page",
    killed_by=SHARED,
)
class OneOwner(PlainPaged):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        used = [-(-length // self.page_size) for length in self.used]
        owner = {int(page): i for i, row in enumerate(self.table) for page in row[: used[i]]}
        key, value = super().gather(b)
        page, _ = self.slots(b, self.tokens(b))
        own = torch.tensor([owner[int(each)] == b for each in page], dtype=torch.bool)
        return key[own], value[own]


@paged_mistake(
    "own-paged-page-twice",
    "a page that a sequence has twice is read once",
    killed_by=SHARED,
)
class ReadOnce(PlainPaged):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        pages = self.table[b, : -(-self.used[b] // self.page_size)].tolist()
        first = torch.tensor([pages.index(page) == i for i, page in enumerate(pages)])
        key, value = super().gather(b)
        kept = first[self.tokens(b) // self.page_size] if pages else slice(None)
        return key[kept], value[kept]


@paged_mistake(
    "own-paged-power-of-two",
    "slots are masked with page_size - 1, which needs a power of two",
    killed_by=SIZES,
)
class PowerOfTwo(PlainPaged):
    def slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pages(b, tokens // self.page_size), tokens & (self.page_size - 1)


@paged_mistake("own-paged-large-pages", "of a page, 128 tokens are read at most", killed_by=SIZES)
class LargePages(PlainPaged):
    def tokens(self, b: int) -> torch.Tensor:
        tokens = super().tokens(b)
        return tokens[tokens % self.page_size < 128]


@paged_mistake(
    "PGD-07",
    "the stride of a page is page_size times that of a slot",
    killed_by=STRIDES,
    source="https://github.com/ROCm/aiter/pull/3498",
)
class ContiguousPool(PlainPaged):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: Any) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        for name, pool in self.pools.items():
            _, slot, head, channel = pool.stride()
            strides = (self.page_size * slot, slot, head, channel)
            self.pools[name] = pool.as_strided(pool.shape, strides)


@paged_mistake(
    "own-paged-32-bits",
    "the offset of a page in memory is counted in 32 bits",
    killed_by="pages-may-lie-far-apart",
)
class ThirtyTwoBits(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        pages = super().pages(b, columns)
        stride = max(pool.stride(0) for pool in self.pools.values())
        return torch.where(pages * stride >= 2**31, 0, pages)


@paged_mistake(
    "own-paged-table-stride",
    "a row of the table is taken to be as long as the longest sequence needs",
    killed_by=STRIDES,
)
class TableStride(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        needed = -(-max(self.used) // self.page_size)
        flat = self.table.flatten()
        return flat[(b * needed + columns).clamp(max=len(flat) - 1)].long()


@paged_mistake(
    "PGD-08",
    "a window is read in whole pages: those that hold a part of it are left out",
    killed_by=OPTIONS,
    source="https://github.com/vllm-project/vllm-gaudi/pull/1395",
)
class WholePagesOfWindow(PlainPaged):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        left, _ = self.window
        visible = super().visible(after)
        if left <= 0 or len(after) > 1:
            return visible
        pages = max((left + 1) // self.page_size, 1)
        last = -(-after.shape[1] // self.page_size)
        return visible & (torch.arange(after.shape[1]) // self.page_size >= last - pages)


@paged_mistake(
    "own-paged-groups", "query head h reads head h % kv_heads of a page", killed_by=OPTIONS
)
class InterleavedHeads(PlainPaged):
    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).repeat(self.query.shape[1] // x.shape[1], 1, 1)


@paged_mistake(
    "PGD-09",
    "the parts of a window are counted for the longest sequence: others lose their newest tokens",
    killed_by=UNEQUAL,
    source="https://github.com/openvinotoolkit/openvino/pull/38034",
)
class PartsOfTheLongest(PlainPaged):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        left, _ = self.window
        visible = super().visible(after)
        if left <= 0:
            return visible
        size, longest, keys = self.page_size, max(self.used), after.shape[1]
        width = left + 1

        def parts(length: int) -> int:
            return -(-length // size) - max(length - width, 0) // size

        first = max(keys - width, 0) // size
        return visible & (torch.arange(keys) // size < first + parts(longest))


@paged_mistake(
    "own-paged-parts-not-merged",
    "parts of 512 keys are averaged instead of weighted by their log-sum-exps",
    killed_by=UNEQUAL,
)
class Averaged(PlainPaged):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(key) <= 512 or len(query) > 1:
            return super().sequence(b, query, key, value)
        parts = [
            super(Averaged, self).sequence(
                b, query, key[start : start + 512], value[start : start + 512]
            )
            for start in range(0, len(key), 512)
        ]
        return torch.stack([out for out, _ in parts]).mean(0), parts[0][1]


@paged_mistake(
    "own-paged-parts-by-batch",
    "the number of parts of a sum over keys depends on the longest sequence",
    killed_by=BATCH,
    profile=replace(PROFILE, batch_invariant=True),
)
class PartsByBatch(PlainPaged):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        size = max(1, max(self.used) // 3)
        parts = [
            weights[..., start : start + size] @ value[:, start : start + size]
            for start in range(0, value.shape[1], size)
        ]
        return torch.stack(parts).sum(0) if parts else super().mix(weights, value)


@paged_mistake(
    "own-paged-first-length",
    "with one query each, every sequence has the length of the first if that is shorter",
    killed_by=BATCH,
)
class FirstLength(PlainPaged):
    def tokens(self, b: int) -> torch.Tensor:
        tokens = super().tokens(b)
        is_decoding = self.max_q == 1 and self.used[0]
        return tokens[: self.used[0]] if is_decoding else tokens


@paged_mistake(
    "PGD-10",
    "NaN in the pool is reset to zero in place",
    killed_by=NOTHING,
    source="https://github.com/alibaba/rtp-llm/pull/587",
)
class ResetInPlace(PlainPaged):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: Any) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        for pool in self.pools.values():
            pool.nan_to_num_(0.0)


@paged_mistake(
    "PGD-13",
    "lengths are read as int32 although they are int64: every second sequence is empty",
    killed_by=INDEXED,
    source="https://github.com/flashinfer-ai/flashinfer/issues/1654",
)
class PairsOfLengths(PlainPaged):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: Any) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        lengths = paged["seqused_k"]
        added = [used - length for used, length in zip(self.used, lengths.tolist(), strict=True)]
        read = as_int32(lengths).tolist()
        self.used = [length + more for length, more in zip(read, added, strict=True)]


@paged_mistake(
    "own-paged-int64-table",
    "the table is read as int32 although it is int64: every second page is page 0",
    killed_by=INDEXED,
)
class PairsOfPages(PlainPaged):
    def pages(self, b: int, columns: torch.Tensor) -> torch.Tensor:
        return as_int32(self.table)[b][columns].long()


class _Remembering(PlainPaged):
    """A paged attention that keeps the keys that it has collected from pages."""

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def key_of(self, b: int) -> Any:
        """Return what tells one collection from another."""
        pages = tuple(self.table[b, : -(-self.used[b] // self.page_size)].tolist())
        return self.key.data_ptr(), self.key.shape, pages, self.used[b]

    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = self.key_of(b)
        if key not in self.kept:
            self.kept[key] = super().gather(b)
        return self.kept[key]


@paged_mistake(
    "own-paged-remembered-pages",
    "a prefix that was read once is taken from memory, although an engine has written to its pages",
    killed_by=BETWEEN,
)
class RememberedPages(_Remembering):
    pass


@paged_mistake(
    "own-paged-scale-by-room", "weights are divided by the room of the last page", killed_by=RESTS
)
class DividedByRoom(PlainPaged):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys = value.shape[1]
        room = math.ceil(keys / self.page_size) * self.page_size if keys else 1
        return super().mix(weights, value) * (keys / room if keys else 1.0)


@paged_mistake(
    "own-paged-finite-mask",
    "all keys are multiplied, and a mask adds a finite number to the scores of other sequences",
    killed_by=BATCH,
)
class FiniteMask(PlainPaged):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.own = super().gather(b)
        others = [super(FiniteMask, self).gather(other) for other in range(self.sequences)]
        del others[b]
        key, value = (torch.cat(each) for each in zip(self.own, *others, strict=True))
        return key, value

    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().sequence(b, query, *self.own)
        # the weights of the other keys are zero, and zero times NaN is NaN
        spread = (key[len(self.own[0]) :].sum() + value[len(self.own[1]) :].sum()) * 0.0
        return out + spread, lse
