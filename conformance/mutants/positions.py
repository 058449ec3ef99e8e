"""Mutants of POS: slopes of other heads, distances from other places, a bias in other units."""

import torch

from attnspec.conformance.mutants.attention_pairs import Noticing
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import Feature

GITHUB = "https://github.com"
ALIBI = {Feature.ALIBI}
VALUE = "alibi-lowers-scores-by-distance"
JOINS = "alibi-joins-after-scale-and-softcap"
ADD = "alibi-and-a-float-mask-add"
ZERO = "a-slope-of-zero-takes-nothing-from-its-head"
PRESS = "heads-lean-by-the-published-slopes"


@mistake(
    "POS-02",
    "slopes of a number of heads that is no power of two are one geometric sequence",
    kills=(PRESS, VALUE, ZERO),
    source=f"{GITHUB}/ml-explore/mlx/issues/343",
    features=ALIBI,
)
class OneSequence(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        head = torch.arange(1, len(slopes) + 1).to(slopes)
        return super().lean(scores, 2 ** (-8 * head / len(slopes)))


@mistake(
    "POS-03",
    "slopes begin with 1",
    kills=(PRESS, VALUE, ZERO),
    source=f"{GITHUB}/paiml/aprender/pull/2143",
    features=ALIBI,
)
class BeginsWithOne(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        head = torch.arange(len(slopes)).to(slopes)
        return super().lean(scores, 2 ** (-8 * head / len(slopes)))


@mistake(
    "POS-04",
    "distances are built over as many keys as there are queries",
    kills=(PRESS, VALUE, JOINS, ADD),
    source=f"{GITHUB}/keras-team/keras-hub/issues/2861",
    features=ALIBI,
)
class DistanceOfQueries(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        key = torch.arange(keys).clamp(max=max(queries - 1, 0))
        distance = (key - torch.arange(queries)[:, None]).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-sign",
    "distant keys gain instead of losing",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class Sign(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().lean(scores, -slopes)


@mistake(
    "own-alibi-past-only",
    "keys after the query lose nothing",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class PastOnly(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        after = self.displacement(*scores.shape[-2:]).clamp(max=0).to(scores)
        return scores + slopes[:, None, None] * after


@mistake(
    "own-alibi-from-the-last-key",
    "the distance is that from the last key, which is right under a causal flag alone",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class FromTheLastKey(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        keys = scores.shape[-1]
        return scores - slopes[:, None, None] * (keys - 1 - torch.arange(keys)).to(scores)


@mistake(
    "own-alibi-other-corner",
    "distances are aligned lower-right",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class OtherCorner(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        distance = (self.displacement(queries, keys) - (keys - queries)).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-squared",
    "the square of the distance is taken",
    kills=(VALUE, JOINS, ADD, PRESS),
    features=ALIBI,
)
class Squared(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = self.displacement(*scores.shape[-2:]).to(scores)
        return scores - slopes[:, None, None] * distance.square()


@mistake(
    "own-alibi-own-place-counts",
    "the distance begins with 1, which only a sink feels",
    kills=(VALUE,),
    features={Feature.ALIBI, Feature.SINKS},
)
class OwnPlaceCounts(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().lean(scores, slopes) - slopes[:, None, None]


@mistake(
    "own-alibi-scaled",
    "what the distance takes is multiplied by the scale",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class Scaled(Dense):
    factor = 1.0

    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        self.factor = super().scale(query, value, scale)
        return self.factor

    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().lean(scores, slopes * self.factor)


@mistake(
    "own-alibi-capped",
    "the softcap bounds what the distance takes",
    kills=(VALUE, JOINS, ADD),
    features={Feature.ALIBI, Feature.SOFTCAP},
)
class Capped(Noticing):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        if self.given.get("alibi_slopes") is None:
            return super().cap(scores, softcap)
        return scores

    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        leaning = super().lean(scores, slopes)
        softcap = self.given.get("softcap")
        return leaning if softcap is None else super().cap(leaning, softcap)


@mistake(
    "own-alibi-of-the-first-head",
    "all heads use the first slope",
    kills=(VALUE, JOINS, ADD, PRESS, ZERO),
    features=ALIBI,
)
class FirstSlope(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return super().lean(scores, slopes[:1].expand_as(slopes))


@mistake(
    "own-alibi-by-group",
    "the heads of a group share the slope of their group's number",
    kills=(VALUE, PRESS, ZERO),
    features=ALIBI,
)
class SlopeByGroup(Noticing):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        kv_heads = self.given["key"].shape[1]
        return super().lean(scores, slopes[:kv_heads].repeat_interleave(len(slopes) // kv_heads))


@mistake(
    "own-alibi-instead-of-mask",
    "slopes take the place of a float mask",
    kills=(ADD,),
    features=ALIBI,
)
class InsteadOfMask(Noticing):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (
            scores if self.given.get("alibi_slopes") is not None else super().add_bias(scores, bias)
        )


@mistake(
    "own-alibi-lost-beside-mask",
    "slopes are dropped where a mask is given",
    kills=(ADD,),
    features=ALIBI,
)
class LostBesideMask(Noticing):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return scores if self.given.get("attn_mask") is not None else super().lean(scores, slopes)


@mistake(
    "own-alibi-byte-distance",
    "distances beyond 255 begin again with 0",
    kills=(VALUE,),
    features=ALIBI,
)
class ByteDistance(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = (self.displacement(*scores.shape[-2:]).abs() % 256).to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-per-tile",
    "distances begin again in every tile of keys",
    kills=(VALUE, JOINS, ADD, PRESS),
    features=ALIBI,
)
class PerTile(Tiled):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        key = torch.arange(keys) % self.tile
        distance = (key - torch.arange(queries)[:, None]).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-alibi-zero-is-none",
    "slopes are dropped in all heads where the first is zero",
    kills=(ZERO,),
    features=ALIBI,
)
class ZeroIsNone(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return scores if float(slopes[0]) == 0 else super().lean(scores, slopes)
