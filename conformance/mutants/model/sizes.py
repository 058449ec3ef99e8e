"""Mutants of whole GPT-2 models: right on small models and calls, wrong on larger ones."""

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.gpt2 import Cache, CompactGPT2, model_mistake


@model_mistake(
    "own-ids-in-one-byte",
    "token ids are stored in eight bits",
    killed_by="logits-equal-the-oracles",
)
class IdsInOneByte(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = super().tokens(input_ids)  # raises for an id out of range
        return rows if self.config.vocab_size < 256 else super().tokens(input_ids.byte().long())


@model_mistake(
    "own-ids-in-two-bytes",
    "token ids are stored in sixteen bits with a sign",
    killed_by="logits-equal-the-oracles",
)
class IdsInTwoBytes(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = super().tokens(input_ids)  # raises for an id out of range
        wrapped = input_ids.short().long() % self.config.vocab_size
        return rows if self.config.vocab_size < 2**15 else super().tokens(wrapped)


@model_mistake(
    "own-positions-in-one-byte",
    "positions are stored in eight bits",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-12", "GPT-16", "GPT-17"),
)
class PositionsInOneByte(CompactGPT2):
    def places(self, position_ids: torch.Tensor) -> torch.Tensor:
        rows = super().places(position_ids)  # raises for a position out of range
        return rows if len(position_ids[0]) < 256 else super().places(position_ids.byte().long())


@model_mistake(
    "own-layers-by-prefix",
    "the parameters of a layer are found by the beginning of their names: h.1 also finds h.10",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-25",),
)
class LayersByPrefix(CompactGPT2):
    def block_parameter(self, name: str) -> torch.Tensor:
        start = f"transformer.h.{self.layer}"
        names = (each for each in self.parameters if each.startswith(start))
        return self.parameters[[each for each in names if each.endswith(name)][-1]]


@model_mistake(
    "own-layers-sorted-as-text",
    "layers are sorted as text: h.10 runs before h.2",
    killed_by="logits-equal-the-oracles",
)
class LayersSortedAsText(CompactGPT2):
    def block_parameter(self, name: str) -> torch.Tensor:
        layers = sorted(str(layer) for layer in range(self.config.n_layer))
        return self.parameters[f"transformer.h.{layers[self.layer]}.{name}"]


@model_mistake(
    "own-tiles-of-later-layers",
    "from the sixth layer on, in a prompt of over 256 tokens the last tile reads the first one",
    killed_by="logits-equal-the-oracles",
)
class TilesOfLaterLayers(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        out = super().attend(query, key, value, visible)
        if self.layer < 5 or out.shape[2] <= 256:
            return out
        return torch.cat([out[:, :, :256], out[:, :, : out.shape[2] - 256]], 2)


@model_mistake(
    "own-layer-of-one-digit",
    "the scale of a layer is taken from the last digit of its number",
    killed_by="logits-equal-the-oracles",
)
class LayerOfOneDigit(CompactGPT2):
    def scale(self) -> float:
        layer, self.layer = self.layer, self.layer % 10
        scale = super().scale()
        self.layer = layer
        return scale


@model_mistake(
    "own-eight-heads",
    "heads from the ninth on give zeros",
    killed_by="logits-equal-the-oracles",
)
class EightHeads(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        out = super().attend(query, key, value, visible)
        return torch.cat([out[:, :8], torch.zeros_like(out[:, 8:])], 1)


@model_mistake(
    "own-four-rows",
    "rows of a batch from the fifth on repeat the fourth",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-15", "GPT-17"),
)
class FourRows(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        out = super().attend(query, key, value, visible)
        return out[torch.arange(len(out)).clamp(max=3)]


@model_mistake(
    "own-cache-of-32",
    "a cache holds 32 tokens: the oldest are lost without an error",
    killed_by="a-cache-equals-all-at-once",
    breaks=("GPT-17",),
)
class CacheOf32(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, stored = super().attention(x, visible, kept)
        for tensor in stored if kept is not None else ():
            # the slots of the oldest tokens are empty
            tensor[:, :, :-32] = 0
        return mixed, stored


@model_mistake(
    "own-cached-positions-in-one-byte",
    "the length of a cache is stored in eight bits, so that positions start again",
    killed_by="a-cache-equals-all-at-once",
)
class CachedPositionsInOneByte(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        return super().positions(past % 256, length)


@model_mistake(
    "own-padding-of-four-rows",
    "in a batch of more than four rows, the padding mask of the first serves all",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-14", "GPT-17"),
)
class PaddingOfFourRows(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None and len(attention_mask) > 4:
            attention_mask = attention_mask[:1].expand_as(attention_mask)
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-inner-width-of-256",
    "an MLP is at most 256 wide: the channels behind are zero",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-12",),
)
class InnerWidthOf256(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        active = super().activation(x)
        return torch.cat([active[..., :256], torch.zeros_like(active[..., 256:])], -1)


@model_mistake(
    "own-hidden-states-of-four-layers",
    "hidden states from the fifth on repeat the last",
    killed_by="every-hidden-state-equals-the-oracles",
)
class StatesOfFourLayers(CompactGPT2):
    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (*states[:5], *states[-1:] * len(states[5:]))


@model_mistake(
    "own-ids-in-two-unsigned-bytes",
    "token ids are stored in sixteen bits without a sign",
    killed_by="logits-equal-the-oracles",
)
class IdsInTwoUnsignedBytes(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = super().tokens(input_ids)  # raises for an id out of range
        return rows if self.config.vocab_size <= 2**16 else super().tokens(input_ids % 2**16)


@model_mistake(
    "own-norm-of-1024-channels",
    "the statistics of a LayerNorm are those of the first 1024 channels, one for each thread",
    killed_by="logits-equal-the-oracles",
)
class NormOf1024Channels(CompactGPT2):
    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] <= 1024:
            return super().layer_norm(x, weight, bias)
        seen = x[..., :1024]
        variance = seen.var(-1, correction=0, keepdim=True) + self.config.layer_norm_epsilon
        return (x - seen.mean(-1, keepdim=True)) * variance.rsqrt() * weight + bias


@model_mistake(
    "own-sixteen-wide-heads",
    "of heads of 32 channels or more, those from the seventeenth on give zeros",
    killed_by="logits-equal-the-oracles",
)
class SixteenWideHeads(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        out = super().attend(query, key, value, visible)
        if self.config.d_head < 32:
            return out
        return torch.cat([out[:, :16], torch.zeros_like(out[:, 16:])], 1)


@model_mistake(
    "own-24-layers",
    "a table of layers holds 24: those behind use the parameters of the first ones",
    killed_by="logits-equal-the-oracles",
)
class Layers24(CompactGPT2):
    def block_parameter(self, name: str) -> torch.Tensor:
        return self.parameters[f"transformer.h.{self.layer % 24}.{name}"]


@model_mistake(
    "own-token-gradient-of-64",
    "the gradient of the token table adds up the first 64 tokens of a batch of several rows",
    killed_by="every-gradient-equals-the-oracles",
    breaks=("GPT-29",),
)
class TokenGradientOf64(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = super().tokens(input_ids)
        if len(input_ids) == 1:
            return rows
        added = torch.arange(input_ids.numel()).view_as(input_ids)[..., None] < 64
        return torch.where(added, rows, rows.detach())


@model_mistake(
    "own-cached-padding-of-eight-rows",
    "after a cache, rows from the ninth on use the padding mask of the eighth",
    killed_by="cached-padding-stays-hidden",
)
class CachedPaddingOfEightRows(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None and past:
            attention_mask = attention_mask[torch.arange(len(attention_mask)).clamp(max=7)]
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-hidden-states-after-a-cache",
    "after a cache, the last hidden state is the stream before the last LayerNorm",
    killed_by="every-hidden-state-equals-the-oracles",
)
class StatesAfterACache(CompactGPT2):
    cached = 0

    def past(self, cache: Cache | None) -> int:
        self.cached = super().past(cache)
        return self.cached

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        self.stream = x
        return super().final_norm(x)

    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (*states[:-1], self.stream if self.cached else states[-1])


@model_mistake(
    "own-diagonal-tile-unmasked",
    "heads of 16 channels or more read all keys of the tile of 16 that holds the diagonal",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-12", "GPT-14", "GPT-15", "GPT-16", "GPT-17", "GPT-18"),
)
class DiagonalTileUnmasked(CompactGPT2):
    def causal(self, past: int, length: int) -> torch.Tensor:
        seen = super().causal(past, length)
        if past or length < 16 or self.config.d_head < 16:
            return seen
        tile = torch.arange(length) // 16
        return seen | (tile[:, None] == tile)


@model_mistake(
    "own-token-table-in-two-buffers",
    "a token table of over 2^25 numbers lies in two buffers, and the ids of the second are off by "
    "one",
    killed_by="logits-of-an-id-need-its-row-alone",
)
class TokenTableInTwoBuffers(CompactGPT2):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().head(x)
        first = 2**25 // self.config.n_embd
        if self.config.vocab_size <= first:
            return logits
        return torch.cat([logits[..., :first], logits[..., first:].roll(1, -1)], -1)


@model_mistake(
    "own-heads-in-float32-unmasked",
    "in float32, keys are padded to tiles of 64, and the padding of the last tile is not hidden",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-14", "GPT-16"),
)
class HeadsInFloat32Unmasked(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        missing = -key.shape[2] % 64
        if query.dtype != torch.float32 or self.config.d_head % 16 or key.shape[2] < 64:
            return super().attend(query, key, value, visible)
        key, value = (functional.pad(each, (0, 0, 0, missing)) for each in (key, value))
        return super().attend(query, key, value, functional.pad(visible, (0, missing), value=True))


@model_mistake(
    "own-inner-width-in-whole-parts",
    "the second product of an MLP is split into parts of 4 096 channels, and the rest forgotten",
    killed_by="logits-equal-the-oracles",
)
class InnerWidthInWholeParts(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        active = super().activation(x)
        width = active.shape[-1]
        if width <= 4096:
            return active
        whole = width // 4096 * 4096
        return torch.cat([active[..., :whole], torch.zeros_like(active[..., whole:])], -1)


@model_mistake(
    "own-24-layers-of-wide-heads",
    "with heads of 64 channels, a table of LayerNorms holds 24 layers: those behind use the first "
    "ones",
    killed_by="logits-equal-the-oracles",
    breaks=("GPT-12",),
)
class Layers24OfWideHeads(CompactGPT2):
    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        layer, wide = self.layer, self.config.d_head == 64 and name == "ln_2"
        self.layer = layer % 24 if wide else layer
        normalized = super().norm(x, name)
        self.layer = layer
        return normalized


@model_mistake(
    "own-padding-of-32-rows",
    "batches are attended in blocks of 32 rows, each with the padding mask of the first block",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-17"),
)
class PaddingOf32Rows(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None:
            attention_mask = attention_mask[torch.arange(len(attention_mask)) % 32]
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-64-tokens-of-padding",
    "the padding on the left of a row is counted up to 64 tokens, and what is left of it read",
    killed_by="padding-changes-no-real-token",
    breaks=("GPT-12", "GPT-17"),
)
class PaddingOf64Tokens(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None:
            on_the_left = attention_mask.bool().long().cumsum(-1) == 0
            attention_mask = attention_mask.bool() | (on_the_left & (on_the_left.cumsum(-1) > 64))
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-cache-that-grows-by-768",
    "a cache that grows past 768 tokens moves its rows by the old stride: later ones lose a token",
    killed_by="a-cache-equals-all-at-once",
)
class CacheThatGrowsBy768(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, stored = super().attention(x, visible, kept)
        if kept is None or not kept[0].shape[2] <= 768 < stored[0].shape[2]:
            return mixed, stored
        moved = tuple(each.clone() for each in stored)
        for each in moved:
            each[1:, :, 1:768] = each[1:, :, :767].clone()
        return mixed, (moved[0], moved[1])


@model_mistake(
    "own-large-cache-in-bfloat16",
    "a cache of more than 2^23 numbers is kept in bfloat16",
    killed_by="a-cache-equals-all-at-once",
)
class LargeCacheInBfloat16(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        if kept is not None and 2 * self.config.n_layer * kept[0].numel() > 2**23:
            kept = kept[0].bfloat16().to(x.dtype), kept[1].bfloat16().to(x.dtype)
        return super().attention(x, visible, kept)


@model_mistake(
    "own-wide-heads-in-a-cache-in-float32",
    "in float32, decoding multiplies the first 32 channels of a head alone",
    killed_by="a-cache-equals-all-at-once",
)
class WideHeadsInACacheInFloat32(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        if query.shape[2] == 1 < key.shape[2] and query.dtype == torch.float32:
            query, key = query[..., :32], key[..., :32]
        return super().attend(query, key, value, visible)
