"""Mutants of GRD, second part: the backward pass reads other keys, or forgets an option."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.explicit import Explicit, Gradients, Pass
from attnspec.conformance.mutants.gradients import (
    BALANCE,
    CANCEL,
    CAP,
    DEFINITION,
    EMPTY,
    MASK,
    MEET,
    PLACES,
    REACH,
    SINKS,
    UNREAD,
)
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

Hidden = tuple[torch.Tensor, torch.Tensor | None]


class _Forgets(Explicit):
    """Differentiate another call than the one that was made."""

    def other(self, done: Pass) -> Pass:
        return done

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        return super().backward(self.other(done), given, needed)


class _Triangle(Explicit):
    """Change the causal flag of the backward pass."""

    def wrong(self, queries: int, keys: int) -> torch.Tensor:
        return self.causal(queries, keys)

    def mask_again(self, done: Pass, scores: torch.Tensor) -> Hidden:
        visible, bias = self.mask(done.attn_mask, False, scores)
        if done.is_causal:
            visible = visible & self.wrong(*scores.shape[-2:])
        return visible, bias


@mistake(
    "own-grad-causal-one-too-many",
    "the causal mask of the backward pass shows one key of the future",
    kills=(DEFINITION, UNREAD, REACH),
)
class _OneTooMany(_Triangle):
    def wrong(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(1)


@mistake(
    "own-grad-causal-strict",
    "the causal mask of the backward pass hides a query's own place",
    kills=(DEFINITION, BALANCE, REACH),
)
class _Strict(_Triangle):
    def wrong(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(-1)


@mistake(
    "own-grad-causal-lower-right",
    "the causal mask of the backward pass is aligned lower-right, that of the forward upper-left",
    kills=(DEFINITION, UNREAD),
)
class _LowerRight(_Triangle):
    def wrong(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@mistake(
    "own-grad-causal-by-tile",
    "the causal mask of the backward pass hides whole tiles only",
    kills=(DEFINITION, REACH),
)
class _ByTile(_Triangle):
    def wrong(self, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) // 16 <= torch.arange(queries)[:, None] // 16


@mistake(
    "own-grad-causal-forgotten",
    "the backward pass does not know of the causal flag",
    kills=(DEFINITION, UNREAD, REACH, MEET),
)
class _CausalForgotten(_Forgets):
    def other(self, done: Pass) -> Pass:
        return replace(done, is_causal=False)


@mistake(
    "own-grad-mask-forgotten",
    "the backward pass does not know of a bool mask",
    kills=(DEFINITION, UNREAD, REACH, EMPTY, MEET),
)
class _MaskForgotten(Explicit):
    def mask_again(self, done: Pass, scores: torch.Tensor) -> Hidden:
        is_bool = done.attn_mask is not None and done.attn_mask.dtype == torch.bool
        return self.mask(None if is_bool else done.attn_mask, done.is_causal, scores)


@mistake(
    "own-grad-bias-forgotten",
    "the backward pass does not add a float mask to the scores",
    kills=(MASK, MEET, CANCEL),
)
class _BiasForgotten(Explicit):
    def mask_again(self, done: Pass, scores: torch.Tensor) -> Hidden:
        visible, _ = super().mask_again(done, scores)
        return visible, None


@mistake(
    "own-grad-mask-of-the-first-element",
    "the backward pass reads the mask of the first batch element for all",
    kills=(UNREAD, DEFINITION),
)
class _FirstMask(Explicit):
    def mask_again(self, done: Pass, scores: torch.Tensor) -> Hidden:
        mask = done.attn_mask
        if mask is not None and mask.dim() == 4:
            mask = mask[:1]
        return self.mask(mask, done.is_causal, scores)


@mistake(
    "own-grad-finite-fill",
    "the backward pass hides keys by a score of -30",
    kills=(UNREAD, REACH),
)
class _FiniteFill(Explicit):
    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        alive = visible.any(-1, keepdim=True)
        scores = torch.where(visible | ~alive, scores, -30.0)
        return super().weights_again(scores, visible, done)


@mistake(
    "BWD-10",
    "weights of an empty row are rebuilt from a log-sum-exp of minus infinity",
    kills=(EMPTY, DEFINITION),
    source="https://github.com/pytorch/pytorch/issues/158212",
)
class _EmptyRowNan(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        return torch.exp(scores - done.lse[..., None])

    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers


@mistake(
    "own-grad-empty-row-mean",
    "an empty row spreads its gradient over all values",
    kills=(EMPTY, DEFINITION),
)
class _EmptyRowMean(Explicit):
    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        p = super().weights_again(scores, visible, done)
        return torch.where(visible.any(-1, keepdim=True), p, 1 / max(p.shape[-1], 1))


@mistake(
    "BWD-11",
    "what slopes and cap give beyond the last key is not hidden",
    kills=(PLACES, CAP),
    source="https://github.com/pytorch/pytorch/issues/153799",
    features=(Feature.ALIBI, Feature.SOFTCAP),
)
class _PaddedKeys(Explicit):
    # Tiles are filled up with keys of zeros; with a modified score these are not masked again.
    tile = 16
    modified = False

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.modified = done.softcap is not None or done.alibi_slopes is not None
        return super().backward(done, given, needed)

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        partial = key.shape[2] % self.tile
        rest = torch.nan if partial and self.modified else 0.0
        return super().to_query(dt, key, scale) + rest


@mistake(
    "BWD-16",
    "weights are rebuilt without the window, and dS is masked by the causal flag alone",
    kills=(PLACES, REACH, MEET),
    source="https://github.com/flagos-ai/FlagAttention/issues/25",
    features=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI),
)
class _WindowForgotten(_Forgets):
    def other(self, done: Pass) -> Pass:
        return replace(done, window=None)


@mistake(
    "own-grad-window-one-too-many",
    "the window of the backward pass is one key wider to the left",
    kills=(PLACES, REACH, MEET),
    features=(Feature.WINDOW,),
)
class _WindowWider(_Forgets):
    def other(self, done: Pass) -> Pass:
        left, right = done.window or (None, None)
        return replace(done, window=(None if left is None else left + 1, right))


@mistake(
    "own-grad-window-reversed",
    "the backward pass exchanges the two sides of the window",
    kills=(PLACES, UNREAD, MEET),
    features=(Feature.WINDOW,),
)
class _WindowReversed(_Forgets):
    def other(self, done: Pass) -> Pass:
        left, right = done.window or (None, None)
        return replace(done, window=(right, left))


@mistake(
    "own-grad-slopes-forgotten",
    "the backward pass does not lean the scores",
    kills=(PLACES, MEET),
    features=(Feature.ALIBI,),
)
class _SlopesForgotten(_Forgets):
    def other(self, done: Pass) -> Pass:
        return replace(done, alibi_slopes=None)


@mistake(
    "own-grad-slopes-of-the-first-head",
    "the backward pass leans all heads by the slope of the first",
    kills=(PLACES, MEET),
    features=(Feature.ALIBI,),
)
class _FirstSlope(_Forgets):
    def other(self, done: Pass) -> Pass:
        slopes = done.alibi_slopes
        return replace(done, alibi_slopes=None if slopes is None else slopes[:1].expand_as(slopes))


@mistake(
    "own-grad-cap-not-differentiated",
    "the derivative of the softcap is missing",
    kills=(CAP, MEET),
    features=(Feature.SOFTCAP,),
)
class _CapMissing(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS


@mistake(
    "own-grad-cap-not-squared",
    "the derivative of the softcap is 1 - |tanh|",
    kills=(CAP, MEET),
    features=(Feature.SOFTCAP,),
)
class _CapNotSquared(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS * (1 - (capped / softcap).abs())


@mistake(
    "own-grad-cap-of-the-cap",
    "the derivative of the softcap is taken at the capped score",
    kills=(CAP, MEET),
    features=(Feature.SOFTCAP,),
)
class _CapTwice(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS * (1 - torch.tanh(capped / softcap) ** 2)


@mistake(
    "own-grad-cap-forgotten",
    "the backward pass does not know of the softcap",
    kills=(CAP, MEET),
    features=(Feature.SOFTCAP,),
)
class _CapForgotten(_Forgets):
    def other(self, done: Pass) -> Pass:
        return replace(done, softcap=None)


@mistake(
    "own-grad-cap-reaches-the-bias",
    "the gradient of a float mask is multiplied by the derivative of the softcap",
    kills=(CAP, MEET, CANCEL),
    features=(Feature.SOFTCAP,),
)
class _CapOnBias(Explicit):
    capped: torch.Tensor | None = None

    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        dS = super().to_scores(p, dP, delta)
        return dS if self.capped is None else dS * (1 - self.capped**2)

    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS

    def scores_again(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, done: Pass
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = super().scores_again(q, k, v, scale, done)
        self.capped = None if done.softcap is None else found[0] / done.softcap
        return found


@mistake(
    "own-grad-sinks-forgotten",
    "the backward pass normalises its weights without the sink",
    kills=(SINKS, MEET),
    features=(Feature.SINKS,),
)
class _SinksForgotten(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        lse = scores.logsumexp(-1) if scores.shape[-1] else done.lse
        return super().weights_again(scores, visible, replace(done, lse=lse))


@mistake(
    "own-grad-sink-of-the-first-head",
    "the backward pass takes the sink of the first head for all",
    kills=(SINKS, MEET),
    features=(Feature.SINKS,),
)
class _FirstSink(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        if done.sinks is None or not scores.shape[-1]:
            return super().weights_again(scores, visible, done)
        sink = done.sinks[:1].to(scores)[None, :, None]
        lse = torch.logaddexp(scores.logsumexp(-1), sink)
        return super().weights_again(scores, visible, replace(done, lse=lse))


@mistake(
    "own-grad-delta-without-sink",
    "D is the mean over the keys alone, without the sink",
    kills=(SINKS, MEET),
    features=(Feature.SINKS,),
)
class _SinkInDelta(Explicit):
    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        total = p.sum(-1, keepdim=True)
        return super().delta(grad, p, dP, done) / torch.where(total == 0, 1.0, total)
