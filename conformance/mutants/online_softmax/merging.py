"""Mutants of merges: shares, order, empty parts, overflow and memory."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.online_softmax import PlainMerge, merge_mistake
from attnspec.spec.online_softmax import LogBase

GITHUB = "https://github.com"


@merge_mistake(
    "own-onl-mean-of-parts",
    "both parts count the same",
    killed_by="merged-parts-equal-the-whole",
)
class MeanOfParts(PlainMerge):
    def shares(self, a: torch.Tensor, b: torch.Tensor, divisor: torch.Tensor) -> Any:
        return torch.full_like(a, 0.5), torch.full_like(b, 0.5)


@merge_mistake(
    "ONL-07",
    "log-sum-exps to base 2 are merged as natural ones",
    killed_by="merged-parts-equal-the-whole",
    source=f"{GITHUB}/meta-pytorch/attention-gym/pull/205",
    log=LogBase.TWO,
)
class WrongBase(PlainMerge):
    def __call__(self, *parts: torch.Tensor) -> Any:
        profile, self.profile = self.profile, PlainMerge.profile
        try:
            return super().__call__(*parts)
        finally:
            self.profile = profile


@merge_mistake(
    "own-onl-shares-swapped",
    "a part whose log-sum-exp is lower has the share of the other",
    killed_by="merged-parts-may-change-places",
)
class SharesSwapped(PlainMerge):
    def shares(self, a: torch.Tensor, b: torch.Tensor, divisor: torch.Tensor) -> Any:
        return torch.maximum(a, b) / divisor, torch.minimum(a, b) / divisor


@merge_mistake(
    "own-onl-larger-kept",
    "the log-sum-exp of the whole is the larger one of the parts",
    killed_by="parts-merge-in-any-grouping",
)
class LargerKept(PlainMerge):
    def log(self, total: torch.Tensor, divisor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return torch.where(total == 0, -torch.inf, shift)


@merge_mistake(
    "own-onl-empty-as-zero",
    "the log-sum-exp of an empty part is taken for zero",
    killed_by="an-empty-part-changes-nothing",
)
class EmptyAsZero(PlainMerge):
    def __call__(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> Any:
        is_empty = (lse_a == -torch.inf) & (lse_b == -torch.inf)
        first = torch.where(is_empty, lse_a, lse_a.nan_to_num(neginf=0.0))
        second = torch.where(is_empty, lse_b, lse_b.nan_to_num(neginf=0.0))
        return super().__call__(out_a, first, out_b, second)


@merge_mistake(
    "ONL-08",
    "two empty parts give NaN, since minus infinity is subtracted from itself",
    killed_by="two-empty-parts-merge-into-an-empty-one",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/issues/4051",
)
class EmptyMinusEmpty(PlainMerge):
    def shift(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.maximum(first, second)


@merge_mistake(
    "own-onl-empty-finite",
    "two empty parts have a log-sum-exp that is finite",
    killed_by="two-empty-parts-merge-into-an-empty-one",
)
class FiniteEmpty(PlainMerge):
    def log(self, total: torch.Tensor, divisor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return super().log(total, divisor, shift).clamp(min=-1e30)


@merge_mistake(
    "own-onl-merge-overflows",
    "the exponentials of the log-sum-exps are added as they are",
    killed_by="large-log-sum-exps-neither-overflow-nor-vanish",
)
class Overflows(PlainMerge):
    def shift(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(first)


@merge_mistake(
    "ONL-09",
    "the merged log-sum-exp takes the place of that of the first part",
    killed_by="parts-are-read-by-their-strides-and-stay-as-they-are",
    source=f"{GITHUB}/local-inference-lab/vllm/pull/468",
)
class InPlace(PlainMerge):
    def __call__(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> Any:
        out, lse = super().__call__(out_a, lse_a, out_b, lse_b)
        return out, lse_a.copy_(lse)
