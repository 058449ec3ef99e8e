"""Mutants of packed attention: wrong keys, diagonals, windows, heads and options of a sequence."""

import math

import torch

from attnspec.conformance.mutants.bases.packed import PlainPacked, packed_mistake
from attnspec.spec.packed import UNBOUNDED

DEFINITION = "packed-equals-a-call-for-each-sequence"
DIAGONAL = "the-diagonal-of-each-sequence-ends-at-its-last-key"
WINDOWS = "windows-count-within-each-sequence"
HEADS = "packed-heads-share-keys-in-runs"
OPTIONS = "packed-options-apply-within-each-sequence"
SUMS = "packed-log-sum-exp-is-that-of-each-sequence"
TILES = "lengths-around-tiles-are-exact"
HUNYUAN = "https://github.com/Tencent-Hunyuan/HunyuanVideo/pull/310"


@packed_mistake(
    "PKD-01",
    "offsets are ignored: all tokens are one sequence",
    killed_by=DEFINITION,
    source=HUNYUAN,
)
class OneSequence(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        self.offsets, self.key_offsets = (
            self.offsets[:: len(self.offsets) - 1],
            [
                self.key_offsets[0],
                self.key_offsets[-1],
            ],
        )


@packed_mistake(
    "PKD-02",
    "only the first offset splits: all later sequences are one",
    killed_by=DEFINITION,
    source=HUNYUAN,
)
class TwoSequences(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        self.offsets = sorted({0, self.offsets[1], self.offsets[-1]})
        self.key_offsets = [0, self.key_offsets[1], self.key_offsets[-1]][: len(self.offsets)]


@packed_mistake(
    "own-packed-next-keys",
    "each sequence reads the keys of the next one",
    killed_by=DEFINITION,
)
class NextKeys(PlainPacked):
    def key_rows(self, b: int) -> slice:
        return super().key_rows((b + 1) % self.sequences)


@packed_mistake(
    "own-packed-query-offsets",
    "the offsets of the queries place the keys",
    killed_by=DEFINITION,
)
class QueryOffsets(PlainPacked):
    def key_rows(self, b: int) -> slice:
        return self.rows(b)


@packed_mistake(
    "own-packed-one-key-more", "each sequence reads one key too many", killed_by=DEFINITION
)
class OneKeyMore(PlainPacked):
    def key_rows(self, b: int) -> slice:
        keys = super().key_rows(b)
        return slice(keys.start, min(keys.stop + 1, self.key_offsets[-1]))


@packed_mistake(
    "own-packed-maximum-carried",
    "the largest score of a sequence is kept for the next one without rescaling",
    killed_by=DEFINITION,
)
class MaximumCarried(PlainPacked):
    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.largest = -math.inf
        return super().attend()

    def softmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, lse = super().softmax(scores)
        finite = scores[scores.isfinite()]
        before, self.largest = self.largest, float(finite.max()) if finite.numel() else -math.inf
        return weights * (0.5 if self.largest < before else 1.0), lse


@packed_mistake("own-packed-upper-left", "the diagonal is aligned upper-left", killed_by=DIAGONAL)
class UpperLeft(PlainPacked):
    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) - torch.arange(queries)[:, None]


@packed_mistake(
    "PKD-03",
    "the diagonal ends at max_k, the longest sequence, instead of the sequence's own last key",
    killed_by=DIAGONAL,
    source="https://github.com/vllm-project/flash-attention/pull/18",
)
class FromLongest(PlainPacked):
    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) - (torch.arange(queries) + self.max_k - queries)[:, None]


@packed_mistake(
    "own-packed-strictly-causal", "a query does not read its own position", killed_by=DIAGONAL
)
class Strict(PlainPacked):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        visible = super().visible(after)
        return visible & (after < 0) if self.window == (UNBOUNDED, 0) else visible


@packed_mistake(
    "PKD-04",
    "the window holds one key more on the left",
    killed_by=WINDOWS,
    source="https://github.com/huggingface/transformers/issues/39408",
)
class WiderWindow(PlainPacked):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        left, right = self.window
        self.window = (left + 1 if left != UNBOUNDED else left, right)
        visible = super().visible(after)
        self.window = (left, right)
        return visible


