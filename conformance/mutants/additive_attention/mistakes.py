"""Mutants of additive attention: the network of the score, the softmax, padding and gradients."""

import torch

from attnspec.conformance.mutants.bases.additive_attention import (
    PlainAdditiveAttention,
    additive_mistake,
)

GITHUB = "https://github.com"


@additive_mistake(
    "ADD-04",
    "the tanh is left out",
    killed_by="additive-attention-equals-the-definition",
    source=f"{GITHUB}/AuCson/PyTorch-Batch-Attention-Seq2seq/issues/3",
)
class NoTanh(PlainAdditiveAttention):
    def squash(self, x: torch.Tensor) -> torch.Tensor:
        return x


@additive_mistake(
    "own-add-logistic",
    "the hidden channels are those of a logistic function",
    killed_by="additive-attention-equals-the-definition",
)
class Logistic(PlainAdditiveAttention):
    def squash(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)


@additive_mistake(
    "ADD-03",
    "the softmax runs over the queries",
    killed_by="additive-weights-sum-to-one",
    source=f"{GITHUB}/PetrochukM/PyTorch-NLP/issues/2",
)
class SoftmaxOverQueries(PlainAdditiveAttention):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -2).nan_to_num(0.0)


@additive_mistake(
    "own-add-masked-weights",
    "padding is hidden after the softmax, and the weights are not divided by their sum",
    killed_by="additive-weights-sum-to-one",
)
class MaskedWeights(PlainAdditiveAttention):
    mask: torch.Tensor | None = None

    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.mask = mask
        return scores

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        mask, self.mask = self.mask, None
        weights = super().weights(scores)
        return weights if mask is None else weights * mask


@additive_mistake(
    "own-add-recency",
    "later states score a little more",
    killed_by="the-order-of-states-does-not-matter",
)
class Recency(PlainAdditiveAttention):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return super().weights(scores + 0.01 * torch.arange(scores.shape[-1]))


@additive_mistake(
    "ADD-01",
    "padding is attended like real states",
    killed_by="padding-of-states-equals-a-shorter-text",
    source=f"{GITHUB}/tensorflow/tensorflow/issues/512",
)
class Unmasked(PlainAdditiveAttention):
    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scores


@additive_mistake(
    "own-add-polarity",
    "the mask is read as true for padding, unless it has none",
    killed_by="padding-of-states-equals-a-shorter-text",
)
class Polarity(PlainAdditiveAttention):
    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().masked(scores, torch.where(mask.all(-1, keepdim=True), mask, ~mask))


@additive_mistake(
    "own-add-zeroed-scores",
    "the score of padding is zero",
    killed_by="padded-states-reach-nothing",
)
class ZeroedScores(PlainAdditiveAttention):
    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scores * mask


@additive_mistake(
    "own-add-lowered-scores",
    "the score of padding is lowered by 100, which a steep score exceeds",
    killed_by="padded-states-reach-nothing",
)
class LoweredScores(PlainAdditiveAttention):
    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scores - 100.0 * ~mask


@additive_mistake(
    "own-add-centred-keys",
    "the mean key is subtracted from every key, as inner products allow",
    killed_by="a-shift-of-every-key-counts-like-one-of-the-queries",
)
class CentredKeys(PlainAdditiveAttention):
    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query + key - key.mean(2, keepdim=True)


@additive_mistake(
    "own-add-product",
    "projected queries and keys are multiplied",
    killed_by="a-shift-of-every-key-counts-like-one-of-the-queries",
)
class Multiplied(PlainAdditiveAttention):
    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query * key


@additive_mistake(
    "own-add-scaled",
    "the scores are divided by the root of the hidden width",
    killed_by="additive-scores-are-not-scaled",
)
class Scaled(PlainAdditiveAttention):
    def scores(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        w_score: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return super().scores(query, key, w_score / len(w_score) ** 0.5, bias)


@additive_mistake(
    "ADD-02",
    "the bias is left out",
    killed_by="the-bias-is-added-inside-the-tanh",
    source=f"{GITHUB}/OpenNMT/OpenNMT-py/pull/110",
)
class NoBias(PlainAdditiveAttention):
    def scores(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        w_score: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return super().scores(query, key, w_score, None)


@additive_mistake(
    "own-add-bias-twice",
    "the bias is added to the query and to the key",
    killed_by="the-bias-is-added-inside-the-tanh",
)
class BiasTwice(PlainAdditiveAttention):
    def scores(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        w_score: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return super().scores(query, key, w_score, None if bias is None else 2 * bias)


@additive_mistake(
    "own-add-overflowing-tanh",
    "tanh is computed from exponentials that overflow",
    killed_by="saturated-scores-are-equal",
)
class OverflowingTanh(PlainAdditiveAttention):
    def squash(self, x: torch.Tensor) -> torch.Tensor:
        doubled = (2 * x).exp()
        return (doubled - 1) / (doubled + 1)


@additive_mistake(
    "own-add-unstable-softmax",
    "the exponentials of the scores are taken as they are",
    killed_by="steep-scores-do-not-overflow",
)
class UnstableSoftmax(PlainAdditiveAttention):
    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        masses = scores.exp()
        return masses / masses.sum(-1, keepdim=True)


@additive_mistake(
    "own-add-first-text",
    "the keys of the first text serve all of them",
    killed_by="padding-of-states-equals-a-shorter-text",
)
class FirstText(PlainAdditiveAttention):
    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query + key[:1]


@additive_mistake(
    "own-add-shared-query",
    "the mean of all queries of a text is the query",
    killed_by="each-query-of-each-text-is-independent",
)
class SharedQuery(PlainAdditiveAttention):
    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query.mean(1, keepdim=True) + key).expand(-1, query.shape[1], -1, -1)


@additive_mistake(
    "own-add-in-place",
    "the weighted values take the place of the values",
    killed_by="states-are-read-by-their-strides-and-stay-as-they-are",
)
class InPlace(PlainAdditiveAttention):
    def mean(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mean(weights, value)
        if not value.requires_grad:
            value[:, :1] *= weights[:, :1, :1]
        return out


@additive_mistake(
    "own-add-constant-queries",
    "the backward pass takes the projected queries for constants",
    killed_by="gradients-of-additive-attention-equal-the-definition",
)
class ConstantQueries(PlainAdditiveAttention):
    def joined(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        # in half: what is detached altogether has no gradient, which shows at once
        return query / 2 + (query / 2).detach() + key


@additive_mistake(
    "own-add-slope-of-output",
    "the backward pass takes 1 − tanh for the slope of tanh",
    killed_by="gradients-of-additive-attention-equal-the-definition",
)
class WrongSlope(PlainAdditiveAttention):
    def squash(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x)
        slope = (1 - hidden).detach()
        return hidden.detach() + slope * (x - x.detach())
