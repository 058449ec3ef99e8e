"""Mutants of ATT: a log-sum-exp of wrong base, shift, type, layout or keys."""

import math
from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

GITHUB = "https://github.com"
LSE = {Feature.LSE}
correct: Callable[..., Any] = Dense()


@mistake(
    "NUM-07",
    "the log-sum-exp is to base 2",
    killed_by="log-sum-exp-equals-the-definition",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/pull/4547",
    features=LSE,
)
class BaseTwo(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores) / math.log(2)


@mistake(
    "own-lse-without-maximum",
    "the maximum is not added back",
    killed_by="log-sum-exp-equals-the-definition",
    source=f"{GITHUB}/Dao-AILab/flash-attention/issues/404",
    features=LSE,
)
class WithoutMaximum(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        if scores.shape[-1] == 0:
            return super().lse(scores)
        peak = scores.amax(-1)
        return super().lse(scores) - torch.where(peak == -torch.inf, 0.0, peak)


@mistake(
    "own-lse-maximum-alone",
    "the maximum stands for the log-sum-exp",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class MaximumAlone(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(-1) if scores.shape[-1] else super().lse(scores)


@mistake(
    "own-lse-sum",
    "the sum comes back without its logarithm",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class SumAlone(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).exp()


@mistake(
    "own-lse-negated",
    "the negative of the log-sum-exp comes back",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class Negated(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return -super().lse(scores)


@mistake(
    "own-lse-mean",
    "the logarithm of the mean comes back, not of the sum",
    killed_by="many-uneven-parts-merge-into-the-whole",
    features=LSE,
)
class LogMean(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores) - math.log(max(scores.shape[-1], 1))


@mistake(
    "own-lse-narrow",
    "the log-sum-exp is stored in the type of the values",
    killed_by="log-sum-exp-of-equal-scores-counts-the-keys",
    features=LSE,
)
class Narrow(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        result = super().__call__(query, key, value, *rest, **options)
        return (result[0], result[1].to(value.dtype)) if options.get("return_lse") else result


@mistake(
    "own-lse-rounded",
    "the log-sum-exp passes through bfloat16",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class Rounded(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).bfloat16().to(scores.dtype)


@mistake(
    "own-lse-transposed",
    "queries come before heads",
    killed_by="returning-the-log-sum-exp-changes-no-output",
    features=LSE,
)
class HeadsAndQueriesSwapped(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).transpose(1, 2).contiguous()


@mistake(
    "own-lse-column",
    "the log-sum-exp keeps an axis of one key",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class Column(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores)[..., None]


@mistake(
    "own-lse-empty-row-zero",
    "a row that reads nothing has the log-sum-exp 0",
    killed_by="a-part-without-readable-keys-has-weight-zero",
    features=LSE,
)
class EmptyRowZero(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        return torch.where(lse == -torch.inf, 0.0, lse)


@mistake(
    "own-lse-empty-row-finite",
    "a row that reads nothing has the log-sum-exp -10000",
    killed_by="an-empty-row-has-its-log-sum-exp",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/issues/4450",
    features=LSE,
)
class EmptyRowFinite(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).clamp(min=-1e4)


@mistake(
    "own-lse-empty-row-nan",
    "a row that reads nothing has the log-sum-exp NaN",
    killed_by="an-empty-row-has-its-log-sum-exp",
    features=LSE,
)
class EmptyRowNan(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        return torch.where(lse == -torch.inf, torch.nan, lse)


@mistake(
    "own-lse-of-hidden-keys",
    "keys that may not be read are counted",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class HiddenCounted(Dense):
    before: torch.Tensor

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.before = scores
        return super().hide(scores, visible)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(self.before)


@mistake(
    "own-lse-of-padding",
    "keys that fill up a tile of 8 are counted with a score of zero",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class PaddingCounted(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(torch.nn.functional.pad(scores, (0, -scores.shape[-1] % 8)))


@mistake(
    "own-lse-without-sink",
    "the sink is missing from the log-sum-exp alone",
    killed_by="log-sum-exp-equals-the-definition",
    features={Feature.LSE, Feature.SINKS},
)
class WithoutSink(DenseWithArguments):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores if self.call.get("sinks") is None else scores[..., :-1])


@mistake(
    "own-lse-before-softcap",
    "the log-sum-exp is that of the scores before the softcap",
    killed_by="log-sum-exp-equals-the-definition",
    features={Feature.LSE, Feature.SOFTCAP},
)
class BeforeSoftcap(DenseWithArguments):
    moved: torch.Tensor | float = 0.0

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        capped = super().cap(scores, softcap)
        self.moved = scores - capped
        return capped

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        if self.call.get("softcap") is None:
            return super().lse(scores)
        keys = self.call["key"].shape[2]
        return super().lse(torch.cat([scores[..., :keys] + self.moved, scores[..., keys:]], -1))


@mistake(
    "own-lse-bias-of-one",
    "readable keys get a bias of 1 and hidden ones minus infinity, which softmax ignores",
    killed_by="log-sum-exp-normalises-the-weights",
    source=f"{GITHUB}/tinygrad/tinygrad/pull/2425",
    features=LSE,
)
class BiasOfOne(DenseWithArguments):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores + 1 if self.call.get("is_causal") else scores, visible)


@mistake(
    "own-lse-stale-maximum",
    "the sum is measured against the maximum of all tiles but the last",
    killed_by="two-halves-merge-into-the-whole",
    features=LSE,
)
class StaleMaximum(Tiled):
    before: torch.Tensor | None = None

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        self.before = torch.where(peak == -torch.inf, grown, peak)
        return grown

    def tiled_lse(self, peak: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return super().tiled_lse(peak if self.before is None else self.before, total)


@mistake(
    "own-lse-output-unnormalised",
    "the output is not divided by its sum if the log-sum-exp is returned",
    killed_by="log-sum-exp-equals-the-definition",
    features=LSE,
)
class Unnormalised(DenseWithArguments):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        total = super().total(weights)
        return torch.ones_like(total) if self.call.get("return_lse") else total


@mistake(
    "own-lse-output-without-causal-flag",
    "the path that gives the log-sum-exp forgets the causal flag",
    killed_by="log-sum-exp-equals-the-definition",
    source=f"{GITHUB}/keras-team/keras/issues/23038",
    features=LSE,
)
class FlagForgotten(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if options.get("return_lse"):
            options.pop("is_causal", None)
        return super().__call__(query, key, value, *rest, **options)


@mistake(
    "own-lse-keys-centred",
    "the mean of all keys is taken off them, which only the log-sum-exp feels",
    killed_by="log-sum-exp-shifts-with-all-scores",
    features=LSE,
)
class KeysCentred(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key - key.mean(2, keepdim=True), scale)


@mistake(
    "own-lse-without-bias",
    "a float mask is missing from the log-sum-exp",
    killed_by="log-sum-exp-shifts-with-the-bias",
    features=LSE,
)
class WithoutBias(DenseWithArguments):
    added: torch.Tensor | float = 0.0

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        self.added = bias.masked_fill(bias == -torch.inf, 0.0)
        return super().add_bias(scores, bias)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        mask = self.call.get("attn_mask")
        if mask is None or mask.dtype == torch.bool or self.call.get("sinks") is not None:
            return super().lse(scores)
        return super().lse(scores - self.added)


@mistake(
    "own-lse-workspace",
    "the log-sum-exp is a view of a workspace, which the next call overwrites",
    killed_by="the-log-sum-exp-has-memory-of-its-own",
    features=LSE,
)
class Workspace:
    """An attention that writes every log-sum-exp of one shape to the same memory."""

    def __init__(self) -> None:
        self.workspace = torch.empty(0)

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        result = correct(*operands, **options)
        if not isinstance(result, tuple):
            return result
        out, lse = result
        if self.workspace.shape != lse.shape or self.workspace.dtype != lse.dtype:
            self.workspace = torch.empty_like(lse)
        return out, self.workspace.copy_(lse.detach())
