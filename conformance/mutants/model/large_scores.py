"""Mutants of whole GPT-2 models: a hidden token with a large score is read."""

import math

import torch

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake


@model_mistake(
    "own-padding-penalty",
    "-10000 is added to the scores of padding, as old code does, instead of hiding them",
    killed_by="padding-stays-hidden-however-large-its-scores",
)
class PaddingPenalty(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.penalty = torch.zeros(())
        if attention_mask is not None:
            self.penalty = -10000.0 * (1 - attention_mask.float())[:, None, None, :]
        return super().visible(input_ids, past, None)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        scores = (query * self.scale()) @ key.mT + self.penalty.to(query)
        return scores.masked_fill(~visible, -math.inf).softmax(-1) @ value


@model_mistake(
    "own-chunk-penalty",
    "after cached tokens, the causal constraint adds -10000 to a score instead of hiding it",
    killed_by="later-tokens-of-a-chunk-stay-hidden-however-large-their-scores",
    breaks=("GPT-30",),
)
class ChunkPenalty(CompactGPT2):
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        if query.shape[2] == key.shape[2]:
            return super().attend(query, key, value, visible)
        scores = (query * self.scale()) @ key.mT
        return (scores - 10000.0 * ~visible).softmax(-1) @ value
