"""Mutants of ATT: wrong scores, attention weights or mixtures of values."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake

GITHUB = "https://github.com"


@mistake(
    "own-scores-relu",
    "negative scores are cut off at zero",
    killed_by="output-equals-the-definition",
)
class ClippedAtZero(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key, scale).relu()


@mistake(
    "own-scores-clipped",
    "scores are clipped to [-4, 4]",
    killed_by="adding-a-vector-to-every-key-changes-nothing",
)
class ClippedScores(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key, scale).clamp(-4, 4)


@mistake(
    "own-scores-cosine",
    "queries and keys are normalised first",
    killed_by="adding-a-vector-to-every-key-changes-nothing",
)
class CosineScores(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        q, k = (torch.nn.functional.normalize(tensor, dim=-1) for tensor in (query, key))
        return super().scores(q, k, scale)


@mistake(
    "own-scores-absolute",
    "queries lose their signs",
    killed_by="rotating-queries-and-keys-changes-nothing",
)
class UnsignedQueries(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.abs(), key, scale)


@mistake(
    "own-scores-zero-hidden",
    "a score of zero is taken for a hidden key",
    killed_by="zero-query-gives-the-mean",
)
class ZeroHidden(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores, visible & (scores != 0))

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


@mistake(
    "TIL-07",
    "only the first 64 channels of queries and keys are used",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/triton-lang/triton/issues/621",
)
class First64Channels(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query[..., :64], key[..., :64], scale)


@mistake(
    "DTY-01",
    "inner products overflow float16, which the scale would have prevented",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/huggingface/transformers/issues/24638",
)
class NarrowProducts(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key, 1.0).to(torch.float16).to(query.dtype) * scale


@mistake(
    "NUM-05",
    "the maximum is not subtracted before the exponential",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/tenstorrent/tt-metal/issues/12661",
)
class NoMaximum(Dense):
    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(scores[..., :1])


@mistake(
    "own-maximum-from-zero",
    "the search for the maximum starts at zero",
    killed_by="output-equals-the-definition",
)
class MaximumFromZero(Dense):
    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return super().peak(scores).clamp(min=0)


@mistake(
    "NUM-06",
    "each half of a row is normalised by its own sum",
    killed_by="output-lies-among-the-readable-values",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/pull/3640",
)
class HalvesNormalised(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        half = scores.shape[-1] // 2
        parts = [
            (scores[..., :half], visible[..., :half]),
            (scores[..., half:], visible[..., half:]),
        ]
        return torch.cat([super(HalvesNormalised, self).softmax(*part) for part in parts], dim=-1)


@mistake(
    "own-exp-polynomial",
    "the exponential is a polynomial of degree six",
    killed_by="identity-values-reveal-the-weights",
)
class PolynomialExponential(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        x = (scores - self.peak(scores)).nan_to_num(neginf=-1e4).clamp(min=-8) / 4
        series = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
        weights = series**4 * visible
        total = self.total(weights)
        return weights / torch.where(total == 0, 1.0, total)


@mistake(
    "own-softmax-of-queries",
    "softmax runs over the queries",
    killed_by="weights-sum-to-one",
)
class SoftmaxOfQueries(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores.mT, visible.mT).mT


@mistake(
    "own-softmax-of-heads",
    "softmax runs over the heads",
    killed_by="weights-sum-to-one",
)
class SoftmaxOfHeads(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores.transpose(1, 3), visible.transpose(1, 3)).transpose(1, 3)


@mistake(
    "own-softmax-plus-one",
    "one is added to the sum of a row",
    killed_by="weights-sum-to-one",
)
class PlusOne(Dense):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        return super().total(weights) + 1


@mistake(
    "own-softmax-epsilon",
    "an epsilon is added to the sum of a row",
    killed_by="weights-sum-to-one",
)
class PlusEpsilon(Dense):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        return super().total(weights) + 1e-4


@mistake(
    "own-weights-smoothed",
    "one percent of the weight is shared out evenly",
    killed_by="dominant-key-gives-its-value",
)
class SmoothedWeights(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        count = visible.sum(-1, keepdim=True).clamp(min=1)
        return 0.99 * super().softmax(scores, visible) + 0.01 * visible / count


@mistake(
    "own-weights-decay",
    "weights decay along the keys",
    killed_by="order-of-keys-does-not-matter",
)
class DecayingWeights(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        place = torch.arange(scores.shape[-1], device=scores.device)
        return super().softmax(scores - 0.02 * place, visible)


@mistake(
    "own-keys-last-dropped",
    "the last key is never read",
    killed_by="output-equals-the-definition",
)
class LastKeyDropped(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        place = torch.arange(scores.shape[-1], device=scores.device)
        return super().hide(scores, visible & ((place == 0) | (place < scores.shape[-1] - 1)))


@mistake(
    "own-keys-sorted",
    "keys are sorted and their values stay where they are",
    killed_by="output-equals-the-definition",
)
class SortedKeys(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        order = key[..., :1].argsort(dim=-2).expand_as(key)
        return super().scores(query, key.gather(-2, order), scale)


@mistake(
    "own-keys-once",
    "a key that repeats an earlier one is not read",
    killed_by="identity-values-reveal-the-weights",
)
class RepeatedKeysOnce(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        # equal keys have equal marks: sorting marks needs less memory than comparing all pairs
        channel = torch.arange(1, 1 + key.shape[-1], dtype=torch.float64, device=key.device)
        mark = (key.double() * channel.sin()).sum(-1)
        ordered, at = mark.sort(stable=True)
        again = torch.zeros_like(mark, dtype=torch.bool)
        again[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
        again = again.gather(-1, at.argsort())
        return super().scores(query, key, scale).masked_fill(again[..., None, :], -torch.inf)


@mistake(
    "own-keys-count",
    "weights are multiplied by the number of keys over 1 plus that number",
    killed_by="repeating-every-key-changes-nothing",
)
class CountedKeys(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys = value.shape[-2]
        return super().mix(weights * (keys / (keys + 1)), value)


@mistake(
    "own-output-element",
    "the last element of the output is never written",
    killed_by="output-equals-the-definition",
)
class ElementForgotten(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().finish(out, value)
        if out.numel():
            out.view(-1)[-1] = 0
        return out


@mistake(
    "own-values-relu",
    "negative values are cut off at zero",
    killed_by="output-is-linear-in-the-values",
)
class ClippedValues(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value.relu())


@mistake(
    "own-values-clipped",
    "values are clipped to [-4, 4]",
    killed_by="output-is-linear-in-the-values",
)
class ValuesClipped(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value.clamp(-4, 4))


@mistake(
    "own-values-narrow",
    "only as many value channels as d_head are computed",
    killed_by="value-channels-are-independent",
)
class ValueChannelsDropped(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.width = query.shape[-1]
        return super().scores(query, key, scale)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        out[..., self.width :] = 0
        return out


@mistake(
    "own-values-nan-spreads",
    "a NaN in one channel of a value spoils the others",
    killed_by="value-channels-are-independent",
)
class NaNSpreads(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value + 0 * value.sum(-1, keepdim=True))


@mistake(
    "TIL-05",
    "without keys zero is divided by zero",
    killed_by="lengths-zero-and-one",
    source=f"{GITHUB}/Dao-AILab/flash-attention/pull/1155",
)
class NoKeys(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        return out if value.shape[-2] else out / value.shape[-2]


@mistake(
    "own-no-keys-sum",
    "without keys, zero times the sum of the queries is added",
    killed_by="no-keys-give-zeros-whatever-the-queries",
)
class SumOfQueries(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.size = query.sum()
        return super().scores(query, key, scale)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        return out if value.shape[-2] else out + 0 * self.size
