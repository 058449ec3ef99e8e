"""Mutants of DRP that drop with the right probability, but repeat their choice at a distance."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

DROPOUT = {Feature.DROPOUT}


class OtherChoice(Dense):
    """An attention with an overridable choice of dropped weights."""

    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        """Return the mask of kept weights."""
        return torch.rand_like(weights) >= dropout_p

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        return weights * self.choose_kept(weights, dropout_p) / (1 - dropout_p)


@mistake(
    "own-dropout-every-tile-alike",
    "tiles of 128 keys drop alike",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class TilesAlike(OtherChoice):
    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        keys = torch.arange(weights.shape[-1], device=weights.device)
        return super().choose_kept(weights, dropout_p)[..., keys % 128]


@mistake(
    "own-dropout-heads-in-one-stream",
    "each head begins one row further in the same stream of random numbers",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class HeadsInOneStream(OtherChoice):
    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        batch, heads, queries, keys = weights.shape
        stream = weights.new_empty(batch, heads + queries, keys).uniform_() >= dropout_p
        return torch.stack([stream[:, head : head + queries] for head in range(heads)], dim=1)


@mistake(
    "own-dropout-rows-of-three",
    "three rows share a random number where their tile is read",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class RowsOfThree(OtherChoice):
    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        kept = super().choose_kept(weights, dropout_p)
        row = torch.arange(weights.shape[-2], device=weights.device)
        return kept[:, :, row - row % 6 // 3 * 3]


@mistake(
    "own-dropout-calls-in-one-stream",
    "each call begins one row further in the same stream of random numbers",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class CallsInOneStream(OtherChoice):
    calls = 0

    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        batch, heads, queries, keys = weights.shape
        self.calls = (self.calls + 1) % 8
        seed = torch.Generator(weights.device).manual_seed(torch.initial_seed())
        shape = (batch, heads, queries + 8, keys)
        stream = torch.rand(shape, generator=seed, device=weights.device) >= dropout_p
        return stream[:, :, self.calls : self.calls + queries]


@mistake(
    "own-dropout-stream-of-256-keys",
    "the stream of random numbers of a row begins again after 256 keys",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class StreamOfKeys(OtherChoice):
    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        key = torch.arange(weights.shape[-1], device=weights.device)
        return super().choose_kept(weights, dropout_p)[..., key % 256]


@mistake(
    "own-dropout-stream-of-512-queries",
    "the stream of random numbers of a head begins again after 512 queries",
    killed_by="dropout-masks-do-not-repeat",
    features=DROPOUT,
)
class StreamOfQueries(OtherChoice):
    def choose_kept(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        query = torch.arange(weights.shape[-2], device=weights.device)
        return super().choose_kept(weights, dropout_p)[:, :, query % 512]
