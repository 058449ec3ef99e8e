"""BERTs with one mistake each, by which a wrong result is explained; mutants are made of them."""

import torch
from torch.nn import functional

from attnspec.conformance.operators.bert.steps import Steps


class Causal(Steps):
    title = "a causal mask hides later tokens"

    def visible(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super().visible(ids, mask).tril()


class PreNorm(Steps):
    title = "LayerNorm precedes each branch (pre-norm)"

    def block(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x, f"{name}.attention.output.LayerNorm")
        x = x + self.attend(f"{name}.attention", normed, visible)
        return x + self.feed_forward(name, self.norm(x, f"{name}.output.LayerNorm"))


class NoResidual(Steps):
    title = "the states are not added to the attention"

    def block(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        attended = self.attend(f"{name}.attention", x, visible)
        x = self.norm(attended, f"{name}.attention.output.LayerNorm")
        return self.norm(x + self.feed_forward(name, x), f"{name}.output.LayerNorm")


class TanhGELU(Steps):
    title = "the activation is the tanh form of GELU whatever the configuration says"

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")


class ErfGELU(Steps):
    title = "the activation is the erf form of GELU whatever the configuration says"

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x)


class NoMask(Steps):
    title = "padding is attended like real tokens"

    def visible(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super().visible(ids, None)


class LoweredPadding(Steps):
    title = "the scores of padding are lowered by one, and count"

    def attend(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        heads = self.config.num_attention_heads
        query, key, value = (
            self.split(self.linear(x, f"{name}.self.{part}"), heads)
            for part in ("query", "key", "value")
        )
        scores = (query @ key.mT) * self.scale(query.shape[-1]) + (visible.to(x.dtype) - 1)
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(-2)
        return self.linear(mixed, f"{name}.output.dense")


class NoTypes(Steps):
    title = "token types are ignored"

    def types(self, types: torch.Tensor) -> torch.Tensor:
        return super().types(torch.zeros_like(types))


class NoTypeRow(Steps):
    title = "no row of the token types is added"

    def types(self, types: torch.Tensor) -> torch.Tensor:
        return 0 * super().types(types)


class NoPositions(Steps):
    title = "no row of the positions is added"

    def positions(self, places: torch.Tensor) -> torch.Tensor:
        return 0 * super().positions(places)


class PositionsFromOne(Steps):
    title = "positions count from one"

    def positions(self, places: torch.Tensor) -> torch.Tensor:
        table = self.weights["bert.embeddings.position_embeddings.weight"]
        return table.roll(-1, 0)[places]


class PositionsOfSlots(Steps):
    title = "padding before a token moves its position"

    def places(self, real: torch.Tensor) -> torch.Tensor:
        return torch.arange(real.shape[1]).repeat(len(real), 1)


class PositionsOfRealTokens(Steps):
    title = "positions count real tokens alone"

    def places(self, real: torch.Tensor) -> torch.Tensor:
        return (real.cumsum(1) - 1).clamp(min=0)


class MaskAsLength(Steps):
    title = "the mask is read as a number of tokens, as if padding followed the text"

    def real(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        real = super().real(ids, mask)
        return torch.arange(real.shape[1]) < real.sum(1, keepdim=True)


class NoEmbeddingNorm(Steps):
    title = "the embeddings are not normalized"

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x if name == "bert.embeddings.LayerNorm" else super().norm(x, name)


class FixedEpsilon(Steps):
    title = "epsilon is 1e-5 whatever the configuration says"

    def epsilon(self, name: str) -> float:
        return 1e-5


class ScaleOfModel(Steps):
    title = "scores are scaled by the width of the model, not of a head"

    def scale(self, d_head: int) -> float:
        return float(self.config.hidden_size**-0.5)


class Unscaled(Steps):
    title = "scores are not scaled"

    def scale(self, d_head: int) -> float:
        return 1.0


class HeadsInterleaved(Steps):
    title = "neighbouring channels belong to different heads"

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        parts: torch.Tensor = x.unflatten(-1, (-1, heads))
        return parts.movedim(-1, 1)


class PoolsLast(Steps):
    title = "the pooler reads the last position"

    def pooled(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x[:, -1], "bert.pooler.dense"))


class PoolsFirstSlot(Steps):
    title = "the pooler reads the first slot, which may be padding"

    def first(self, real: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(real), dtype=torch.long)


class PoolsFirstRealToken(Steps):
    title = "the pooler reads the first real token, not the first slot"

    def first(self, real: torch.Tensor) -> torch.Tensor:
        return torch.tensor([row.nonzero()[0, 0] for row in real])


class PoolsMean(Steps):
    title = "the pooler reads the mean of all positions"

    def pooled(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x.mean(1), "bert.pooler.dense"))


class PoolsLinearly(Steps):
    title = "the pooler has no tanh"

    def pooled(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.linear(x[:, 0], "bert.pooler.dense")


class NoHeadNorm(Steps):
    title = "the head has no LayerNorm"

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x if name.startswith("cls.") else super().norm(x, name)


class NoTransform(Steps):
    title = "the head multiplies the states by the token table at once"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        table = self.weights["bert.embeddings.word_embeddings.weight"]
        return functional.linear(x, table, self.weights["cls.predictions.bias"])


class NoHeadBias(Steps):
    title = "the head has no bias"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(x) - self.weights["cls.predictions.bias"]


MISTAKES: tuple[type[Steps], ...] = (
    *(Causal, PreNorm, NoResidual, TanhGELU, ErfGELU, NoMask, LoweredPadding),
    *(NoTypes, NoTypeRow, NoPositions, PositionsFromOne, NoEmbeddingNorm, FixedEpsilon),
    *(ScaleOfModel, Unscaled, HeadsInterleaved, PositionsOfSlots, PositionsOfRealTokens),
    *(MaskAsLength, PoolsLast, PoolsFirstSlot, PoolsFirstRealToken, PoolsMean, PoolsLinearly),
    *(NoHeadNorm, NoTransform, NoHeadBias),
)
"""Models with one mistake each."""
