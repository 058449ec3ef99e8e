"""Mutants of the public catalogue: shared heads, and outputs that lie otherwise in memory."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake, read_memory
from attnspec.conformance.mutants.tiled import Tiled

SHARED = "shared-heads-equal-repeated-heads"
OWN = "a-head-reads-its-own-group"
LAYOUT = "memory-layout-means-nothing"


@mistake(
    "GQA-03",
    "shared key/value heads are handed on without being repeated",
    kills=(SHARED, OWN),
    source="https://github.com/state-spaces/mamba/pull/462",
)
class NotRepeated(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor


@mistake(
    "GQA-04",
    "one key/value head that all queries share is read as if there were one for each",
    kills=(SHARED,),
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
    kills=(SHARED, OWN),
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
    kills=(SHARED,),
    source="https://github.com/flashinfer-ai/flashinfer/issues/2896",
)
class NarrowForOddGroups(Tiled):
    """What the report takes for the cause; the thread does not settle it."""

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
    kills=(LAYOUT,),
    source="https://github.com/flagos-ai/FlagGems/issues/5235",
)
class RowsOneWidthApart(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        self.query = query
        return super().__call__(query, *operands, **options)

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        out = super().finish(out, value)
        batch, heads, queries, channels = out.shape
        # the output lies in memory as the queries do: heads inside, or not
        if self.query.stride(1) >= self.query.stride(2) or not out.numel():
            return out
        strides = (queries * heads * channels, channels, heads * channels, 1)
        written = out.new_full((out.numel(),), torch.nan)
        row = torch.arange(heads)[:, None] * strides[1] + torch.arange(queries) * channels
        element = torch.arange(batch)[:, None, None] * strides[0] + row
        place = element[..., None] + torch.arange(channels)
        written[place.flatten()] = out.flatten()
        return torch.as_strided(written, out.shape, strides).contiguous()
