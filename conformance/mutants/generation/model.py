"""Mutants of GPT-2 that generate wrong tokens."""

import torch

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake


@model_mistake(
    "own-generation-cached-position-early",
    "with a cache each new token gets the position of the token before it",
    killed_by="a-cache-changes-no-token",
    breaks=("GPT-16",),
)
class PositionEarly(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        return super().positions(max(past - 1, 0), length)


@model_mistake(
    "own-generation-cached-values-stale",
    "the cache grows by the newest keys, but by the value that it held last",
    killed_by="a-cache-changes-no-token",
    breaks=("GPT-16",),
)
class ValuesStale(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, (key, value) = super().attention(x, visible, kept)
        if kept is not None:
            value = torch.cat(
                [kept[1], kept[1][:, :, -1:].expand_as(value[:, :, -x.shape[1] :])], 2
            )
        return mixed, (key, value)


@model_mistake(
    "own-generation-positions-from-one",
    "positions are counted from one",
    killed_by="greedy-generation-equals-hugging-faces",
    breaks=("EMB-2", "EMB-4"),
)
class PositionsFromOne(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        last = self.config.n_positions - 1
        return (super().positions(past, length) + 1).clamp(max=last)


@model_mistake(
    "own-generation-head-without-norm",
    "the head reads the residual stream before the final LayerNorm",
    killed_by="greedy-generation-equals-hugging-faces",
    breaks=("GPT-8",),
)
class HeadWithoutNorm(CompactGPT2):
    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return x
