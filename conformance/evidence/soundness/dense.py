"""Correct attentions that compute all scores at once; gradients by autograd.

Each class overrides steps of the correct base of the mutants, which shares no code with the
reference.
"""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.equivalent import ScaledKeys


class LibrarySoftmax(Dense):
    """An attention with PyTorch's softmax, which has a backward formula of its own."""

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        reads = visible.any(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(~reads, 0.0), -1)
        return weights.masked_fill(~visible, 0.0)


class ShuffledKeys(ScaledKeys, LibrarySoftmax):
    """An attention that sums over keys in another order.

    Queries and keys are multiplied by the root of the scale each.
    """

    def order(self, keys: int) -> torch.Tensor:
        """Return a permutation of the keys."""
        return torch.randperm(keys, generator=torch.Generator().manual_seed(keys))

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        # the order matters to the gradient of the queries, a sum over keys
        order = self.order(key.shape[2])
        return super().scores(query, key[:, :, order], scale)[..., order.argsort()]

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        order = self.order(scores.shape[-1])
        weights = super().softmax(scores[..., order], visible[..., order])
        return weights[..., order.argsort()]

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores[..., self.order(scores.shape[-1])])

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        order = self.order(value.shape[2])
        return super().mix(weights[..., order], value[:, :, order])


class Narrow(Dense):
    """An attention that rounds every step to the storage type, except the log-sum-exp."""

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores.to(super().wide(scores.dtype)))


class NarrowLibrarySoftmax(Narrow, LibrarySoftmax):
    """An attention in the storage type, with PyTorch's softmax."""


class NarrowScaledQuery(Narrow):
    """An attention in the storage type that scales the queries, not the scores."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query * scale, key, 1.0)
