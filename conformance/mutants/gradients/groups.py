"""Mutants of GRD: sums over heads, over tiles, and along broadcast axes of a mask."""

import torch

from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Grouping


@mistake(
    "GQA-05",
    "the backward pass reads key/value head i % kv_heads",
    killed_by="gradients-are-summed-over-a-group",
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
)
class TiledHeads(Explicit):
    def share_again(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@mistake(
    "own-grad-consecutive-where-interleaved",
    "heads take turns forward, as declared, and read by group in the backward pass",
    killed_by="gradients-are-summed-over-a-group",
    grouping=Grouping.INTERLEAVED,
)
class ConsecutiveBackward(Explicit):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@mistake(
    "GQA-10",
    "dK and dV of a group are those of its last head: each head writes over the one before",
    killed_by="gradients-are-summed-over-a-group",
    source="https://github.com/marin-community/levanter/pull/449",
)
class LastHeadOfGroup(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        group = gradient.shape[1] // like.shape[1]
        return gradient[:, group - 1 :: group]


@mistake(
    "own-grad-group-mean",
    "dK and dV of a group are the means of those of its heads",
    killed_by="gradients-are-summed-over-a-group",
)
class GroupMean(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().join_heads(gradient, like) * like.shape[1] / gradient.shape[1]


@mistake(
    "own-grad-group-of-two",
    "no more than two heads of a group add up their gradients",
    killed_by="gradients-are-summed-over-a-group",
)
class GroupOfTwo(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        batch, heads, keys, channels = gradient.shape
        shape = (batch, like.shape[1], heads // like.shape[1], keys, channels)
        return gradient.reshape(shape)[:, :, :2].sum(2)


@mistake(
    "own-grad-group-across",
    "gradients are summed over heads that are a whole row of groups apart",
    killed_by="gradients-are-summed-over-a-group",
)
class GroupAcross(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        batch, _, keys, channels = gradient.shape
        return gradient.reshape(batch, -1, like.shape[1], keys, channels).sum(1)


@mistake(
    "own-grad-group-not-joined",
    "dK and dV come back head by head",
    killed_by="gradients-are-summed-over-a-group",
)
class HeadsNotJoined(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return gradient


@mistake(
    "own-grad-partial-tile-dropped",
    "queries and keys behind the last full tile are left out",
    killed_by="gradients-equal-the-definition",
)
class PartialTileDropped(Explicit):
    tile = 16

    def tiles(self, length: int) -> list[slice]:
        tiles = super().tiles(length)
        return tiles if length % self.tile == 0 or len(tiles) == 1 else tiles[:-1]


@mistake(
    "own-grad-last-query-of-a-tile",
    "dK and dV leave out the last query of every full tile",
    killed_by="gradients-equal-the-definition",
)
class LastQueryOfTileDropped(Explicit):
    tile = 16

    def kept(self, queries: int) -> int:
        return queries - 1 if queries == self.tile else queries

    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        kept = self.kept(query.shape[2])
        return super().to_key(dt[:, :, :kept], query[:, :, :kept], scale)

    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        kept = self.kept(grad.shape[2])
        return super().to_value(p[:, :, :kept], grad[:, :, :kept])


@mistake(
    "own-grad-tile-overwritten",
    "each tile writes its part of a gradient over that of the tile before",
    killed_by="gradients-equal-the-definition",
)
class TileOverwritten(Explicit):
    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return part


@mistake(
    "own-grad-many-writes",
    "gradients are written back in the storage type after every query and key",
    killed_by="gradients-equal-the-definition",
)
class ManyWrites(Explicit):
    tile = 1
    stored = torch.float32

    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return super().add(total, part).to(self.stored).to(total.dtype)

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.stored = saved.query.dtype
        return super().backward(saved, d_out, needed)


@mistake(
    "own-grad-mask-mean",
    "the gradient of a broadcast mask is the mean along what it was broadcast to",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class MaskMean(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS, mask) * mask.numel() / max(dS.numel(), 1)


@mistake(
    "own-grad-mask-of-the-first",
    "the gradient of a broadcast mask is that of the first batch element and head",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class MaskOfFirst(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        batch, heads = shape[:2]
        return dS[:batch, :heads].sum_to_size(mask.shape)


@mistake(
    "own-grad-mask-over-all-heads",
    "the gradient of a mask is added up over the heads, whether or not it has its own for each",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class MaskOverHeads(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS.sum(1, keepdim=True).expand_as(dS), mask)


@mistake(
    "own-grad-mask-scaled",
    "the gradient of a mask is that of the scores before they are scaled",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class MaskScaled(Explicit):
    def finish_mask(self, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().finish_mask(gradient * self.factor, mask)

    factor = 1.0

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.factor = self.scale(saved.query, saved.value, saved.scale)
        return super().backward(saved, d_out, needed)


@mistake(
    "own-grad-mask-narrow",
    "the gradient of a mask is added up in bfloat16",
    killed_by="the-gradients-of-a-row-of-scores-cancel",
)
class MaskNarrow(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS.bfloat16(), mask)
