"""Planted bugs of NUM-21: attention that is wrong only where three classes of sizes meet."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake

LAW = "every-three-sizes-equal-the-definition"
GRADIENTS = "gradients-at-every-three-sizes-equal-the-definition"


@mistake(
    "own-last-key-of-packed-groups",
    "with heads of 72 to 96 channels, 513 to 1 100 keys and few queries, a packed group of five "
    "heads misses the last key",
    killed_by=LAW,
)
class LastKeyOfPackedGroups(Dense):
    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.is_packed = query.shape[1] == 5 * key.shape[1] and 66 <= query.shape[3] <= 96
        return super().__call__(query, key, *rest, **options)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        if self.is_packed and queries <= 130 and 513 <= keys <= 1100:
            visible = visible.clone().expand(scores.shape).clone()
            visible[..., -1] = False
        return super().hide(scores, visible)


@mistake(
    "own-tail-of-wide-chunks",
    "in chunks of 17 to 128 queries on 513 to 1 100 keys of over 192 channels, the last key has "
    "no gradient if there are several texts",
    killed_by=GRADIENTS,
)
class TailOfWideChunks(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        queries, (batch, _, keys, channels) = saved.query.shape[2], saved.key.shape
        if 17 <= queries <= 128 and 513 <= keys <= 1100 and batch > 1 and channels > 192:
            d_key = d_key.clone()
            d_key[:, :, -1] = 0
        return d_query, d_key, d_value, d_mask
