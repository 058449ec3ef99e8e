"""Mutants of experts: wrong scores, biases, groups, capacity or gradients."""

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.experts import PlainExperts, experts_mistake, in_order
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.experts.regimes import AXES, call_of
from attnspec.spec.experts import ExpertsImplementation

SUM = "experts-give-the-weighted-sum-of-the-chosen"
BIASES = "each-expert-adds-its-own-biases"
GROUPS = "groups-of-tokens-have-any-size"


@experts_mistake("own-experts-unweighted", "the scores are forgotten", killed_by=SUM)
class Unweighted(PlainExperts):
    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return part


@experts_mistake("own-experts-squared", "the scores are multiplied in twice", killed_by=SUM)
class Squared(PlainExperts):
    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return part * scores * scores


@experts_mistake(
    "own-experts-first-plain",
    "expert 0 counts without its score",
    killed_by="permuted-experts-with-their-indices-change-nothing",
)
class FirstPlain(PlainExperts):
    is_first = False

    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_first = expert == 0
        return super().group(indices, expert)

    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return part if self.is_first else super().weigh(part, scores)


@experts_mistake(
    "own-experts-two-choices",
    "only the first two choices of a token count",
    killed_by="all-experts-give-the-dense-sum",
)
class TwoChoices(PlainExperts):
    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().group(indices[:, :2], expert)


@experts_mistake(
    "own-experts-down-bias", "the bias of an expert's down is forgotten", killed_by=BIASES
)
class NoDownBias(PlainExperts):
    def expert(
        self, x: torch.Tensor, weights: list[torch.Tensor], biases: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        return super().expert(x, weights, {n: b for n, b in biases.items() if n != "down_bias"})


@experts_mistake(
    "own-experts-bias-unweighted",
    "the bias of an expert's down is added without its score",
    killed_by=BIASES,
)
class BiasUnweighted(PlainExperts):
    bias: torch.Tensor | float = 0.0

    def expert(
        self, x: torch.Tensor, weights: list[torch.Tensor], biases: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        others = dict(biases)
        self.bias = others.pop("down_bias", 0.0)
        return super().expert(x, weights, others)

    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (super().weigh(part, scores) + self.bias).to(part.dtype)


@experts_mistake(
    "own-experts-capacity",
    "tokens beyond twice the mean number of an expert are dropped",
    killed_by="experts-treat-tokens-independently",
)
class Capacity(PlainExperts):
    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        token, place = super().group(indices, expert)
        capacity = max(2, 1 + indices.numel() // 4)
        return token[:capacity], place[:capacity]


@experts_mistake(
    "own-experts-tile-rest",
    "of more than 16 tokens of an expert, those after the last full tile of 16 are dropped",
    killed_by=GROUPS,
)
class TileRest(PlainExperts):
    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        token, place = super().group(indices, expert)
        kept = len(token) // 16 * 16 if len(token) > 16 else len(token)
        return token[:kept], place[:kept]


@experts_mistake(
    "own-experts-empty-shift",
    "groups are counted over experts with tokens, and weights over all",
    killed_by=GROUPS,
)
class EmptyShift(PlainExperts):
    def group(self, indices: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        hit = indices.unique()
        if expert >= len(hit):
            return super().group(indices, -1)
        return super().group(indices, int(hit[expert]))


@experts_mistake(
    "own-experts-shared-scored",
    "the shared expert is multiplied by the first score of a token",
    killed_by="a-shared-expert-adds-to-every-token",
)
class SharedScored(PlainExperts):
    def share(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        scores: torch.Tensor,
        shared: dict[str, torch.Tensor] | None,
    ) -> torch.Tensor:
        if shared is None:
            return out
        return out + self.expert(x, in_order(shared), {}) * scores[:, :1]


@experts_mistake(
    "own-experts-score-gradient",
    "the gradient of a score leaves out negative results",
    killed_by="gradients-of-experts-equal-the-definition",
)
class ScoreGradient(PlainExperts):
    def weigh(self, part: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        exact = super().weigh(part, scores.detach())
        slope = functional.relu(part.detach()) * scores
        return exact + slope - slope.detach()


plant(
    id="own-experts-wrong-at-64",
    title="wrong if an expert has 64 tokens or more",
    subject=ExpertsImplementation(
        name="wrong_at_64",
        function=wrong_at(PlainExperts(), call_of, AXES, ("group", "64 and more")),
        features=frozenset({"bias", "shared"}),
    ),
    killed_by="experts-are-right-in-every-two-regimes",
)

plant(
    id="own-experts-wrong-at-rows-apart",
    title="wrong if tokens lie apart in memory",
    subject=ExpertsImplementation(
        name="wrong_at_rows_apart",
        function=wrong_at(PlainExperts(), call_of, AXES, ("layout", "rows apart")),
        features=frozenset({"bias", "shared"}),
    ),
    killed_by="experts-are-right-in-every-two-regimes",
)

plant(
    id="own-experts-wrong-at-transposed-weights",
    title="wrong if matrices are transposed views",
    subject=ExpertsImplementation(
        name="wrong_at_transposed_weights",
        function=wrong_at(PlainExperts(), call_of, AXES, ("weights", "transposed")),
        features=frozenset({"bias", "shared"}),
    ),
    killed_by="experts-are-right-in-every-two-regimes",
)
