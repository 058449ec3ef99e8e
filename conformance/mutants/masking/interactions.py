"""Mutants of MSK: masks together with alignment, eviction, tiles, broadcasting and chunks."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import CausalAlignment


def lower_right(queries: int, keys: int) -> torch.Tensor:
    """Return the triangle aligned lower-right: the last query reads up to the last key."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class LowerRightTiled(Tiled):
    """A correct attention by tiles, aligned lower-right: the last query is at the last key."""

    tile = 4

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        """Return the lower-right triangle."""
        return lower_right(queries, keys)


@mistake(
    "MSK-04",
    "the kernel for float32 aligns the causal flag lower-right, all others upper-left",
    killed_by="the-diagonal-lies-where-the-profile-says",
    source="https://github.com/microsoft/onnxruntime/issues/29020",
)
class TwoAlignments(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        self.is_float32 = query.dtype == torch.float32
        return super().__call__(query, *operands, **options)

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return super().causal(queries, keys) if not self.is_float32 else lower_right(queries, keys)


@mistake(
    "MSK-38",
    "keys that no query reads are evicted, and causality counts positions among the rest",
    killed_by="mask-and-causal-flag-both-apply",
    source="https://github.com/rajveer43/VeloxQuant-MLX/pull/392",
)
class PlacesAfterEviction(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        visible, bias = super().mask(attn_mask, False, scores)
        if not is_causal:
            return visible, bias
        kept = visible.any(-2, keepdim=True)
        place = kept.cumsum(-1) - 1
        return visible & (place <= torch.arange(scores.shape[-2])[:, None]), bias


@mistake(
    "TIL-04",
    "a tile of queries before the first key has no tile of keys to visit, and is never written",
    killed_by="the-causal-flag-equals-its-triangle",
    source="https://github.com/Dao-AILab/flash-attention/issues/1778",
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)
class NeverWritten(LowerRightTiled):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        visible = super().causal(queries, keys)
        self.reached = visible.any(-1)
        return visible

    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.reached = torch.ones(operands[0].shape[2], dtype=torch.bool)
        return super().__call__(*operands, **options)

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        tiles = [tile.any().expand(tile.shape) for tile in self.reached.split(self.tile)]
        # NaN for the previous content of the output's memory
        unwritten = ~torch.cat(tiles)[:, None]
        return super().finish(out.masked_fill(unwritten, torch.nan), value)


@mistake(
    "own-boundary-in-one-tile",
    "only the last tile of keys that a tile of queries visits is masked, though two are crossed",
    killed_by="a-causal-row-attends-its-prefix",
    source="https://github.com/Dao-AILab/flash-attention/pull/436",
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)
class BoundaryInOneTile(LowerRightTiled):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        last = torch.arange(queries) // self.tile * self.tile + self.tile - 1 + keys - queries
        before = torch.arange(keys) // self.tile < last[:, None] // self.tile
        return super().causal(queries, keys) | before


@mistake(
    "SHP-03",
    "a mask is copied to the bias as it stands, and one with a single row is an error",
    killed_by="masks-broadcast",
    source="https://github.com/jax-ml/jax/issues/28974",
)
class MaskNotBroadcast(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if attn_mask is not None and attn_mask.dim() == 4:
            queries = scores.shape[-2]
            if attn_mask.shape[-2] != queries:
                raise ValueError(f"bias must have {queries} rows, got {attn_mask.shape[-2]}")
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "SHP-04",
    "a bias is unpacked as (heads, queries, keys), and one for each batch element is an error",
    killed_by="masks-broadcast",
    source="https://github.com/lucidrains/x-transformers/issues/298",
)
class BiasOfThreeAxes(Dense):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        heads, queries, keys = bias.shape if bias.dim() != 2 else (1, *bias.shape)
        return super().add_bias(scores, bias.view(1, heads, queries, keys))


@mistake(
    "DST-03",
    "chunks are dealt out as if none read a later one, also where attention is not causal",
    killed_by="output-equals-the-definition",
    source="https://github.com/pytorch/pytorch/pull/141622",
)
class ChunksAssumeCausality(Dense):
    """An attention on two devices: one has chunks 1 and 4, the other chunks 2 and 3."""

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        if queries == keys and keys % 4 == 0:
            chunk = torch.arange(keys) // (keys // 4) if keys else torch.arange(0)
            visible = visible & (chunk <= chunk[:, None])
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)
