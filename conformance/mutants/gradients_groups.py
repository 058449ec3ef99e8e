"""Mutants of GRD, third part: what is added up over heads, tiles, and where a mask broadcasts."""

import torch

from attnspec.conformance.mutants.explicit import Explicit, Gradients, Pass
from attnspec.conformance.mutants.gradients import (
    BALANCE,
    CANCEL,
    DEFINITION,
    FORM,
    GROUP,
    LINEAR,
    MASK,
    REACH,
)
from attnspec.conformance.mutants.planting import mistake


@mistake(
    "GQA-05",
    "the backward pass reads key/value head i % kv_heads",
    kills=(GROUP, DEFINITION, REACH),
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
)
class _TiledHeads(Explicit):
    def share_again(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@mistake(
    "GQA-10",
    "dK and dV of a group are those of its last head: each head writes over the one before",
    kills=(GROUP, DEFINITION, BALANCE),
    source="https://github.com/marin-community/levanter/pull/449",
)
class _Overwritten(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        group = gradient.shape[1] // like.shape[1]
        return gradient[:, group - 1 :: group]


@mistake(
    "own-grad-group-mean",
    "dK and dV of a group are the means of those of its heads",
    kills=(GROUP, DEFINITION, BALANCE),
)
class _GroupMean(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().join_heads(gradient, like) * like.shape[1] / gradient.shape[1]


@mistake(
    "own-grad-group-of-two",
    "no more than two heads of a group add up their gradients",
    kills=(GROUP, DEFINITION),
)
class _GroupOfTwo(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        batch, heads, keys, channels = gradient.shape
        shape = (batch, like.shape[1], heads // like.shape[1], keys, channels)
        return gradient.reshape(shape)[:, :, :2].sum(2)


@mistake(
    "own-grad-group-across",
    "gradients are added up over heads that lie a whole row of groups apart",
    kills=(GROUP, DEFINITION, REACH),
)
class _GroupAcross(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        batch, _, keys, channels = gradient.shape
        return gradient.reshape(batch, -1, like.shape[1], keys, channels).sum(1)


@mistake(
    "own-grad-group-not-joined",
    "dK and dV come back head by head",
    kills=(GROUP, FORM),
)
class _NotJoined(Explicit):
    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return gradient


@mistake(
    "own-grad-partial-tile-dropped",
    "queries and keys behind the last full tile are left out",
    kills=(DEFINITION, BALANCE),
)
class _PartialTile(Explicit):
    tile = 16

    def tiles(self, length: int) -> list[slice]:
        found = super().tiles(length)
        return found if length % self.tile == 0 or len(found) == 1 else found[:-1]


@mistake(
    "own-grad-last-query-of-a-tile",
    "dK and dV leave out the last query of every full tile",
    kills=(DEFINITION, BALANCE),
)
class _LastQuery(Explicit):
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
    kills=(DEFINITION, BALANCE),
)
class _TileOverwritten(Explicit):
    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return part


@mistake(
    "own-grad-many-writes",
    "gradients are written back in the storage type after every query and key",
    kills=(DEFINITION, LINEAR),
)
class _ManyWrites(Explicit):
    tile = 1
    stored = torch.float32

    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return super().add(total, part).to(self.stored).to(total.dtype)

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.stored = done.query.dtype
        return super().backward(done, given, needed)


@mistake(
    "own-grad-mask-mean",
    "the gradient of a broadcast mask is the mean along what it was broadcast to",
    kills=(MASK,),
)
class _MaskMean(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS, mask) * mask.numel() / max(dS.numel(), 1)


@mistake(
    "own-grad-mask-of-the-first",
    "the gradient of a broadcast mask is that of the first batch element and head",
    kills=(MASK,),
)
class _MaskOfFirst(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        batch, heads = shape[:2]
        return dS[:batch, :heads].sum_to_size(mask.shape)


@mistake(
    "own-grad-mask-over-all-heads",
    "the gradient of a mask is added up over the heads, whether or not it has its own for each",
    kills=(MASK,),
)
class _MaskOverHeads(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS.sum(1, keepdim=True).expand_as(dS), mask)


@mistake(
    "own-grad-mask-scaled",
    "the gradient of a mask is that of the scores before they are scaled",
    kills=(MASK,),
)
class _MaskScaled(Explicit):
    def finish_mask(self, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().finish_mask(gradient * self.factor, mask)

    factor = 1.0

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.factor = self.scale(done.query, done.value, done.scale)
        return super().backward(done, given, needed)


@mistake(
    "own-grad-mask-narrow",
    "the gradient of a mask is added up in bfloat16",
    kills=(MASK, CANCEL),
)
class _MaskNarrow(Explicit):
    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().fold(dS.bfloat16(), mask)
