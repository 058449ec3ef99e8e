"""Planted bugs of NUM-18: attention that is wrong in one class of calls alone."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.mutants.planting import mistake, plant_dense

LAW = "every-two-regimes-equal-the-definition"

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
    killed_by="gradients-in-every-two-regimes-equal-the-definition",
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
