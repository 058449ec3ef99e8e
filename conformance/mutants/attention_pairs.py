"""Mutants of ATT that are right with each option alone, and wrong where two options meet."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

LAW = ("options-combine",)


class Noticing(Dense):
    """A correct attention whose steps can see all the arguments of the call."""

    given: dict[str, Any]

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *more: Any,
        **options: Any,
    ) -> Any:
        self.given = {"query": query, "key": key, "value": value, **options}
        return super().__call__(query, key, value, *more, **options)


@mistake(
    "own-pair-softcap-causal",
    "softcap forgotten in the branch for causal masks",
    kills=LAW,
    features={Feature.SOFTCAP},
)
class CapForgotten(Noticing):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores if self.given.get("is_causal") else super().cap(scores, softcap)


@mistake(
    "own-pair-window-mask",
    "window ignored where a mask is given",
    kills=LAW,
    features={Feature.WINDOW},
)
class WindowIgnored(Noticing):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        if self.given.get("attn_mask") is not None:
            left, right = None, None
        return super().window(left, right, queries, keys)


@mistake(
    "own-pair-sinks-groups",
    "sinks read by key/value head where heads are grouped",
    kills=LAW,
    features={Feature.SINKS},
)
class SinksByGroup(Noticing):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kv_heads = self.given["key"].shape[1]
        shared = sinks[:kv_heads].repeat_interleave(scores.shape[1] // kv_heads)
        return super().sink(scores, visible, shared)


@mistake(
    "own-pair-alibi-scale",
    "slopes scaled like the scores where a scale is given",
    kills=LAW,
    features={Feature.ALIBI},
)
class SlopesScaled(Noticing):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        scale = self.given.get("scale")
        return super().lean(scores, slopes if scale is None else slopes * scale)


@mistake(
    "own-pair-lse-half",
    "log-sum-exp taken of scores rounded to float16",
    kills=LAW,
    features={Feature.LSE},
)
class LseRounded(Noticing):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        is_half = self.given["query"].dtype == torch.float16
        return super().lse(scores.half().to(scores.dtype) if is_half else scores)


@mistake(
    "own-pair-gradient-expanded",
    "keys that share memory get a gradient of zero",
    kills=LAW,
)
class ExpandedDetached(Dense):
    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *more: Any,
        **options: Any,
    ) -> Any:
        is_shared = key.stride(1) == 0 and key.shape[1] > 1
        # times zero, so that a gradient comes at all
        key = key.detach() + 0 * key if is_shared else key
        return super().__call__(query, key, value, *more, **options)
