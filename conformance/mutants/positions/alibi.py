"""Mutants of POS: wrong slopes, wrong distances, or a bias added at the wrong place."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

GITHUB = "https://github.com"
ALIBI = {Feature.ALIBI}


@mistake(
    "POS-02",
    "slopes of a number of heads that is no power of two are one geometric sequence",
    killed_by="slopes-equal-the-published-ones",
    source=f"{GITHUB}/ml-explore/mlx/issues/343",
    features=ALIBI,
)
class OneSequence(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        head = torch.arange(1, len(slopes) + 1).to(slopes)
        return super().add_alibi(scores, 2 ** (-8 * head / len(slopes)))


@mistake(
    "own-alibi-slopes-in-16-bits",
    "slopes are rounded to the dtype of the query",
    killed_by="slopes-are-not-rounded-to-the-dtype-of-the-query",
    features=ALIBI,
)
class SlopesRounded(DenseWithArguments):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes.to(self.call["query"].dtype).to(slopes))


@mistake(
    "POS-03",
    "slopes begin with 1",
    killed_by="slopes-equal-the-published-ones",
    source=f"{GITHUB}/paiml/aprender/pull/2143",
    features=ALIBI,
)
class BeginsWithOne(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        head = torch.arange(len(slopes)).to(slopes)
        return super().add_alibi(scores, 2 ** (-8 * head / len(slopes)))


@mistake(
    "POS-04",
    "distances are built over as many keys as there are queries",
    killed_by="slopes-equal-the-published-ones",
    source=f"{GITHUB}/keras-team/keras-hub/issues/2861",
    features=ALIBI,
)
class DistanceOfQueries(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        key = torch.arange(keys).clamp(max=max(queries - 1, 0))
        distance = (key - torch.arange(queries)[:, None]).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-sign",
    "distant keys gain instead of losing",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class Sign(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, -slopes)


@mistake(
    "own-alibi-past-only",
    "keys after the query lose nothing",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class PastOnly(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        after = self.displacement(*scores.shape[-2:]).clamp(max=0).to(scores)
        return scores + slopes[:, None, None] * after


@mistake(
    "own-alibi-from-the-last-key",
    "the distance is that from the last key, which is right under a causal flag alone",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class FromTheLastKey(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        keys = scores.shape[-1]
        return scores - slopes[:, None, None] * (keys - 1 - torch.arange(keys)).to(scores)


@mistake(
    "own-alibi-other-corner",
    "distances are aligned lower-right",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class OtherCorner(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        distance = (self.displacement(queries, keys) - (keys - queries)).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-squared",
    "the square of the distance is taken",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class Squared(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = self.displacement(*scores.shape[-2:]).to(scores)
        return scores - slopes[:, None, None] * distance.square()


@mistake(
    "own-alibi-own-place-counts",
    "the distance begins with 1, which only a sink feels",
    killed_by="alibi-lowers-scores-by-distance",
    features={Feature.ALIBI, Feature.SINKS},
)
class OwnPlaceCounts(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes) - slopes[:, None, None]


@mistake(
    "own-alibi-scaled",
    "what the distance takes is multiplied by the scale",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class Scaled(Dense):
    factor = 1.0

    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        self.factor = super().scale(query, value, scale)
        return self.factor

    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes * self.factor)


@mistake(
    "own-alibi-capped",
    "the softcap bounds what the distance takes",
    killed_by="alibi-is-added-after-scale-and-softcap",
    features={Feature.ALIBI, Feature.SOFTCAP},
)
class Capped(DenseWithArguments):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        if self.call.get("alibi_slopes") is None:
            return super().cap(scores, softcap)
        return scores

    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        biased = super().add_alibi(scores, slopes)
        softcap = self.call.get("softcap")
        return biased if softcap is None else super().cap(biased, softcap)


@mistake(
    "own-alibi-of-the-first-head",
    "all heads use the first slope",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class FirstSlope(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes[:1].expand_as(slopes))


@mistake(
    "own-alibi-by-group",
    "the heads of a group share the slope of their group's number",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class SlopeByGroup(DenseWithArguments):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        kv_heads = self.call["key"].shape[1]
        return super().add_alibi(
            scores, slopes[:kv_heads].repeat_interleave(len(slopes) // kv_heads)
        )


@mistake(
    "own-alibi-instead-of-mask",
    "slopes take the place of a float mask",
    killed_by="alibi-and-a-float-mask-add",
    features=ALIBI,
)
class InsteadOfMask(DenseWithArguments):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (
            scores if self.call.get("alibi_slopes") is not None else super().add_bias(scores, bias)
        )


@mistake(
    "own-alibi-lost-beside-mask",
    "slopes are dropped if a mask is given",
    killed_by="alibi-and-a-float-mask-add",
    features=ALIBI,
)
class LostBesideMask(DenseWithArguments):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return (
            scores if self.call.get("attn_mask") is not None else super().add_alibi(scores, slopes)
        )


@mistake(
    "own-alibi-byte-distance",
    "distances beyond 255 begin again with 0",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class ByteDistance(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = (self.displacement(*scores.shape[-2:]).abs() % 256).to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-per-tile",
    "distances begin again in every tile of keys",
    killed_by="alibi-lowers-scores-by-distance",
    features=ALIBI,
)
class PerTile(Tiled):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        key = torch.arange(keys) % self.tile
        distance = (key - torch.arange(queries)[:, None]).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-zero-is-none",
    "slopes are dropped in all heads if the first is zero",
    killed_by="a-slope-of-zero-changes-nothing",
    features=ALIBI,
)
class ZeroIsNone(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return scores if float(slopes[0]) == 0 else super().add_alibi(scores, slopes)


@mistake(
    "own-alibi-size-of-slopes",
    "slopes below zero lose their sign",
    killed_by="slopes-may-have-any-sign",
    features=ALIBI,
)
class SizeOfSlopes(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes.abs())


@mistake(
    "own-alibi-positive-slopes-only",
    "slopes below zero count as zero",
    killed_by="slopes-may-have-any-sign",
    features=ALIBI,
)
class PositiveSlopesOnly(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().add_alibi(scores, slopes.clamp(min=0))
