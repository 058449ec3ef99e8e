"""Mutants of paged attention: new tokens in wrong slots, and engines that mix sequences."""

import torch

from attnspec.conformance.mutants.bases.paged import PlainPaged, paged_mistake

SLOTS = "appending-writes-exactly-its-slots"
ATTENDED = "appended-tokens-are-attended"
ENGINE = "an-engine-serves-every-sequence-as-if-it-were-alone"


@paged_mistake(
    "PGD-11",
    "new tokens are written one slot too far",
    killed_by=SLOTS,
    source="https://github.com/microsoft/onnxruntime-genai/pull/2354",
)
class OneSlotTooFar(PlainPaged):
    def append_slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = self.table.shape[1] * self.page_size - 1
        return self.slots(b, (tokens + 1).clamp(max=last))


@paged_mistake(
    "PGD-12",
    "new tokens past the border of a page go to the next page of the pool, not of the table",
    killed_by=SLOTS,
    source="https://github.com/gittensor-ai-lab/sparkinfer/issues/41",
)
class NextOfThePool(PlainPaged):
    def append_slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not len(tokens):
            return self.slots(b, tokens)
        first = tokens[0] // self.page_size
        step = tokens // self.page_size - first
        page = (self.pages(b, first.expand(len(tokens))) + step) % len(self.key)
        return page, tokens % self.page_size


@paged_mistake(
    "own-paged-append-first-row",
    "new tokens of every sequence go to the pages of the first",
    killed_by=SLOTS,
)
class FirstRow(PlainPaged):
    def append_slots(self, b: int, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = self.table.shape[1] * self.page_size - 1
        page, slot = self.slots(0, tokens.clamp(max=last))
        return page.clamp(min=0), slot


@paged_mistake("own-paged-append-zeroes", "appending clears the rest of the page", killed_by=SLOTS)
class ClearsRest(PlainPaged):
    def append(self, b: int, key: torch.Tensor, value: torch.Tensor) -> None:
        super().append(b, key, value)
        if self.used[b] % self.page_size:
            page, slot = self.slots(b, torch.tensor([self.used[b] - 1]))
            self.pools["key"][page, int(slot) + 1 :] = 0


@paged_mistake(
    "own-paged-append-not-read",
    "a call attends to the tokens of before alone",
    killed_by=ATTENDED,
)
class NotRead(PlainPaged):
    def append(self, b: int, key: torch.Tensor, value: torch.Tensor) -> None:
        before = self.used[b]
        super().append(b, key, value)
        self.used[b] = max(before, 1)


@paged_mistake(
    "own-paged-last-key-twice",
    "the newest of several appended tokens is read twice, in place of the one before",
    killed_by=ATTENDED,
)
class NewestTwice(PlainPaged):
    appended = 0

    def append(self, b: int, key: torch.Tensor, value: torch.Tensor) -> None:
        super().append(b, key, value)
        self.appended = max(self.appended, len(key))

    def tokens(self, b: int) -> torch.Tensor:
        tokens = super().tokens(b)
        if self.appended > 1 and len(tokens) > 1:
            tokens[-2] = tokens[-1]
        return tokens


@paged_mistake(
    "own-paged-stale-page",
    "keys are kept by page, so that a page with a new tenant has the keys of the old one",
    killed_by=ENGINE,
)
class StalePages(PlainPaged):
    def __init__(self) -> None:
        self.kept: dict[tuple[int, int, int], torch.Tensor] = {}

    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = super().gather(b)
        full = self.used[b] // self.page_size
        for column, page in enumerate(self.table[b, :full].tolist()):
            place = (self.key.data_ptr(), page, key.shape[1] * key.shape[2])
            rows = slice(column * self.page_size, (column + 1) * self.page_size)
            if place not in self.kept or self.kept[place].dtype != key.dtype:
                self.kept[place] = key[rows].clone()
            key[rows] = self.kept[place]
        return key, value


@paged_mistake(
    "own-paged-longest-so-far",
    "the length of a row of the table never falls",
    killed_by=ENGINE,
)
class LongestSoFar(PlainPaged):
    def __init__(self) -> None:
        self.longest: dict[tuple[int, int], int] = {}

    def tokens(self, b: int) -> torch.Tensor:
        row = (self.key.data_ptr(), b)
        self.longest[row] = max(self.longest.get(row, 0), self.used[b])
        room = int((self.table[b] >= 0).sum()) * self.page_size
        return torch.arange(min(self.longest[row], room))
