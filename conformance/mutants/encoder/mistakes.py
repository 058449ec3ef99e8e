"""Mutants of a BERT: those that a failure is explained by, and two more."""

import torch

from attnspec.conformance.mutants.bases.bert import bert_mistake, encoder_mistake
from attnspec.conformance.operators.bert import mistakes
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.spec.encoder import BertProfile, Pooled
from attnspec.spec.padding import PaddedPositions

GITHUB = "https://github.com"
_STATES = "every-state-of-an-encoder-equals-the-definition"
_LOGITS = "masked-language-logits-equal-the-definition"
_HEADS = "heads-of-an-encoder-are-runs-of-channels"
_POOLER = "the-pooler-reads-the-first-position"
_EMBEDDINGS = "embeddings-are-a-normalized-sum"
_ACTIVATION = "an-encoder-uses-the-configured-activation"
_PADDING = "a-padded-token-reaches-nothing"
_ANY_PADDING = "padding-anywhere-leaves-tokens-what-they-have-alone"
_POOLED_WITH_PADDING = "the-pooler-reads-the-declared-slot-of-a-padded-text"
_TYPES = "token-types-add-their-row"
_EPSILON = "an-encoder-adds-the-configured-epsilon"
_DEFAULT = BertProfile()

_PUBLIC: tuple[tuple[str, type[Steps], str, str, BertProfile], ...] = (
    ("ENC-01", mistakes.FixedEpsilon, _EPSILON, "keras-team/keras-hub/issues/642", _DEFAULT),
    (
        "ENC-02",
        mistakes.TanhGELU,
        _ACTIVATION,
        "huggingface/text-embeddings-inference/pull/753",
        _DEFAULT,
    ),
    (
        "ENC-03",
        mistakes.PoolsFirstSlot,
        _POOLED_WITH_PADDING,
        "huggingface/sentence-transformers/issues/3208",
        BertProfile(pooler=Pooled.FIRST_REAL_TOKEN),
    ),
    (
        "ENC-04",
        mistakes.PositionsOfSlots,
        _ANY_PADDING,
        "huggingface/transformers/issues/1761",
        BertProfile(positions=PaddedPositions.REAL_TOKENS),
    ),
    ("ENC-05", mistakes.MaskAsLength, _ANY_PADDING, "pytorch/pytorch/pull/79927", _DEFAULT),
    ("ENC-06", mistakes.Unscaled, _HEADS, "mlc-ai/mlc-llm/pull/3426", _DEFAULT),
    ("ENC-07", mistakes.ScaleOfModel, _HEADS, "omihub777/ViT-CIFAR/pull/11", _DEFAULT),
    ("ENC-08", mistakes.NoTypes, _TYPES, "deeppavlov/DeepPavlov/issues/1312", _DEFAULT),
    ("ENC-09", mistakes.NoTransform, _LOGITS, "huggingface/transformers/issues/12215", _DEFAULT),
)
for identifier, base, law, thread, profile in _PUBLIC:
    bert_mistake(identifier, base, killed_by=law, source=f"{GITHUB}/{thread}", profile=profile)

for identifier, base, law in (
    ("own-enc-causal", mistakes.Causal, "every-position-reads-the-whole-text"),
    ("own-enc-pre-norm", mistakes.PreNorm, _STATES),
    ("own-enc-no-residual", mistakes.NoResidual, _STATES),
    ("own-enc-erf-gelu", mistakes.ErfGELU, _ACTIVATION),
    ("own-enc-no-mask", mistakes.NoMask, _PADDING),
    ("own-enc-lowered-padding", mistakes.LoweredPadding, _PADDING),
    ("own-enc-no-type-row", mistakes.NoTypeRow, _TYPES),
    ("own-enc-no-positions", mistakes.NoPositions, _EMBEDDINGS),
    (
        "own-enc-positions-from-one",
        mistakes.PositionsFromOne,
        "a-reversed-text-with-reversed-positions-is-reversed",
    ),
    ("own-enc-no-embedding-norm", mistakes.NoEmbeddingNorm, _EMBEDDINGS),
    ("own-enc-interleaved", mistakes.HeadsInterleaved, _HEADS),
    ("own-enc-pools-last", mistakes.PoolsLast, _POOLER),
    ("own-enc-positions-of-real-tokens", mistakes.PositionsOfRealTokens, _ANY_PADDING),
    ("own-enc-pools-first-real-token", mistakes.PoolsFirstRealToken, _POOLED_WITH_PADDING),
    ("own-enc-pools-mean", mistakes.PoolsMean, _POOLER),
    ("own-enc-pools-linearly", mistakes.PoolsLinearly, _POOLER),
    ("own-enc-no-head-norm", mistakes.NoHeadNorm, _LOGITS),
    ("own-enc-no-head-bias", mistakes.NoHeadBias, _LOGITS),
):
    bert_mistake(identifier, base, killed_by=law)


@encoder_mistake(
    "own-enc-recency", killed_by="without-positions-the-order-of-tokens-does-not-matter"
)
class Recency(Steps):
    title = "later positions score a little more"

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        parts = super().split(x, heads)
        growing = 1 + 0.05 * torch.arange(parts.shape[2], dtype=x.dtype)
        return parts * growing[:, None]


@encoder_mistake("own-enc-in-place", killed_by="an-encoder-leaves-its-parameters-as-they-are")
class InPlace(Steps):
    title = "the row of type zero is added to the token table in place"

    def embed(
        self, ids: torch.Tensor, types: torch.Tensor | None, places: torch.Tensor
    ) -> torch.Tensor:
        embedded = super().embed(ids, types, places)
        table = self.weights["bert.embeddings.word_embeddings.weight"]
        table += self.weights["bert.embeddings.token_type_embeddings.weight"][0]
        return embedded


_GRADIENTS = "every-gradient-of-an-encoder-equals-the-definition"


@encoder_mistake("own-enc-one-use-of-the-table", killed_by=_GRADIENTS)
class OneUseOfTheTable(Steps):
    title = "the token table gets the gradient of the embeddings alone, not that of the head"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activate(self.linear(x, "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm")
        table = self.weights["bert.embeddings.word_embeddings.weight"].detach()
        return torch.nn.functional.linear(x, table, self.weights["cls.predictions.bias"])


@encoder_mistake("own-enc-constant-statistics", killed_by=_GRADIENTS)
class ConstantStatistics(Steps):
    title = "no gradient passes through mean and variance of a LayerNorm"

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        variance, mean = torch.var_mean(x.detach(), -1, correction=0, keepdim=True)
        unit = (x - mean) / torch.sqrt(variance + self.epsilon(name))
        return unit * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


@encoder_mistake("own-enc-unscaled-gradient", killed_by=_GRADIENTS)
class UnscaledGradient(Steps):
    title = "the gradients of queries and keys lack the scale of the scores"

    def attend(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        heads = self.config.num_attention_heads
        query, key, value = (
            self.split(self.linear(x, f"{name}.self.{part}"), heads)
            for part in ("query", "key", "value")
        )
        plain = query @ key.mT
        # forward the scaled scores, backward the plain ones
        scores = plain + ((self.scale(query.shape[-1]) - 1) * plain).detach()
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        return self.linear(mixed, f"{name}.output.dense")
