"""Mutants of ATT that are right with one option, and wrong with two options together."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature


@mistake(
    "own-pair-softcap-causal",
    "softcap forgotten in the branch for causal masks",
    killed_by="options-combine",
    features={Feature.SOFTCAP},
)
class CapForgotten(DenseWithArguments):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores if self.call.get("is_causal") else super().cap(scores, softcap)


@mistake(
    "own-pair-window-mask",
    "window ignored where a mask is given",
    killed_by="options-combine",
    features={Feature.WINDOW},
)
class WindowIgnored(DenseWithArguments):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        if self.call.get("attn_mask") is not None:
            left, right = None, None
        return super().window(left, right, queries, keys)


@mistake(
    "own-pair-sinks-groups",
    "sinks read by key/value head where heads are grouped",
    killed_by="options-combine",
    features={Feature.SINKS},
)
class SinksByGroup(DenseWithArguments):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kv_heads = self.call["key"].shape[1]
        shared = sinks[:kv_heads].repeat_interleave(scores.shape[1] // kv_heads)
        return super().sink(scores, visible, shared)


@mistake(
    "own-pair-alibi-scale",
    "slopes scaled like the scores where a scale is given",
    killed_by="options-combine",
    features={Feature.ALIBI},
)
class SlopesScaled(DenseWithArguments):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        scale = self.call.get("scale")
        return super().add_alibi(scores, slopes if scale is None else slopes * scale)


@mistake(
    "own-pair-lse-half",
    "log-sum-exp taken of scores rounded to float16",
    killed_by="options-combine",
    features={Feature.LSE},
)
class LseRounded(DenseWithArguments):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        is_half = self.call["query"].dtype == torch.float16
        return super().lse(scores.half().to(scores.dtype) if is_half else scores)


@mistake(
    "own-pair-gradient-expanded",
    "keys that share memory get a gradient of zero",
    killed_by="the-layout-of-the-operands-changes-no-gradient",
)
class ExpandedDetached(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        is_shared = key.stride(1) == 0 and key.shape[1] > 1
        # times zero, so that there is a gradient
        key = key.detach() + 0 * key if is_shared else key
        return super().__call__(query, key, value, *rest, **options)
