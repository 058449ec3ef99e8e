"""Mutants of DRP whose fates are fair, and the same again some way off."""

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

REPEATS = ("fates-repeat-at-no-distance",)
DROPOUT = {Feature.DROPOUT}


class _Fated(Dense):
    """Drop by fates of one's own."""

    def fates(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        """True where a weight is kept."""
        return torch.rand_like(weights) >= dropout_p

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        return weights * self.fates(weights, dropout_p) / (1 - dropout_p)


@mistake(
    "own-dropout-every-tile-alike",
    "tiles of 128 keys drop alike",
    kills=REPEATS,
    features=DROPOUT,
)
class _TilesAlike(_Fated):
    def fates(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        keys = torch.arange(weights.shape[-1], device=weights.device)
        return super().fates(weights, dropout_p)[..., keys % 128]


@mistake(
    "own-dropout-heads-in-one-stream",
    "each head begins one row further in the same stream of random numbers",
    kills=REPEATS,
    features=DROPOUT,
)
class _HeadsInOneStream(_Fated):
    def fates(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        batch, heads, queries, keys = weights.shape
        stream = weights.new_empty(batch, heads + queries, keys).uniform_() >= dropout_p
        return torch.stack([stream[:, head : head + queries] for head in range(heads)], dim=1)


@mistake(
    "own-dropout-rows-of-three",
    "three rows share a random number where their tile is read",
    kills=REPEATS,
    features=DROPOUT,
)
class _RowsOfThree(_Fated):
    def fates(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        kept = super().fates(weights, dropout_p)
        row = torch.arange(weights.shape[-2], device=weights.device)
        return kept[:, :, row - row % 6 // 3 * 3]


@mistake(
    "own-dropout-calls-in-one-stream",
    "each call begins one row further in the same stream of random numbers",
    kills=REPEATS,
    features=DROPOUT,
)
class _CallsInOneStream(_Fated):
    calls = 0

    def fates(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        batch, heads, queries, keys = weights.shape
        self.calls = (self.calls + 1) % 8
        seed = torch.Generator(weights.device).manual_seed(torch.initial_seed())
        shape = (batch, heads, queries + 8, keys)
        stream = torch.rand(shape, generator=seed, device=weights.device) >= dropout_p
        return stream[:, :, self.calls : self.calls + queries]
