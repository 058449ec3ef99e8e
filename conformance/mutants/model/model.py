"""Mutants of whole GPT-2 models: wrong head, states, gradients, padding, cache or causality."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, Normalizing, model_mistake
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import GPT2Config


@model_mistake(
    "own-no-final-norm",
    "no LayerNorm before the head",
    killed_by="one-final-layer-norm-precedes-the-head",
)
class NoFinalNorm(CompactGPT2):
    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return x


@model_mistake(
    "own-final-norm-twice",
    "the final LayerNorm is applied twice",
    killed_by="one-final-layer-norm-precedes-the-head",
)
class FinalNormTwice(CompactGPT2):
    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return super().final_norm(super().final_norm(x))


@model_mistake(
    "MDL-08",
    "the head of a tied checkpoint is not the token table",
    killed_by="a-tied-head-is-the-token-table",
    source="https://github.com/karpathy/nanoGPT/pull/21",
)
class NotTied(CompactGPT2):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        if not self.config.tie_word_embeddings:
            return super().head(x)
        random = torch.Generator().manual_seed(0)
        shape = (self.config.vocab_size, self.config.n_embd)
        return x @ (0.02 * torch.randn(shape, generator=random)).to(x).mT


@model_mistake(
    "MDL-09",
    "a distinct lm_head.weight is overwritten by the token table",
    killed_by="an-untied-head-is-used-as-given",
    source="https://github.com/huggingface/transformers/pull/42612",
)
class HeadOverwritten(CompactGPT2):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.parameters["transformer.wte.weight"].mT


@model_mistake(
    "own-hidden-states-late",
    "hidden states leave out the embeddings and repeat the last state",
    killed_by="every-hidden-state-equals-the-oracles",
)
class StatesLate(CompactGPT2):
    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (*states[1:], states[-1])


@model_mistake(
    "own-logits-shifted",
    "position t gives the logits of position t - 1",
    killed_by="next-token-loss-equals-the-oracles",
)
class LogitsShifted(CompactGPT2):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        return super().head(torch.cat([x[:, :1], x[:, :-1]], 1))


@model_mistake(
    "MDL-10",
    "the gradient of a tied table misses its use as the head",
    killed_by="every-gradient-equals-the-oracles",
    source="https://github.com/paiml/entrenar/issues/314",
)
class TiedGradient(CompactGPT2):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        if not self.config.tie_word_embeddings:
            return super().head(x)
        return x @ self.parameters["transformer.wte.weight"].detach().mT


@model_mistake(
    "own-norm-statistics-detached",
    "no gradient flows through LayerNorm's mean and variance",
    killed_by="every-gradient-equals-the-oracles",
)
class StatisticsDetached(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        deviation = (variance + self.config.layer_norm_epsilon).sqrt()
        return (x - mean.detach()) / deviation.detach()


@model_mistake(
    "own-padding-mask-ignored",
    "the padding mask is ignored",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-14", "GPT-17", "GPT-26"),
)
class PaddingIgnored(CompactGPT2):
    def visible(self, input_ids: torch.Tensor, past: int, attention_mask: Any) -> torch.Tensor:
        return super().visible(input_ids, past, None)


@model_mistake(
    "own-padding-positions-ignored",
    "position_ids are ignored",
    killed_by="padding-changes-no-real-token",
    breaks=("EMB-2", "EMB-4", "GPT-12", "GPT-14", "GPT-16", "GPT-26"),
)
class PositionIdsIgnored(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return super().embed(input_ids, self.positions(0, input_ids.shape[1]))


@model_mistake(
    "MSK-40",
    "the causal constraint adds -10000 to a score instead of hiding it",
    killed_by="later-tokens-stay-hidden-however-large-their-scores",
    breaks=("GPT-15", "GPT-30"),
    source="https://github.com/microsoft/onnxruntime/pull/8549",
)
class FinitePenalty(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT
        return (scores - 10000.0 * ~visible).softmax(-1) @ value


@model_mistake(
    "CAC-01",
    "positions start again at zero with a cache",
    killed_by="a-cache-equals-all-at-once",
    source="https://github.com/ml-explore/mlx-lm/pull/93",
)
class PositionsRestart(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        return super().positions(0, length)


@model_mistake(
    "CAC-02",
    "the length of the cache is read from the axis of heads",
    killed_by="a-cache-equals-all-at-once",
    breaks=("EMB-4",),
    source="https://github.com/dmlc/gluon-nlp/issues/1015",
)
class LengthFromHeadAxis(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        return (
            super()
            .positions(self.config.n_head if past else 0, length)
            .clamp(max=self.config.n_positions - 1)
        )


@model_mistake(
    "CAC-03",
    "with a cache the padding mask covers the new tokens only",
    killed_by="cached-padding-stays-hidden",
    source="https://github.com/huggingface/transformers/issues/4130",
)
class MaskOfNewTokens(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None:
            attention_mask = attention_mask.clone()
            attention_mask[:, :past] = 1
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-cached-padding-counted-from-the-left",
    "with a cache as many of the first tokens are hidden as the mask hides",
    killed_by="a-prompt-padded-on-the-right-can-be-continued",
)
class PaddingCounted(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None and past:
            hidden = (attention_mask == 0).sum(1, keepdim=True)
            attention_mask = torch.arange(attention_mask.shape[1]) >= hidden
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-bool-padding-inverted",
    "true hides a token if the padding mask is bool",
    killed_by="masks-of-any-type-hide-the-same",
)
class BoolMaskInverted(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            attention_mask = ~attention_mask
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-ids-read-as-contiguous",
    "token ids are read in the order of their memory",
    killed_by="ids-are-read-wherever-they-lie",
)
class IdsAsContiguous(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        shape, places = input_ids.shape, input_ids.storage_offset()
        memory = input_ids.untyped_storage().nbytes() // input_ids.element_size() - places
        if memory < input_ids.numel():
            return super().tokens(input_ids)
        return super().tokens(torch.as_strided(input_ids, shape, (shape[1], 1)))


@model_mistake(
    "CAC-04",
    "the step after the first feeds its first token twice",
    killed_by="a-cache-equals-all-at-once",
    source="https://github.com/huggingface/transformers/issues/1749",
)
class FedTwice(CompactGPT2):
    def attention(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
        if kept is None:
            return super().attention(x, visible, kept)
        key, value = (torch.cat([tensor, tensor[:, :, -1:]], 2) for tensor in kept)
        wider = torch.cat([visible[..., :1], visible], -1)
        mixed, (key, value) = super().attention(x, wider, (key, value))
        past = kept[0].shape[2]
        drop = [index for index in range(key.shape[2]) if index != past]
        return mixed, (key[:, :, drop], value[:, :, drop])


@model_mistake(
    "MSK-05",
    "with a cache the causal mask is aligned to the first key, and hides the past",
    killed_by="a-cache-equals-all-at-once",
    source="https://github.com/onnx/onnx/pull/7297",
)
class CausalUpperLeft(CompactGPT2):
    def causal(self, past: int, length: int) -> torch.Tensor:
        return torch.ones(length, past + length, dtype=torch.bool).tril()[None, None]


@model_mistake(
    "own-future-leak",
    "each token reads the one after it",
    killed_by="no-logit-depends-on-later-tokens",
)
class FutureLeak(CompactGPT2):
    def causal(self, past: int, length: int) -> torch.Tensor:
        return torch.ones(length, past + length, dtype=torch.bool).tril(past + 1)[None, None]


@model_mistake(
    "own-mask-strict",
    "the causal mask hides each token from itself; the first, which may read none, reads all",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-18",),
)
class MaskStrict(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        seen = super().visible(input_ids, past, attention_mask)
        seen = seen & ~torch.eye(seen.shape[-1], dtype=torch.bool)[past:]
        return seen | ~seen.any(-1, keepdim=True)


@model_mistake(
    "own-hidden-scores-zero",
    "scores of later tokens are multiplied by zero instead of hidden",
    killed_by="no-logit-depends-on-later-tokens",
)
class HiddenScoresZero(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT
        return (scores * visible).softmax(-1) @ value


@model_mistake(
    "own-masked-after-softmax",
    "attention weights of later tokens are zeroed after the softmax, so that rows sum to less",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-18",),
)
class MaskedAfterSoftmax(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT
        return (scores.softmax(-1) * visible) @ value


@model_mistake(
    "own-softmax-over-queries",
    "the softmax runs over the queries of a key instead of the keys of a query",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-18",),
)
class SoftmaxOverQueries(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT
        return scores.masked_fill(~visible, -math.inf).softmax(-2).nan_to_num(0.0) @ value


@model_mistake(
    "own-mask-finite",
    "later tokens are hidden by -5 instead of minus infinity",
    killed_by="no-logit-depends-on-later-tokens",
)
class FiniteFill(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT
        return scores.masked_fill(~visible, -5.0).softmax(-1) @ value


@model_mistake(
    "own-attention-over-batch",
    "the keys of the first row serve the whole batch",
    killed_by="rows-of-a-batch-are-independent",
)
class KeysOfTheFirstRow(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        return super().attend(query, key[:1].expand_as(key), value, visible)


@model_mistake(
    "own-dropout-in-evaluation",
    "dropout stays on in evaluation",
    killed_by="equal-calls-give-equal-logits",
)
class DropoutInEvaluation(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().embed(input_ids, position_ids), 0.1, training=True)


@model_mistake(
    "own-state-kept",
    "the cache of one call is read by the next",
    killed_by="equal-calls-give-equal-logits",
)
class StateKept(CompactGPT2):
    _last: tuple[torch.Tensor, torch.Tensor] | None = None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        # the last key and value of the previous call are read like an earlier token
        last, self._last = self._last, (key[:, :, -1:], value[:, :, -1:])
        if last is not None and last[0].shape[0] == key.shape[0] and self.layer == 0:
            key, value = torch.cat([last[0], key], 2), torch.cat([last[1], value], 2)
            visible = torch.cat([visible[..., :1], visible], -1)
        return super().attend(query, key, value, visible)


@model_mistake(
    "own-weights-folded-in-place",
    "the scale is folded into the caller's weights",
    killed_by="equal-calls-give-equal-logits",
    breaks=("GPT-14", "GPT-27"),
)
class ScaleFoldedIntoWeights(CompactGPT2):
    def __init__(self, config: GPT2Config, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__(config, weights)
        factors = []
        for self.layer in range(config.n_layer):
            factors.append(super().scale())
            width = config.n_embd
            with torch.no_grad():
                self.block_parameter("attn.c_attn.weight")[:, :width].mul_(factors[-1])
                self.block_parameter("attn.c_attn.bias")[:width].mul_(factors[-1])

    def scale(self) -> float:
        return 1.0


@mistake(
    "own-model-scale-ignored",
    "the scale that the model passes is ignored for 1/sqrt(d_head)",
    killed_by="every-attention-call-inside-gpt2-is-within-its-bound",
)
class ScaleArgumentIgnored(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, None)


@model_mistake(
    "SPV-07",
    "padding reads and writes one slot that is never cleared, whose weight for others is zero",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-14", "GPT-17", "GPT-26"),
    source="https://github.com/huggingface/transformers/pull/46765",
)
class TrashSlot(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.trash = None if attention_mask is None else ~attention_mask.bool()[:, None, :, None]
        return super().visible(input_ids, past, attention_mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        if self.trash is not None:
            # the slot is read before it is written
            value = value.masked_fill(self.trash, torch.nan)
        return super().attend(query, key, value, visible)


@model_mistake(
    "POS-05",
    "positions that fall along the wrong axis are taken for packed sequences, without lengths",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-14", "GPT-17", "GPT-29"),
    source="https://github.com/QwenLM/Qwen3.8/issues/104",
)
class TakenForPacked(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        if bool((position_ids.diff(dim=0) < 0).any()):
            starts = (position_ids == 0).flatten().nonzero()
            raise RuntimeError(f"{len(starts)} packed sequences for {len(input_ids)} of the batch")
        return super().embed(input_ids, position_ids)


class _KeepsPadding(CompactGPT2):
    """A correct model that knows its padding mask in every step."""

    padding: torch.Tensor | None = None

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.padding = None if past else attention_mask
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-states-without-padding",
    "padding is removed before the blocks, and hidden states are not put back in place",
    killed_by="hidden-states-of-padded-rows-are-those-of-each-alone",
)
class StatesWithoutPadding(_KeepsPadding):
    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self.padding is None:
            return tuple(states)
        order = self.padding.bool().logical_not().int().sort(dim=1, stable=True).indices
        return tuple(state.gather(1, order[..., None].expand_as(state)) for state in states)


@model_mistake(
    "own-backward-without-padding",
    "the backward pass computes attention again without the padding mask",
    killed_by="gradients-of-padded-rows-are-those-of-each-alone",
    breaks=("GPT-29",),
)
class BackwardWithoutPadding(_KeepsPadding):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        out = super().attend(query, key, value, visible)
        if self.padding is None:
            return out
        other = super().attend(query, key, value, self.causal(0, key.shape[2]))
        return out.detach() + other - other.detach()


@model_mistake(
    "own-states-detached",
    "if hidden states are asked for, each block reads a detached copy of the last one's",
    killed_by="what-else-is-returned-changes-no-gradient",
    breaks=("GPT-12",),
)
class StatesDetached(CompactGPT2):
    def __call__(self, input_ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.detaches = bool(options.get("output_hidden_states"))
        return super().__call__(input_ids, *rest, **options)

    def block(self, x: torch.Tensor, *rest: Any) -> Any:
        return super().block(x.detach() if self.detaches else x, *rest)


@model_mistake(
    "own-cache-detached",
    "with a cache, no gradient flows through attention",
    killed_by="what-else-is-returned-changes-no-gradient",
    breaks=("GPT-29",),
)
class CacheDetached(CompactGPT2):
    def past(self, cache: Any) -> int:
        self.detaches = cache is not None
        return super().past(cache)

    def attention(self, *inputs: Any) -> Any:
        mixed, kept = super().attention(*inputs)
        return (mixed.detach() if self.detaches else mixed), kept


@model_mistake(
    "own-ids-at-padding-overwritten",
    "ids at padding are set to 0 in the caller's tensor",
    killed_by="masks-of-any-type-hide-the-same",
    breaks=("GPT-12", "GPT-14", "GPT-15", "GPT-17", "GPT-20", "GPT-29"),
)
class IdsAtPaddingOverwritten(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None and attention_mask.shape == input_ids.shape:
            input_ids.masked_fill_(attention_mask == 0, 0)
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-logits-in-one-buffer",
    "the logits of each call of one shape are returned in one buffer, as a CUDA graph does",
    killed_by="equal-calls-give-equal-logits",
    breaks=("GPT-14", "GPT-16", "GPT-17", "GPT-22", "GPT-23"),
)
class LogitsInOneBuffer(CompactGPT2):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.buffers: dict[tuple[int, ...], torch.Tensor] = {}

    def head(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().head(x)
        if logits.requires_grad:
            return logits
        return self.buffers.setdefault(tuple(logits.shape), logits).copy_(logits)
