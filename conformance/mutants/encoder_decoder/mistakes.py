"""Mutants of an encoder-decoder: those that a failure is explained by, and some more."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.encoder_decoder import (
    cross_mistake,
    encoder_decoder_mistake,
)
from attnspec.conformance.operators.encoder_decoder import mistakes
from attnspec.conformance.operators.encoder_decoder.steps import Pair, Steps
from attnspec.spec.encoder_decoder import EncoderDecoderProfile
from attnspec.spec.padding import PaddedPositions

GITHUB = "https://github.com"
_EMBEDDINGS = "embeddings-of-both-sides-are-scaled-rows-plus-positions"
_SINUSOIDS = "sinusoidal-positions-equal-the-definition"
_SHIFT = "a-shift-of-positions-is-a-rotation"
_ENCODER = "every-encoder-state-equals-the-definition"
_DECODER = "every-decoder-state-equals-the-definition"
_MEMORY = "keys-and-values-come-from-the-last-encoder-state"
_LATER = "no-logit-depends-on-later-target-tokens"
_SOURCE = "every-target-position-reads-the-whole-source"
_PADDING = "padding-of-the-source-reaches-nothing"
_TARGET = "padding-of-the-target-reaches-no-real-position"
_ANY_PADDING = "padding-of-the-source-may-lie-anywhere"
_ANY_TARGET_PADDING = "padding-of-the-target-may-lie-anywhere"
_LOGITS = "logits-of-a-decoder-equal-the-definition"
_HEADS = "heads-of-each-attention-are-runs-of-channels"
_ACTIVATION = "both-sides-use-the-configured-activation"
_PLACES = "layer-norms-stand-where-the-configuration-says"
_EPSILON = "both-sides-add-the-configured-epsilon"
_STEPS = "steps-equal-teacher-forcing"
_ONCE = "keys-and-values-of-the-source-are-computed-once"
_OWN = "each-target-reads-its-own-source"

_PUBLIC: tuple[tuple[str, type[Steps], str, str], ...] = (
    ("CRS-01", mistakes.NoScale, _EMBEDDINGS, "SamLynnEvans/Transformer/issues/10"),
    ("CRS-02", mistakes.NoOffset, _EMBEDDINGS, "NVIDIA/TensorRT-LLM/pull/13919"),
    ("CRS-03", mistakes.FrequencyOfChannel, _SHIFT, "BrianPulfer/PapersReimplementations/issues/9"),
    ("CRS-04", mistakes.CosinesOfSines, _SINUSOIDS, "huggingface/transformers/issues/11724"),
    ("CRS-05", mistakes.CrossReadsPadding, _PADDING, "huggingface/transformers/pull/47946"),
    ("CRS-06", mistakes.StepHidesItself, _STEPS, "harvard-edge/cs249r_book/pull/1953"),
    ("CRS-11", mistakes.NoHeadBias, _LOGITS, "OpenNMT/CTranslate2/pull/833"),
    ("CRS-12", mistakes.NoCross, _DECODER, "huggingface/transformers/pull/4680"),
)
for identifier, base, law, thread in _PUBLIC:
    encoder_decoder_mistake(identifier, base, killed_by=law, source=f"{GITHUB}/{thread}")

encoder_decoder_mistake(
    "CRS-10",
    mistakes.PositionsOfSlots,
    killed_by=_ANY_PADDING,
    source=f"{GITHUB}/huggingface/transformers/issues/19581",
    profile=EncoderDecoderProfile(positions=PaddedPositions.REAL_TOKENS),
)

_OTHERS: tuple[tuple[str, type[Steps], str], ...] = (
    ("own-crs-always-scaled", mistakes.AlwaysScaled, _EMBEDDINGS),
    ("own-crs-no-positions", mistakes.NoPositions, _EMBEDDINGS),
    ("own-crs-positions-from-one", mistakes.PositionsFromOne, _EMBEDDINGS),
    ("own-crs-no-embedding-norm", mistakes.NoEmbeddingNorm, _EMBEDDINGS),
    ("own-crs-halved-frequencies", mistakes.HalvedFrequencies, _SHIFT),
    ("own-crs-relative-places", mistakes.RelativePlaces, _SHIFT),
    ("own-crs-float32-sinusoids", mistakes.SinusoidsInFloat32, _SINUSOIDS),
    ("own-crs-causal-encoder", mistakes.CausalEncoder, _ENCODER),
    ("own-crs-no-residual", mistakes.NoResidual, _ENCODER),
    ("own-crs-no-cross-residual", mistakes.NoCrossResidual, _DECODER),
    ("own-crs-cross-after-mlp", mistakes.CrossAfterMLP, _DECODER),
    ("own-crs-reads-embeddings", mistakes.ReadsEmbeddings, _MEMORY),
    ("own-crs-reads-same-block", mistakes.ReadsSameBlock, _MEMORY),
    ("own-crs-not-causal", mistakes.NotCausal, _LATER),
    ("own-crs-causal-off-by-one", mistakes.CausalOffByOne, _LATER),
    ("own-crs-causal-cross", mistakes.CausalCross, _SOURCE),
    ("own-crs-encoder-reads-padding", mistakes.EncoderReadsPadding, _PADDING),
    ("own-crs-mask-replaces-causal", mistakes.MaskReplacesCausal, _TARGET),
    ("own-crs-mask-as-length", mistakes.MaskAsLength, _ANY_PADDING),
    ("own-crs-positions-of-real-tokens", mistakes.PositionsOfRealTokens, _ANY_TARGET_PADDING),
    ("own-crs-scaled-head", mistakes.ScaledHead, _LOGITS),
    ("own-crs-scale-of-model", mistakes.ScaleOfModel, _HEADS),
    ("own-crs-unscaled", mistakes.Unscaled, _HEADS),
    ("own-crs-interleaved", mistakes.HeadsInterleaved, _HEADS),
    ("own-crs-heads-of-encoder", mistakes.HeadsOfEncoder, _HEADS),
    ("own-crs-relu", mistakes.ReLU, _ACTIVATION),
    ("own-crs-tanh-gelu", mistakes.TanhGELU, _ACTIVATION),
    ("own-crs-pre-norm", mistakes.PreNorm, _PLACES),
    ("own-crs-post-norm", mistakes.PostNorm, _PLACES),
    ("own-crs-no-final-norm", mistakes.NoFinalNorm, _PLACES),
    ("own-crs-no-final-norm-of-encoder", mistakes.NoFinalNormOfEncoder, _PLACES),
    ("own-crs-fixed-epsilon", mistakes.FixedEpsilon, _EPSILON),
    ("own-crs-steps-from-zero", mistakes.StepsFromZero, _STEPS),
    ("own-crs-steps-not-causal", mistakes.StepsNotCausal, _STEPS),
    ("own-crs-steps-read-padding", mistakes.StepsReadPadding, _STEPS),
    ("own-crs-first-source", mistakes.ReadsFirstSource, _OWN),
)
for identifier, base, law in _OTHERS:
    encoder_decoder_mistake(identifier, base, killed_by=law)


@cross_mistake("CRS-07", killed_by=_ONCE, source=f"{GITHUB}/guandeh17/Self-Forcing/pull/78")
class Recomputed(Steps):
    title = "each step computes keys and values of the source again"

    def cross_of_step(self, cache: dict[str, Any], layer: int) -> Pair:
        name = f"model.decoder.layers.{layer}.encoder_attn"
        return self.pair(self.memory(cache["encoded"], layer), name)


@cross_mistake("own-crs-recomputed-values", killed_by=_ONCE)
class RecomputedValues(Steps):
    title = "each step computes the values of the source again in the last block"

    def cross_of_step(self, cache: dict[str, Any], layer: int) -> Pair:
        keys, values = super().cross_of_step(cache, layer)
        if layer == self.config.decoder_layers - 1:
            name = f"model.decoder.layers.{layer}.encoder_attn"
            projected = self.linear(self.memory(cache["encoded"], layer), f"{name}.v_proj")
            values = self.split(projected, name)
        return keys, values


@cross_mistake(
    "own-crs-recency",
    killed_by="a-reversed-source-with-reversed-positions-gives-the-same-logits",
)
class Recency(Steps):
    title = "cross-attention scores later positions of the source a little more"

    def pair(self, x: torch.Tensor, name: str) -> Pair:
        keys, values = super().pair(x, name)
        if not name.endswith("encoder_attn"):
            return keys, values
        growing = 1 + 0.05 * torch.arange(keys.shape[2], dtype=x.dtype)
        return keys * growing[:, None], values


@cross_mistake("own-crs-in-place", killed_by="an-encoder-decoder-leaves-its-parameters-as-they-are")
class InPlace(Steps):
    title = "the token table is scaled in place"

    def encode(self, ids: torch.Tensor, real: torch.Tensor) -> list[torch.Tensor]:
        states = super().encode(ids, real)
        table = self.weights["model.shared.weight"]
        table *= self.config.d_model**0.5
        return states


_GRADIENTS = "every-gradient-of-an-encoder-decoder-equals-the-definition"


@cross_mistake(
    "CRS-08", killed_by=_GRADIENTS, source=f"{GITHUB}/rsarxiv/seq2seq-attention/issues/7"
)
class DetachedMemory(Steps):
    title = "no gradient passes from cross-attention to the encoder"

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        return super().memory(encoded, layer).detach()


@cross_mistake("CRS-09", killed_by=_GRADIENTS, source=f"{GITHUB}/NVIDIA/Megatron-LM/issues/1548")
class DetachedHead(Steps):
    title = "the token table lacks the gradient of the head"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        head = torch.nn.functional.linear(x, self.weights["model.shared.weight"].detach())
        return head + self.weights["final_logits_bias"]


@cross_mistake("own-crs-last-block-trains-the-encoder", killed_by=_GRADIENTS)
class LastBlockTrainsTheEncoder(Steps):
    title = "the encoder gets the gradient of the last block of the decoder alone"

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        states = super().memory(encoded, layer)
        return states if layer == self.config.decoder_layers - 1 else states.detach()


@cross_mistake("own-crs-detached-keys", killed_by=_GRADIENTS)
class DetachedKeys(Steps):
    title = "the encoder gets the gradient of the values of cross-attention, not of the keys"

    def pair(self, x: torch.Tensor, name: str) -> Pair:
        keys, values = super().pair(x, name)
        if name.endswith("encoder_attn"):
            keys = super().pair(x.detach(), name)[0]
        return keys, values


@cross_mistake("own-crs-unscaled-gradient", killed_by=_GRADIENTS)
class UnscaledGradient(Steps):
    title = "the gradients of queries and keys lack the scale of the scores"

    def attend(self, name: str, x: torch.Tensor, pair: Pair, hidden: torch.Tensor) -> torch.Tensor:
        query = self.split(self.linear(x, f"{name}.q_proj"), name)
        plain = query @ pair[0].mT
        # forward the scaled scores, backward the plain ones
        scores = plain + ((self.scale(query.shape[-1]) - 1) * plain).detach()
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        mixed = (weights @ pair[1]).transpose(1, 2).flatten(-2)
        return self.linear(mixed, f"{name}.out_proj")


@cross_mistake("own-crs-unscaled-table-gradient", killed_by=_GRADIENTS)
class UnscaledTableGradient(Steps):
    title = "the gradient of the token table lacks the factor of the embeddings"

    def embed(self, ids: torch.Tensor, side: str, places: torch.Tensor) -> torch.Tensor:
        embedded = super().embed(ids, side, places)
        if self.config.position_embedding != "sinusoidal":
            return embedded
        rows = torch.nn.functional.embedding(ids, self.weights["model.shared.weight"])
        return embedded.detach() + rows - rows.detach()
