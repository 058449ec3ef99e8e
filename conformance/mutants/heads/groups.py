"""Mutants of HED: a query head reads another key/value head, or writes to another place."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory
from attnspec.spec import Grouping


@mistake(
    "GQA-01",
    "key/value heads repeated by turns (0, 1, 0, 1) and not by group (0, 0, 1, 1)",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/onnx/onnx/pull/7274",
)
class RepeatedByTurns(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


plant_dense(
    "own-consecutive-where-interleaved",
    "key/value heads repeated by group (0, 0, 1, 1) where interleaved is declared",
    Dense(),
    killed_by="a-head-reads-its-own-group",
    grouping=Grouping.INTERLEAVED,
)


@mistake(
    "own-first-kv-head",
    "every query head reads key/value head 0",
    killed_by="shared-heads-equal-repeated-heads",
)
class FirstKeyValueHead(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        shared = tensor.shape[1] != heads
        return tensor[:, :1].expand(-1, heads, -1, -1) if shared else tensor


@mistake(
    "GQA-06",
    "groups wrong where their size is no power of two",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/ggml-org/llama.cpp/pull/19115",
)
class GroupsOfPowersOfTwo(Dense):
    # Query heads are packed in blocks of the next power of two, across group borders.
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        block = 1 << (heads // tensor.shape[1] - 1).bit_length()
        return tensor[:, torch.arange(heads, device=tensor.device) // block]


@mistake(
    "own-groups-backwards",
    "groups read key/value heads in reverse order",
    killed_by="a-head-reads-its-own-group",
)
class GroupsBackwards(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        shared = tensor.shape[1] != heads
        return super().share_heads(tensor.flip(1) if shared else tensor, heads)


@mistake(
    "own-values-by-turns",
    "keys shared by group, values by turns",
    killed_by="shared-heads-equal-repeated-heads",
)
class ValuesByTurns(Dense):
    """An attention that repeats the keys by group and the values by turns."""

    turn = 0

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        self.turn += 1
        if self.turn % 2 == 0:
            return tensor.repeat(1, heads // tensor.shape[1], 1, 1)
        return super().share_heads(tensor, heads)


@mistake(
    "own-group-modulo",
    "query head h reads key/value head h % group",
    killed_by="shared-heads-equal-repeated-heads",
)
class GroupByModulo(Dense):
    # h % group instead of h // group: equal only if there are as many groups as members
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        group = heads // tensor.shape[1]
        head = torch.arange(heads, device=tensor.device)
        return tensor[:, (head % group) % tensor.shape[1] if group > 1 else head]


@mistake(
    "own-merged-without-transpose",
    "heads merged in the wrong order: reshaped without their transposition",
    killed_by="permuting-heads-permutes-the-output",
)
class MergedWithoutTranspose(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        return super().finish(out.transpose(1, 2).reshape(out.shape), value)


@mistake(
    "own-flat-index",
    "weights stored by (query, head) and read by (head, query)",
    killed_by="heads-equal-separate-attentions",
)
class FlatIndexSwapped(Dense):
    # a flat index of (head, query) is split as one of (query, head)
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        batch, heads, queries, keys = scores.shape
        weights = super().softmax(scores, visible)
        return weights.reshape(batch, queries, heads, keys).transpose(1, 2)


@mistake(
    "own-heads-backwards",
    "outputs of the heads in reverse order",
    killed_by="heads-equal-separate-attentions",
)
class HeadsBackwards(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        return super().finish(out.flip(1), value)


@mistake(
    "own-first-head-scores",
    "scores of head 0 used for every head",
    killed_by="heads-equal-separate-attentions",
)
class ScoresOfTheFirstHead(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key, scale)[:, :1].expand(-1, query.shape[1], -1, -1).clone()


@mistake(
    "own-scale-by-head",
    "scores divided by the number of the head",
    killed_by="heads-equal-separate-attentions",
)
class ScaleByHead(Dense):
    """An attention that divides the scores of head h by h + 1, by a table read one head late."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        head = torch.arange(query.shape[1], dtype=query.dtype, device=query.device)
        return super().scores(query, key, scale) / (1 + head)[:, None, None]


@mistake(
    "GQA-03",
    "shared key/value heads are handed on without being repeated",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/state-spaces/mamba/pull/462",
)
class NotRepeated(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor


@mistake(
    "GQA-04",
    "one key/value head that all queries share is read as if there were one for each",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/vllm-project/vllm/pull/676",
)
class OneHeadReadAsMany(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        if tensor.shape[1] != 1 or heads == 1:
            return super().share_heads(tensor, heads)
        many = tensor.contiguous().expand(-1, heads, -1, -1)
        return read_memory(many, torch.empty(many.shape, device="meta").stride())


@mistake(
    "GQA-07",
    "tiles of four query heads load one key/value head each, which groups of six do not fill",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/mlc-ai/mlc-llm/pull/2543",
)
class GroupsFillTiles(Dense):
    tile = 4

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        group = heads // tensor.shape[1]
        if group < self.tile:
            return super().share_heads(tensor, heads)
        tiles = group // self.tile
        shared = torch.arange(heads) // self.tile // tiles
        return tensor[:, shared.clamp(max=tensor.shape[1] - 1)]


@mistake(
    "GQA-08",
    "where a group is no power of two, the kernel for bfloat16 keeps its running output in it",
    killed_by="shared-heads-equal-repeated-heads",
    source="https://github.com/flashinfer-ai/flashinfer/issues/2896",
)
class NarrowForOddGroups(Tiled):
    """The cause that the report assumes; the thread does not confirm it."""

    tile = 1

    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        group = query.shape[1] // max(key.shape[1], 1)
        self.narrow = bool(group & (group - 1)) and query.dtype == torch.bfloat16
        return super().__call__(query, key, *rest, **options)

    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        shrunk = super().shrink_out(out, shrink)
        return shrunk.to(torch.bfloat16).to(out.dtype) if self.narrow else shrunk


@mistake(
    "STR-04",
    "parts of the keys are merged into rows that lie d_value apart, whatever the output's strides",
    killed_by="memory-layout-changes-nothing",
    source="https://github.com/flagos-ai/FlagGems/issues/5235",
)
class RowsOneWidthApart(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        self.query = query
        return super().__call__(query, *operands, **options)

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        out = super().finish(out, value)
        batch, heads, queries, channels = out.shape
        # the output has the memory layout of the queries: heads inside, or not
        if self.query.stride(1) >= self.query.stride(2) or not out.numel():
            return out
        strides = (queries * heads * channels, channels, heads * channels, 1)
        written = out.new_full((out.numel(),), torch.nan)
        row = torch.arange(heads)[:, None] * strides[1] + torch.arange(queries) * channels
        element = torch.arange(batch)[:, None, None] * strides[0] + row
        place = element[..., None] + torch.arange(channels)
        written[place.flatten()] = out.flatten()
        return torch.as_strided(written, out.shape, strides).contiguous()


@mistake(
    "own-flag-keeps-the-last-group",
    "with enable_gqa and equal numbers of heads, the group of the last grouped call is used",
    killed_by="groups-that-are-permitted-need-not-be-used",
)
class FlagKeepsTheLastGroup(Dense):
    def __init__(self) -> None:
        self.group = 1

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        heads, kv_heads = query.shape[1], key.shape[1]
        if heads != kv_heads:
            self.group = heads // kv_heads
        elif options.get("enable_gqa") and heads % self.group == 0:
            read = torch.arange(heads, device=key.device) // self.group
            key, value = key[:, read], value[:, read]
        return super().__call__(query, key, value, *rest, **options)
