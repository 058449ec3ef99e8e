"""Mutants of ATT: wrong bookkeeping of tiles, batches, heads and storage types."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Float64Precision

GITHUB = "https://github.com"


@mistake(
    "own-tile-sum",
    "the running sum is not rescaled when the maximum grows",
    killed_by="output-equals-the-definition",
)
class SumNotRescaled(Tiled):
    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return total


@mistake(
    "own-tile-output",
    "the running output is not rescaled when the maximum grows",
    killed_by="output-equals-the-definition",
)
class OutputNotRescaled(Tiled):
    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return out


@mistake(
    "own-tile-maximum",
    "each tile subtracts its own maximum, and nothing is rescaled",
    killed_by="order-of-keys-does-not-matter",
)
class OwnMaximum(Tiled):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(-1, keepdim=True)

    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return total

    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return out


@mistake(
    "own-tile-maximum-begins",
    "the running maximum begins at -10 000, and rows whose scores are lower are zero",
    killed_by="output-equals-the-definition",
)
class MaximumBeginsTooHigh(Tiled):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return super().grow(peak, scores).clamp(min=-10_000.0)


@mistake(
    "TIL-01",
    "the empty places of the last tile of keys count in the sum",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/jax-ml/jax/issues/27224",
)
class TailCounted(Tiled):
    def tile_total(self, weights: torch.Tensor) -> torch.Tensor:
        # a padded key of zeros has score zero; its weight is at most that of the maximum
        empty = self.tile - weights.shape[-1]
        return super().tile_total(weights) + 0.1 * empty


@mistake(
    "own-tile-partial",
    "a last tile of two keys or more is dropped where it is not full",
    killed_by="output-equals-the-definition",
)
class PartialTileDropped(Tiled):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        partial = 1 < scores.shape[-1] < self.tile
        return (
            scores.new_full(scores.shape, -torch.inf) if partial else super().hide(scores, visible)
        )


@mistake(
    "own-tile-queries",
    "the last tile of queries is not written where it is not full",
    killed_by="output-equals-the-definition",
)
class QueryTailForgotten(Tiled):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        whole = out.shape[-2] // self.tile * self.tile
        if whole:
            out = out.clone()
            out[..., whole:, :] = 0
        return super().finish(out, value)


@mistake(
    "own-rows-share-a-sum",
    "all rows of a tile of queries are divided by the sum of its first row",
    killed_by="queries-are-independent",
)
class SharedSum(Dense):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        total = super().total(weights)
        first = torch.arange(total.shape[-2], device=total.device) // 16 * 16
        return total[..., first, :]


@mistake(
    "DTY-02",
    "weights are rounded to 8 bits, but not in their sum",
    killed_by="weights-sum-to-one",
    source=f"{GITHUB}/ROCm/FlyDSL/pull/1020",
)
class NarrowWeights(Tiled):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights.to(torch.float8_e4m3fn).to(value.dtype), value)


@mistake(
    "DTY-03",
    "the maximum is kept from the first tile, and weights saturate at 448",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/Dao-AILab/flash-attention/pull/2713",
)
class SaturatedWeights(Tiled):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.where(peak == -torch.inf, super().grow(peak, scores), peak)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights.clamp(max=448), value)


@mistake(
    "DTY-05",
    "the output is summed in bfloat16",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/tenstorrent/tt-metal/pull/48753",
)
class NarrowAccumulator(Tiled):
    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrink_out(out, shrink).to(torch.bfloat16).to(out.dtype)


@mistake(
    "own-accumulator-float16",
    "the sum of a row is kept in float16",
    killed_by="weights-sum-to-one",
)
class NarrowSum(Tiled):
    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrink_total(total, shrink).to(torch.float16).to(total.dtype)


@mistake(
    "own-float64-inside",
    "float64 is computed in float32",
    killed_by="output-equals-the-definition",
)
class DoubleNarrowed(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores.float(), visible).to(scores.dtype)


@mistake(
    "own-float64-in-float16",
    "float64 is computed in float32, as declared, but the weights are rounded to float16",
    killed_by="every-output-is-within-its-bound",
    float64_precision=Float64Precision.FLOAT32,
)
class DoubleNarrowedTwice(Dense):
    def wide(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float32

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, visible).half().to(scores.dtype)


@mistake(
    "own-batch-sum",
    "rows are divided by the sum over the batch",
    killed_by="batch-elements-are-independent",
)
class BatchNormalised(Dense):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        return super().total(weights).sum(0, keepdim=True)


@mistake(
    "own-batch-maximum",
    "the maximum is taken over the batch and the heads",
    killed_by="batch-elements-are-independent",
)
class BatchMaximum(Dense):
    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return super().peak(scores).amax((0, 1), keepdim=True)


@mistake(
    "own-batch-keys",
    "every batch element reads the keys of the first",
    killed_by="batch-elements-are-independent",
)
class KeysOfFirst(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key[:1].expand_as(key), scale)


@mistake(
    "STR-06",
    "the flat index of a row is split into head and query the wrong way round",
    killed_by="heads-are-independent",
    source=f"{GITHUB}/karpathy/llm.c/issues/795",
)
class HeadAndQuerySwapped(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        batch, heads, queries, keys = weights.shape
        return weights.reshape(batch, queries, heads, keys).transpose(1, 2).contiguous()


@mistake(
    "own-heads-reversed",
    "heads read the weights of their neighbour",
    killed_by="heads-are-independent",
)
class HeadsRolled(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, visible).roll(1, dims=1)


@mistake(
    "own-cached-by-shape",
    "the output is kept, and returned for the next inputs of the same shape",
    killed_by="output-equals-the-definition",
)
class CachedByShape(Dense):
    kept: tuple[Any, torch.Tensor] | None = None

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        shape = (out.shape, value.shape, value.dtype)
        if self.kept is None or self.kept[0] != shape:
            self.kept = shape, super().finish(out, value)
        return self.kept[1].clone()


@mistake(
    "own-tile-of-zeros",
    "a tile of 64 keys that are zero is left out as absent",
    killed_by="keys-of-zeros-are-keys",
)
class TileOfZeros(DenseWithArguments):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        key = self.call["key"]
        is_zero = (key == 0).all(-1)
        tiles = is_zero.unfold(-1, 64, 64).all(-1) if key.shape[2] >= 64 else is_zero[..., :0]
        absent = torch.zeros_like(is_zero)
        absent[..., : 64 * tiles.shape[-1]] = tiles.repeat_interleave(64, -1)
        absent = absent & ~absent.all(-1, keepdim=True)
        absent = absent.repeat_interleave(scores.shape[1] // key.shape[1], 1)
        return super().hide(scores, visible & ~absent[:, :, None])
