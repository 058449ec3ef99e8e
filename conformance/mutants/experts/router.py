"""Mutants of routers: a wrong choice, scores of another softmax, a missing bias or gradient."""

import torch

from attnspec.conformance.mutants.bases.experts import PlainRouter, router_mistake
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.experts.router_regimes import AXES, call_of
from attnspec.spec.experts import RouterImplementation, RouterProfile, RouterScores, RouterTies

CHOICE = "router-chooses-the-largest-logits"
TIES = "equal-logits-are-chosen-as-declared"
SCORES = "router-scores-are-the-declared-function"
SUM = "router-scores-are-renormalized-as-declared"
BEFORE = RouterProfile(scores=RouterScores.SOFTMAX_ALL)


@router_mistake("own-router-smallest", "the experts of the smallest logits", killed_by=CHOICE)
class Smallest(PlainRouter):
    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        return super().choose(-logits, top_k)


@router_mistake("own-router-magnitude", "the largest magnitudes of logits", killed_by=CHOICE)
class LargestMagnitude(PlainRouter):
    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        return super().choose(logits.abs(), top_k)


@router_mistake(
    "own-router-ties-skipped",
    "every expert whose logit equals a chosen one is passed over",
    killed_by=TIES,
)
class TiesSkipped(PlainRouter):
    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        left, chosen = logits.clone(), []
        for _ in range(top_k):
            top = left.argmax(-1, keepdim=True)
            chosen.append(top)
            is_taken = torch.zeros_like(left, dtype=torch.bool)
            for each in chosen:
                is_taken = is_taken.scatter(-1, each, True)
            left = torch.where(left == left.gather(-1, top), -1e4, left)
            left = left.masked_fill(is_taken, -torch.inf)
        return torch.cat(chosen, -1)


@router_mistake(
    "own-router-ties-highest",
    "of experts with equal logits the highest is chosen; the lowest is declared",
    killed_by=TIES,
    profile=RouterProfile(ties=RouterTies.LOWEST),
)
class TiesHighest(PlainRouter):
    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        return logits.shape[-1] - 1 - super().choose(logits.flip(-1), top_k)


@router_mistake(
    "own-router-softmax-after",
    "the softmax is taken after the choice instead of before it",
    killed_by=SCORES,
    profile=BEFORE,
)
class SoftmaxAfter(PlainRouter):
    def score(self, logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits.gather(-1, indices), -1)


@router_mistake(
    "own-router-softmax-before",
    "the softmax is taken before the choice instead of after it",
    killed_by=SCORES,
)
class SoftmaxBefore(PlainRouter):
    def score(self, logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits, -1).gather(-1, indices)


@router_mistake(
    "own-router-not-renormalized",
    "scores of a softmax over all experts are not renormalized",
    killed_by=SUM,
    profile=RouterProfile(scores=RouterScores.SOFTMAX_ALL, renormalized=True),
)
class NotRenormalized(PlainRouter):
    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        return scores


@router_mistake(
    "own-router-renormalized",
    "scores are renormalized although they keep their sum",
    killed_by=SUM,
    profile=BEFORE,
)
class Renormalized(PlainRouter):
    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        return scores / scores.sum(-1, keepdim=True)


@router_mistake(
    "own-router-bias", "the bias of the router is forgotten", killed_by="router-adds-its-bias"
)
class NoBias(PlainRouter):
    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        top_k: int,
        *,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().__call__(x, weight, top_k)


@router_mistake(
    "own-router-halves",
    "experts are chosen from the first half first",
    killed_by="permuted-router-rows-permute-the-choice",
)
class FirstHalf(PlainRouter):
    def choose(self, logits: torch.Tensor, top_k: int) -> torch.Tensor:
        half = (logits.shape[-1] + 1) // 2
        if top_k > half:
            return super().choose(logits, top_k)
        return super().choose(logits[:, :half], top_k)


@router_mistake(
    "own-router-detached-sum",
    "the denominator of the softmax has no gradient",
    killed_by="gradients-of-the-router-equal-the-definition",
)
class DetachedSum(PlainRouter):
    def score(self, logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        chosen = logits.gather(-1, indices)
        weights = torch.exp(chosen - chosen.amax(-1, keepdim=True).detach())
        return weights / weights.sum(-1, keepdim=True).detach()


plant(
    id="own-router-wrong-at-128",
    title="wrong at 128 experts and more",
    subject=RouterImplementation(
        name="wrong_at_128",
        function=wrong_at(PlainRouter(), call_of, AXES, ("experts", "128 and more")),
        features=frozenset({"bias"}),
    ),
    killed_by="a-router-is-right-in-every-two-regimes",
)

plant(
    id="own-router-wrong-at-rows-apart",
    title="a router is wrong if tokens lie apart in memory",
    subject=RouterImplementation(
        name="wrong_at_rows_apart",
        function=wrong_at(PlainRouter(), call_of, AXES, ("layout", "rows apart")),
        features=frozenset({"bias"}),
    ),
    killed_by="a-router-is-right-in-every-two-regimes",
)

plant(
    id="own-router-wrong-at-transposed-weights",
    title="a router is wrong if its matrix is a transposed view",
    subject=RouterImplementation(
        name="wrong_at_transposed_weights",
        function=wrong_at(PlainRouter(), call_of, AXES, ("weights", "transposed")),
        features=frozenset({"bias"}),
    ),
    killed_by="a-router-is-right-in-every-two-regimes",
)
