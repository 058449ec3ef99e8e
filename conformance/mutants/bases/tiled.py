"""A correct attention that reads keys tile by tile, like fused kernels, in overridable steps."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense


class Tiled(Dense):
    """A correct attention by online softmax.

    It keeps a running maximum, sum and output, and rescales the last two when the maximum grows.
    """

    tile = 16
    most = 1024
    """Largest number of tiles in one call; longer calls have larger tiles, to be fast enough."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        if not 0 <= dropout_p <= 1:
            raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")
        if key.shape[2] != value.shape[2]:
            # the last tile ends with the keys: further values would be ignored
            raise ValueError(f"{key.shape[2]} keys, but {value.shape[2]} values")
        wide = self.wide(query.dtype)
        q, k, v = query.to(wide), key.to(wide), value.to(wide)
        if k.shape[1] != q.shape[1]:
            k, v = self.share_heads(k, q.shape[1]), self.share_heads(v, q.shape[1])
        batch, heads, queries, _ = q.shape
        everything = q.new_zeros(batch, heads, queries, k.shape[2])
        visible, bias = torch.ones_like(everything, dtype=torch.bool), None
        if attn_mask is not None or is_causal:
            visible, bias = self.mask(attn_mask, is_causal, everything)
        if window is not None:
            visible = visible & self.window(*window, *everything.shape[-2:]).to(q.device)
        slopes = None if alibi_slopes is None else self.add_alibi(everything, alibi_slopes.to(wide))
        factor = self.scale(q, v, scale)

        peak, total = self.start(q.new_zeros(batch, heads, queries, 1), sinks)
        out = q.new_zeros(batch, heads, queries, v.shape[-1])
        for number, part in enumerate(self.key_tiles(k.shape[2])):
            scores = self.scores(q, k[:, :, part], self.tile_scale(factor, number))
            if softcap is not None:
                scores = self.cap(scores, softcap)
            if slopes is not None:
                scores = scores + slopes[..., part]
            if bias is not None:
                full = bias.expand_as(everything)
                scores = self.add_bias(scores, full[..., part])
            scores = self.hide(scores, visible[..., part])
            # the shift cancels, so its derivative is zero, as in Dense
            grown = self.grow(peak, scores).detach()
            safe = torch.where(grown == -torch.inf, 0.0, grown)
            weights, shrink = self.exp(scores, safe), self.exp(peak, safe)
            total = self.shrink_total(total, shrink) + self.tile_total(weights)
            weights = self.drop(weights, dropout_p) if dropout_p else weights
            out = self.shrink_out(out, shrink) + self.mix(weights, v[:, :, part])
            peak = grown
        out = self.finish(out / torch.where(total == 0, 1.0, total), value)
        return (out, self.tiled_lse(peak, total)) if return_lse else out

    def key_tiles(self, keys: int) -> list[slice]:
        """Return the tiles of keys, in the order in which they are read."""
        tile = max(self.tile, -(-keys // self.most))
        return [slice(start, start + tile) for start in range(0, keys, tile)]

    def start(
        self, column: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return maximum and sum before the first tile: of nothing, or of the sink."""
        if sinks is None:
            return torch.full_like(column, -torch.inf), torch.zeros_like(column)
        return column + sinks.to(column)[:, None, None], torch.ones_like(column)

    def tiled_lse(self, peak: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Return the maximum plus the logarithm of the sum relative to it."""
        return (peak + total.log())[..., 0]

    def tile_scale(self, scale: float, number: int) -> float:
        """Return the scale of one tile: the same for all."""
        return scale

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the running maximum, updated with one more tile of scores."""
        return torch.maximum(peak, scores.amax(-1, keepdim=True))

    def tile_total(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of one tile's weights."""
        return weights.sum(-1, keepdim=True)

    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        """Rescale the sum so far to the new maximum."""
        return total * shrink

    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        """Rescale the output so far to the new maximum."""
        return out * shrink