@packed_mistake(
    "own-packed-left-zero", "a window of zero to the left is taken for none", killed_by=WINDOWS
)
class ZeroIsUnbounded(PlainPacked):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        left, right = self.window
        self.window = (left or UNBOUNDED, right)
        visible = super().visible(after)
        self.window = (left, right)
        return visible


@packed_mistake(
    "own-packed-window-causal",
    "a window with a right side is causal all the same",
    killed_by=WINDOWS,
)
class AlwaysCausal(PlainPacked):
    def visible(self, after: torch.Tensor) -> torch.Tensor:
        visible = super().visible(after)
        return visible if self.window[0] == UNBOUNDED else visible & (after <= 0)


@packed_mistake("own-packed-interleaved", "query head h reads head h % kv_heads", killed_by=HEADS)
class Interleaved(PlainPacked):
    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).repeat(self.query.shape[1] // x.shape[1], 1, 1)


@packed_mistake(
    "PKD-05",
    "groups of seven heads: the eighth row of a tile reads the next key/value head",
    killed_by=HEADS,
    source="https://github.com/apache/tvm/pull/17466",
)
class SevenInATileOfEight(PlainPacked):
    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        heads, kv_heads = self.query.shape[1], x.shape[1]
        if heads // kv_heads != 7:
            return super().repeat(x)
        return x.transpose(0, 1)[torch.arange(heads) // 8]


@packed_mistake(
    "own-packed-alibi-whole-pack",
    "slopes count from the first key of the pack",
    killed_by=OPTIONS,
)
class SlopesOfThePack(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.start = self.key_offsets[b] - self.offsets[b]
        return super().sequence(b, query, key, value)

    def scores(self, q: torch.Tensor, k: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return super().scores(q, k, after + self.start if self.slopes is not None else after)


@packed_mistake("own-packed-first-sink", "only the first sequence has its sinks", killed_by=OPTIONS)
class FirstSink(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.sinks = self.sinks if b == 0 else None
        return super().sequence(b, query, key, value)


@packed_mistake("own-packed-softcap-dropped", "softcap is ignored in a pack", killed_by=OPTIONS)
class NoSoftcap(PlainPacked):
    def scores(self, q: torch.Tensor, k: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        self.softcap = None
        return super().scores(q, k, after)


@packed_mistake("own-packed-lse-base-two", "the log-sum-exp is to base two", killed_by=SUMS)
class BaseTwo(PlainPacked):
    def softmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, lse = super().softmax(scores)
        return weights, lse / math.log(2)


@packed_mistake(
    "own-packed-lse-without-scale", "the log-sum-exp is of scores without scale", killed_by=SUMS
)
class UnscaledSum(PlainPacked):
    def softmax(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, _ = super().softmax(scores)
        return weights, super().softmax(scores / self.scale)[1]


@packed_mistake(
    "own-packed-tile-of-its-first-row",
    "a tile of 16 queries reads the keys of its first row's sequence",
    killed_by=TILES,
)
class SequenceOfTheTile(PlainPacked):
    TILE = 16

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().attend()
        for b in range(1, self.sequences):
            rows = self.rows(b)
            start = rows.start - rows.start % self.TILE
            # a kernel that begins a sequence at a tile of its own has no such rows
            if start in self.offsets or rows.start < self.TILE:
                continue
            owner = max(i for i in range(self.sequences) if self.offsets[i] <= start)
            shared = slice(rows.start, min(rows.stop, start + self.TILE))
            key, value = self.gather(owner)
            out[shared], lse[:, shared] = self.sequence(owner, self.query[shared], key, value)
        return out, lse


@packed_mistake(
    "own-packed-mean-length",
    "tiles are planned by the mean length: keys far beyond it are not read",
    killed_by=TILES,
)
class MeanLength(PlainPacked):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = super().gather(b)
        planned = 64 * math.ceil(self.key_offsets[-1] / self.sequences / 64)
        most = max(planned, 128)
        return key[-most:], value[-most:]
