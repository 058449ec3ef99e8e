"""Planted bugs of NUM-18: attention that is wrong in one class of calls alone."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.spec import Feature

LAW = "every-two-regimes-equal-the-definition"
GRADIENTS = "gradients-in-every-two-regimes-equal-the-definition"

plant_dense(
    "own-wrong-beyond-32-heads",
    "the output is wrong with more than 32 heads",
    wrong_at(("heads", "33 to 64")),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-backward-tiles",
    "the output is wrong with several tiles and 96 channels, if gradients are required",
    wrong_at(("extent", "several tiles of queries and keys, backward"), ("d_head", "96")),
    killed_by=GRADIENTS,
)


@mistake(
    "own-tile-skipped-for-all",
    "in a long call, a tile that a mask hides from the first batch element is skipped for all",
    killed_by=LAW,
)
class TileSkippedForAll(Dense):
    tile = 128

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        keys = scores.shape[-1]
        if len(scores) > 1 and keys > 4 * self.tile:
            padding = -keys % self.tile
            tiles = torch.nn.functional.pad(visible[0].any(-2).any(0), (0, padding), value=False)
            is_read = tiles.view(-1, self.tile).any(-1).repeat_interleave(self.tile)[:keys]
            visible = visible & is_read
        return super().hide(scores, visible)


@mistake(
    "own-split-skipped",
    "decoding skips the second half of long keys if the first is hidden",
    killed_by=LAW,
)
class SplitSkipped(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        half = scores.shape[-1] // 2
        if scores.shape[-2] <= 8 and half > 256:
            visible = visible.clone()
            visible[..., half:] &= visible[..., :half].any(-1, keepdim=True)
        return super().hide(scores, visible)


@mistake(
    "own-window-of-a-thread",
    "of several threads, each starts the windows of its rows at that of the first",
    killed_by=LAW,
    features={Feature.WINDOW},
)
class WindowOfAThread(Dense):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        if left is None or torch.get_num_threads() == 1 or queries < 64:
            return super().window(left, right, queries, keys)
        rows = -(-queries // torch.get_num_threads())
        first = torch.arange(queries) // rows * rows
        starts = super().window(left, None, queries, keys)[first]
        return starts & super().window(None, right, queries, keys)


@mistake(
    "own-pitch-of-a-cache",
    "from 64 keys on, a head of keys is taken to be as long as the tokens that a cache holds",
    killed_by=LAW,
)
class PitchOfACache(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        heads, length, channels = key.shape[1:]
        if length >= 64 and key.stride(1) > length * channels == length * key.stride(2):
            pitch = length * channels
            key = key.as_strided(key.shape, (heads * pitch, pitch, channels, 1))
        return super().__call__(query, key, value, *rest, **options)


@mistake(
    "own-incoming-gradient-in-float16",
    "an incoming gradient of bfloat16 is read as float16, in which small numbers are zero",
    killed_by=GRADIENTS,
)
class IncomingInFloat16(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return grad.half() if grad.dtype == torch.bfloat16 else grad


@mistake(
    "own-last-tile-if-deterministic",
    "deterministic algorithms leave the last tile of keys out of dQ, in several tiles",
    killed_by=GRADIENTS,
)
class LastTileIfDeterministic(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.leaves_out = torch.are_deterministic_algorithms_enabled() and min(d_out.shape[2], 129)
        return super().backward(saved, d_out, needed)

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        d_query = super().to_query(dt, key, scale)
        is_last = self.leaves_out == 129 and key.shape[2] < self.tile
        return torch.zeros_like(d_query) if is_last else d_query


@mistake(
    "own-incoming-gradient-clamped",
    "over 128 queries, an incoming gradient in float16 is clamped to 1024, as if sums overflowed",
    killed_by=GRADIENTS,
)
class IncomingClamped(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        is_long = grad.dtype == torch.float16 and grad.shape[2] > 128
        return super().incoming(grad.clamp(-1024, 1024) if is_long else grad, saved)
