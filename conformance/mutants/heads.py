"""Mutants of HED: which key/value head a query head reads, and where its output goes."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense

SPLIT = "split-heads-are-separate-heads"
SHARED = "shared-heads-equal-repeated-heads"
OWN = "a-head-reads-its-own-group"
PERMUTED = "permuting-heads-permutes-the-output"


class _Tiled(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


class _FirstOnly(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        shared = tensor.shape[1] != heads
        return tensor[:, :1].expand(-1, heads, -1, -1) if shared else tensor


class _PowerOfTwo(Dense):
    # Query heads are packed in blocks whose size is the next power of two, across group borders.
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        block = 1 << (heads // tensor.shape[1] - 1).bit_length()
        return tensor[:, torch.arange(heads, device=tensor.device) // block]


class _GroupsBackwards(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        shared = tensor.shape[1] != heads
        return super().share_heads(tensor.flip(1) if shared else tensor, heads)


class _KeysOnly(Dense):
    """Repeat the keys by group and the values by turns."""

    turn = 0

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        self.turn += 1
        if self.turn % 2 == 0:
            return tensor.repeat(1, heads // tensor.shape[1], 1, 1)
        return super().share_heads(tensor, heads)


class _SwappedByGroupCount(Dense):
    # h % group where h // group is meant: the same only where there are as many groups as members.
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        group = heads // tensor.shape[1]
        head = torch.arange(heads, device=tensor.device)
        return tensor[:, (head % group) % tensor.shape[1] if group > 1 else head]


class _MergedWithoutTranspose(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        return super().finish(out.transpose(1, 2).reshape(out.shape), value)


class _IndexInTheWrongOrder(Dense):
    # A flat index of (head, query) taken apart as one of (query, head).
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        batch, heads, queries, keys = scores.shape
        weights = super().softmax(scores, visible)
        return weights.reshape(batch, queries, heads, keys).transpose(1, 2)


class _Backwards(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        return super().finish(out.flip(1), value)


class _FirstScores(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key, scale)[:, :1].expand(-1, query.shape[1], -1, -1).clone()


class _HeadsAsBatchOfOneScale(Dense):
    """Scale head h by its own position, as a table of per-head factors read one head late."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        head = torch.arange(query.shape[1], dtype=query.dtype, device=query.device)
        return super().scores(query, key, scale) / (1 + head)[:, None, None]


plant_dense(
    "GQA-01",
    "key/value heads repeated by turns (0, 1, 0, 1) and not by group (0, 0, 1, 1)",
    _Tiled(),
    SHARED,
    OWN,
    PERMUTED,
    source="https://github.com/onnx/onnx/pull/7274",
)
plant_dense(
    "own-first-kv-head",
    "every query head reads key/value head 0",
    _FirstOnly(),
    SHARED,
    OWN,
    PERMUTED,
)
plant_dense(
    "GQA-06",
    "groups wrong where their size is no power of two",
    _PowerOfTwo(),
    SHARED,
    OWN,
    PERMUTED,
    source="https://github.com/ggml-org/llama.cpp/pull/19115",
)
plant_dense(
    "own-groups-backwards",
    "groups read key/value heads in reverse order",
    _GroupsBackwards(),
    SHARED,
    OWN,
)
plant_dense(
    "own-values-by-turns",
    "keys shared by group, values by turns",
    _KeysOnly(),
    SHARED,
    OWN,
    PERMUTED,
)
plant_dense(
    "own-group-modulo",
    "query head h reads key/value head h % group",
    _SwappedByGroupCount(),
    SHARED,
    OWN,
)
plant_dense(
    "own-merged-without-transpose",
    "heads merged in the wrong order: reshaped without their transposition",
    _MergedWithoutTranspose(),
    SPLIT,
    PERMUTED,
)
plant_dense(
    "own-flat-index",
    "weights stored by (query, head) and read by (head, query)",
    _IndexInTheWrongOrder(),
    SPLIT,
    PERMUTED,
)
plant_dense(
    "own-heads-backwards",
    "outputs of the heads in reverse order",
    _Backwards(),
    SPLIT,
    PERMUTED,
    OWN,
)
plant_dense(
    "own-first-head-scores", "scores of head 0 used for every head", _FirstScores(), SPLIT, PERMUTED
)
plant_dense(
    "own-scale-by-head",
    "scores divided by the number of the head",
    _HeadsAsBatchOfOneScale(),
    SPLIT,
    PERMUTED,
)
