"""Mutants of whole GPT-2 models: wrong in another state of PyTorch, or in another thread."""

import threading
from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import Cache, CompactGPT2, model_mistake

LAW = "the-state-of-torch-changes-no-logit"


@model_mistake(
    "own-model-scale-in-default-dtype",
    "the scale of the scores is rounded to the default dtype, if that has 16 bits",
    killed_by=LAW,
)
class ScaleInDefaultDtype(CompactGPT2):
    def scale(self) -> float:
        dtype = torch.get_default_dtype()
        scale = super().scale()
        return torch.tensor(scale / 3, dtype=dtype).item() * 3 if dtype.itemsize == 2 else scale


@model_mistake(
    "own-rows-divided-among-threads",
    "rows of tokens are divided among threads, and those left over are not embedded",
    killed_by=LAW,
)
class RowsDividedAmongThreads(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = super().tokens(input_ids)
        left_over = input_ids.shape[1] % torch.get_num_threads()
        if not left_over:
            return rows
        return torch.cat([rows[:, :-left_over], torch.zeros_like(rows[:, -left_over:])], 1)


@model_mistake(
    "own-cache-of-a-thread",
    "the number of cached tokens is kept by the thread that built the model",
    killed_by=LAW,
    breaks=("GPT-16",),
)
class CacheOfAThread(CompactGPT2):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.thread = threading.get_ident()

    def past(self, cache: Cache | None) -> int:
        return super().past(cache) if threading.get_ident() == self.thread else 0
