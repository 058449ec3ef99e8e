"""A correct additive attention whose steps mutants replace."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.additive_attention import AdditiveAttentionImplementation


class PlainAdditiveAttention:
    """An additive attention in torch's own operations, which computes in float32 or wider."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        w_query: torch.Tensor,
        w_key: torch.Tensor,
        w_score: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the mean of the values by additive scores."""
        dtype = query.dtype
        wide = dtype if dtype == torch.float64 else torch.float32
        query, key, value = query.to(wide), key.to(wide), value.to(wide)
        w_query, w_key, w_score = w_query.to(wide), w_key.to(wide), w_score.to(wide)
        bias = None if bias is None else bias.to(wide)
        scores = self.scores(query @ w_query.mT, key @ w_key.mT, w_score, bias)
        if mask is not None:
            scores = self.masked(scores, mask[:, None])
        return self.mean(self.weights(scores), value).to(dtype)

    def scores(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        w_score: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the scores of projected queries and keys."""
        total = self.joined(query[:, :, None], key[:, None])
        if bias is not None:
            total = total + bias
        return self.squash(total) @ w_score

    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return what queries and keys are together."""
        return query + key

    def squash(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hidden channels."""
        return torch.tanh(x)

    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return scores whose padding is hidden."""
        return scores.masked_fill(~mask, -torch.inf)

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the weights of scores."""
        return torch.softmax(scores, -1)

    def mean(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the weighted values."""
        return weights @ value


def correct(
    name: str = "correct", base: type[PlainAdditiveAttention] = PlainAdditiveAttention
) -> AdditiveAttentionImplementation:
    """Return the declaration of an additive attention of a base."""
    return AdditiveAttentionImplementation(
        name=name, function=base(), features=AdditiveAttentionImplementation.FEATURES
    )


def additive_mistake(
    identifier: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[Any], Any]:
    """Plant a class as a mutant."""

    def register(base: type[PlainAdditiveAttention]) -> type[PlainAdditiveAttention]:
        subject = correct(identifier, base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
