"""Mutants of ATT: a sink is lost, counted twice, has a value, or is that of another head."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

GITHUB = "https://github.com"
SINKS = {Feature.SINKS}


@mistake(
    "NUM-09",
    "the sink is dropped",
    killed_by="each-query-head-has-a-sink-of-its-own",
    source=f"{GITHUB}/modular/modular/pull/6591",
    features=SINKS,
)
class SinkDropped(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, torch.full_like(sinks, -torch.inf))


@mistake(
    "own-sink-off-by-one",
    "every sink is taken for zero: one is added to the denominator",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class OffByOne(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, torch.zeros_like(sinks))


@mistake(
    "own-sink-given-back",
    "the weights are normalised again after the sink's is cut off",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class GivenBack(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        total = weights.sum(-1, keepdim=True)
        return super().mix(weights / torch.where(total == 0, 1.0, total), value)


@mistake(
    "own-sink-has-a-value",
    "the weight of the sink goes to the first key",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkHasAValue(DenseWithArguments):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        if self.call.get("sinks") is None:
            return out
        return out + (1 - weights.sum(-1, keepdim=True)) * value[:, :, :1]


@mistake(
    "own-sink-scaled",
    "the sink is multiplied by the scale",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkScaled(Dense):
    factor = 1.0

    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        self.factor = super().scale(query, value, scale)
        return self.factor

    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, sinks * self.factor)


@mistake(
    "own-sink-capped",
    "the softcap bends the sink too",
    killed_by="a-sink-takes-weight-and-has-no-value",
    features={Feature.SINKS, Feature.SOFTCAP},
)
class SinkCapped(DenseWithArguments):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        softcap = self.call.get("softcap")
        return super().sink(scores, visible, sinks if softcap is None else self.cap(sinks, softcap))


@mistake(
    "own-sink-of-the-first-head",
    "all heads use the sink of the first",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class FirstSink(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, sinks[:1].expand_as(sinks))


@mistake(
    "own-sink-by-place-in-group",
    "the heads of a group take their sinks from the first group",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkByPlaceInGroup(DenseWithArguments):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        group = scores.shape[1] // self.call["key"].shape[1]
        head = torch.arange(scores.shape[1]) % group if group > 1 else torch.arange(len(sinks))
        return super().sink(scores, visible, sinks[head.to(sinks.device)])


@mistake(
    "own-sink-in-every-tile",
    "the sink is counted again in every tile",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkInEveryTile(Tiled):
    extra: torch.Tensor | None = None

    def start(
        self, column: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.extra = None if sinks is None else sinks.to(column)[:, None, None]
        self.tiles = 0
        return super().start(column, sinks)

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.tiles += 1
        self.grown = super().grow(peak, scores)
        return self.grown

    def tile_total(self, weights: torch.Tensor) -> torch.Tensor:
        total = super().tile_total(weights)
        if self.extra is None or self.tiles == 1:
            return total
        return total + torch.exp(self.extra - torch.where(self.grown == -torch.inf, 0, self.grown))


@mistake(
    "own-sink-lost-in-the-first-tile",
    "the sum starts with the sink and the maximum with nothing, so that the first tile drops it",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkLost(Tiled):
    def start(
        self, column: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if sinks is None:
            return super().start(column, sinks)
        return torch.full_like(column, -torch.inf), column + sinks.to(column)[:, None, None].exp()


@mistake(
    "own-sink-unshifted",
    "e^z is added to a sum that is measured against the maximum",
    killed_by="sinks-are-added-to-the-denominator",
    features=SINKS,
)
class SinkUnshifted(DenseWithArguments):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        peak = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.sum(-1, keepdim=True)
        logits, visible = super().sink(scores, visible, sinks)
        low = torch.where(peak == -torch.inf, 0.0, peak)
        return torch.cat([scores, logits[..., -1:] + low], -1), visible


@mistake(
    "own-sink-minus-infinity-minus-itself",
    "a row that reads nothing is NaN where its sink is minus infinity",
    killed_by="a-sink-of-minus-infinity-is-no-sink",
    features=SINKS,
)
class SinkMinusItself(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores, visible = super().sink(scores, visible, sinks)
        return scores, visible | (torch.arange(visible.shape[-1]) == visible.shape[-1] - 1)


@mistake(
    "own-sink-minus-infinity-clamped",
    "a sink below -5 is taken for -5",
    killed_by="a-sink-of-minus-infinity-is-no-sink",
    features=SINKS,
)
class SinkClamped(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, sinks.clamp(min=-5.0))


@mistake(
    "own-sink-empty-row-mean",
    "a row that reads nothing but a sink is the mean of all values",
    killed_by="an-empty-row-with-a-sink-gives-zeros",
    features=SINKS,
)
class EmptyRowMean(DenseWithArguments):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        if self.call.get("sinks") is None:
            return weights
        empty = ~visible[..., :-1].any(-1, keepdim=True)
        return torch.where(empty, 1.0 / max(weights.shape[-1] - 1, 1), weights)


@mistake(
    "own-sink-empty-row-nan",
    "a row that reads nothing divides by the sum over its keys",
    killed_by="an-empty-row-with-a-sink-gives-zeros",
    features=SINKS,
)
class EmptyRowNan(DenseWithArguments):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        if self.call.get("sinks") is None:
            return weights
        share = weights[..., :-1].sum(-1, keepdim=True)
        # 0 / 0 if no key has weight
        return weights * (share / share)
