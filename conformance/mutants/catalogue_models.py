"""Mutants of the public catalogue: padding and positions of a model."""

import torch

from attnspec.conformance.mutants.gpt2_base import CompactGPT2, model_mistake

PADDING = "padding-changes-no-real-token"


@model_mistake(
    "SPV-07",
    "padding reads and writes one trash slot that nobody cleared, which others weigh by zero",
    PADDING,
    source="https://github.com/huggingface/transformers/pull/46765",
)
class _TrashSlot(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        self.trash = None if attention_mask is None else ~attention_mask.bool()[:, None, :, None]
        return super().visible(input_ids, past, attention_mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        if self.trash is not None:
            # never written before it is read, and then written with what was read
            value = value.masked_fill(self.trash, torch.nan)
        return super().attend(query, key, value, visible)


@model_mistake(
    "POS-05",
    "positions that fall along the wrong axis are taken for packed sequences, without lengths",
    PADDING,
    source="https://github.com/QwenLM/Qwen3.8/issues/104",
)
class _TakenForPacked(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        if bool((position_ids.diff(dim=0) < 0).any()):
            starts = (position_ids == 0).flatten().nonzero()
            raise RuntimeError(f"{len(starts)} packed sequences for {len(input_ids)} of the batch")
        return super().embed(input_ids, position_ids)
