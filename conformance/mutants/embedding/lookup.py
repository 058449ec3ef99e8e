"""Mutants of the embeddings: wrong rows or positions, and invalid ids or positions accepted."""

import math
from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import Cache, CompactGPT2, model_mistake


@model_mistake(
    "own-token-clamped",
    "token ids out of range are clamped into it",
    killed_by="an-id-without-a-row-is-an-error",
)
class TokenClamped(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().tokens(input_ids.clamp(0, self.config.vocab_size - 1))


@model_mistake(
    "own-token-negative-wraps",
    "negative token ids count from the end of the table",
    killed_by="an-id-without-a-row-is-an-error",
)
class TokenWraps(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.parameters["transformer.wte.weight"][input_ids]


@model_mistake(
    "own-token-next-row",
    "each token selects the row after its own",
    killed_by="each-token-selects-its-row",
    breaks=("EMB-2",),
)
class TokenNextRow(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        inside = (input_ids >= 0) & (input_ids < self.config.vocab_size)
        return super().tokens(
            torch.where(inside, (input_ids + 1) % self.config.vocab_size, input_ids)
        )


@model_mistake(
    "own-embedding-scaled",
    "token embeddings multiplied by the root of d_model",
    killed_by="positions-add",
    breaks=("EMB-1",),
)
class EmbeddingScaled(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().tokens(input_ids) * math.sqrt(self.config.n_embd)


@model_mistake(
    "own-no-positions",
    "position embeddings left out",
    killed_by="positions-add",
)
class NoPositions(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.places(position_ids)
        return self.tokens(input_ids)


@model_mistake(
    "own-positions-clamped",
    "positions beyond the last one reuse it",
    killed_by="a-sequence-longer-than-the-positions-is-an-error",
)
class PositionsClamped(CompactGPT2):
    def places(self, position_ids: torch.Tensor) -> torch.Tensor:
        return super().places(position_ids.clamp(0, self.config.n_positions - 1))


@model_mistake(
    "own-positions-from-one",
    "positions counted from one, the last one reused",
    killed_by="positions-add",
)
class PositionsFromOne(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        places = super().positions(past, length)
        last = self.config.n_positions - 1
        return torch.where(places < last, places + 1, places)


@model_mistake(
    "own-given-positions-need-a-mask",
    "given positions are ignored unless there is a mask",
    killed_by="given-positions-select-their-rows",
)
class GivenPositionsNeedAMask(CompactGPT2):
    def __call__(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        used = position_ids if attention_mask is not None else None
        return super().__call__(input_ids, cache, attention_mask, used, output_hidden_states)


@model_mistake(
    "own-given-positions-of-a-cache",
    "tokens that come after others through a cache without a mask are counted, whatever positions "
    "are given",
    killed_by="given-positions-select-their-rows",
)
class GivenPositionsOfACache(CompactGPT2):
    def __call__(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        used = None if cache and attention_mask is None else position_ids
        return super().__call__(input_ids, cache, attention_mask, used, output_hidden_states)
