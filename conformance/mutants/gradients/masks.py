"""Mutants of GRD: the backward pass reads other keys, or ignores an option."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

Hidden = tuple[torch.Tensor, torch.Tensor | None]


class OtherCall(Explicit):
    """A backward pass that differentiates another call."""

    def changed(self, saved: Saved) -> Saved:
        return saved

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        return super().backward(self.changed(saved), d_out, needed)


class OtherTriangle(Explicit):
    """A backward pass with another causal mask."""

    def causal_again(self, queries: int, keys: int) -> torch.Tensor:
        return self.causal(queries, keys)

    def mask_again(self, saved: Saved, scores: torch.Tensor) -> Hidden:
        visible, bias = self.mask(saved.attn_mask, False, scores)
        if saved.is_causal:
            visible = visible & self.causal_again(*scores.shape[-2:])
        return visible, bias


@mistake(
    "own-grad-causal-one-too-many",
    "the causal mask of the backward pass shows one key of the future",
    killed_by="gradients-equal-the-definition",
)
class OneKeyOfTheFuture(OtherTriangle):
    def causal_again(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(1)


@mistake(
    "own-grad-causal-strict",
    "the causal mask of the backward pass hides a query's own position",
    killed_by="gradients-equal-the-definition",
)
class OwnPlaceHidden(OtherTriangle):
    def causal_again(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(-1)


@mistake(
    "own-grad-causal-lower-right",
    "the causal mask of the backward pass is aligned lower-right, that of the forward upper-left",
    killed_by="gradients-equal-the-definition",
)
class LowerRight(OtherTriangle):
    def causal_again(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@mistake(
    "own-grad-causal-by-tile",
    "the causal mask of the backward pass hides whole tiles only",
    killed_by="a-gradient-reaches-only-what-its-row-reads",
)
class TriangleByTile(OtherTriangle):
    def causal_again(self, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) // 16 <= torch.arange(queries)[:, None] // 16


@mistake(
    "own-grad-causal-forgotten",
    "the backward pass does not know of the causal flag",
    killed_by="gradients-equal-the-definition",
)
class CausalForgotten(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        return replace(saved, is_causal=False)


@mistake(
    "own-grad-mask-forgotten",
    "the backward pass does not know of a bool mask",
    killed_by="gradients-equal-the-definition",
)
class MaskForgotten(Explicit):
    def mask_again(self, saved: Saved, scores: torch.Tensor) -> Hidden:
        is_bool = saved.attn_mask is not None and saved.attn_mask.dtype == torch.bool
        return self.mask(None if is_bool else saved.attn_mask, saved.is_causal, scores)


@mistake(
    "own-grad-bias-forgotten",
    "the backward pass does not add a float mask to the scores",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class BiasForgotten(Explicit):
    def mask_again(self, saved: Saved, scores: torch.Tensor) -> Hidden:
        visible, _ = super().mask_again(saved, scores)
        return visible, None


@mistake(
    "own-grad-mask-of-the-first-element",
    "the backward pass reads the mask of the first batch element for all",
    killed_by="unreadable-keys-have-no-gradient",
)
class FirstMask(Explicit):
    def mask_again(self, saved: Saved, scores: torch.Tensor) -> Hidden:
        mask = saved.attn_mask
        if mask is not None and mask.dim() == 4:
            mask = mask[:1]
        return self.mask(mask, saved.is_causal, scores)


@mistake(
    "own-grad-finite-fill",
    "the backward pass hides keys by a score of -30",
    killed_by="unreadable-keys-have-no-gradient",
)
class FiniteFill(Explicit):
    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        alive = visible.any(-1, keepdim=True)
        scores = torch.where(visible | ~alive, scores, -30.0)
        return super().weights_again(scores, visible, saved)


@mistake(
    "BWD-10",
    "weights of an empty row are rebuilt from a log-sum-exp of minus infinity",
    killed_by="an-empty-row-adds-nothing-to-gradients",
    source="https://github.com/pytorch/pytorch/issues/158212",
)
class EmptyRowNan(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        return torch.exp(scores - saved.lse[..., None])

    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers


@mistake(
    "own-grad-empty-row-mean",
    "an empty row spreads its gradient over all values",
    killed_by="an-empty-row-adds-nothing-to-gradients",
)
class EmptyRowMean(Explicit):
    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return numbers

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        p = super().weights_again(scores, visible, saved)
        return torch.where(visible.any(-1, keepdim=True), p, 1 / max(p.shape[-1], 1))


@mistake(
    "BWD-11",
    "what slopes and cap give beyond the last key is not hidden",
    killed_by="gradients-go-through-windows-and-slopes",
    source="https://github.com/pytorch/pytorch/issues/153799",
    features=(Feature.ALIBI, Feature.SOFTCAP),
)
class PaddedKeysNotHidden(Explicit):
    # Tiles are padded with keys of zeros, which are not masked again if scores are modified.
    tile = 16
    modified = False

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.modified = saved.softcap is not None or saved.alibi_slopes is not None
        return super().backward(saved, d_out, needed)

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        partial = key.shape[2] % self.tile
        rest = torch.nan if partial and self.modified else 0.0
        return super().to_query(dt, key, scale) + rest


@mistake(
    "BWD-16",
    "weights are rebuilt without the window, and dS is masked by the causal flag alone",
    killed_by="gradients-go-through-windows-and-slopes",
    source="https://github.com/flagos-ai/FlagAttention/issues/25",
    features=(Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI),
)
class WindowForgotten(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        return replace(saved, window=None)


@mistake(
    "own-grad-window-one-too-many",
    "the window of the backward pass is one key wider to the left",
    killed_by="gradients-go-through-windows-and-slopes",
    features=(Feature.WINDOW,),
)
class WindowWider(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        left, right = saved.window or (None, None)
        return replace(saved, window=(None if left is None else left + 1, right))


@mistake(
    "own-grad-window-reversed",
    "the backward pass exchanges the two sides of the window",
    killed_by="gradients-go-through-windows-and-slopes",
    features=(Feature.WINDOW,),
)
class WindowReversed(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        left, right = saved.window or (None, None)
        return replace(saved, window=(right, left))


@mistake(
    "own-grad-slopes-forgotten",
    "the backward pass does not lean the scores",
    killed_by="gradients-are-right-with-options-combined",
    features=(Feature.ALIBI,),
)
class SlopesForgotten(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        return replace(saved, alibi_slopes=None)


@mistake(
    "own-grad-slopes-of-the-first-head",
    "the backward pass leans all heads by the slope of the first",
    killed_by="gradients-go-through-windows-and-slopes",
    features=(Feature.ALIBI,),
)
class FirstSlope(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        slopes = saved.alibi_slopes
        return replace(saved, alibi_slopes=None if slopes is None else slopes[:1].expand_as(slopes))


@mistake(
    "own-grad-cap-not-differentiated",
    "the derivative of the softcap is missing",
    killed_by="gradients-go-through-the-softcap",
    features=(Feature.SOFTCAP,),
)
class CapMissing(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS


@mistake(
    "own-grad-cap-not-squared",
    "the derivative of the softcap is 1 - |tanh|",
    killed_by="gradients-go-through-the-softcap",
    features=(Feature.SOFTCAP,),
)
class CapNotSquared(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS * (1 - (capped / softcap).abs())


@mistake(
    "own-grad-cap-of-the-cap",
    "the derivative of the softcap is taken at the capped score",
    killed_by="gradients-go-through-the-softcap",
    features=(Feature.SOFTCAP,),
)
class CapOfTheCap(Explicit):
    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS * (1 - torch.tanh(capped / softcap) ** 2)


@mistake(
    "own-grad-cap-forgotten",
    "the backward pass does not know of the softcap",
    killed_by="gradients-go-through-the-softcap",
    features=(Feature.SOFTCAP,),
)
class CapForgotten(OtherCall):
    def changed(self, saved: Saved) -> Saved:
        return replace(saved, softcap=None)


@mistake(
    "own-grad-cap-reaches-the-bias",
    "the gradient of a float mask is multiplied by the derivative of the softcap",
    killed_by="gradients-go-through-the-softcap",
    features=(Feature.SOFTCAP,),
)
class CapOnBias(Explicit):
    capped: torch.Tensor | None = None

    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        dS = super().to_scores(p, dP, delta)
        return dS if self.capped is None else dS * (1 - self.capped**2)

    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        return dS

    def scores_again(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, saved: Saved
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        results = super().scores_again(q, k, v, scale, saved)
        self.capped = None if saved.softcap is None else results[0] / saved.softcap
        return results


@mistake(
    "own-grad-sinks-forgotten",
    "the backward pass normalises its weights without the sink",
    killed_by="gradients-account-for-sinks",
    features=(Feature.SINKS,),
)
class SinksForgotten(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        lse = scores.logsumexp(-1) if scores.shape[-1] else saved.lse
        return super().weights_again(scores, visible, replace(saved, lse=lse))


@mistake(
    "own-grad-sink-of-the-first-head",
    "the backward pass takes the sink of the first head for all",
    killed_by="gradients-account-for-sinks",
    features=(Feature.SINKS,),
)
class FirstSink(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        if saved.sinks is None or not scores.shape[-1]:
            return super().weights_again(scores, visible, saved)
        sink = saved.sinks[:1].to(scores)[None, :, None]
        lse = torch.logaddexp(scores.logsumexp(-1), sink)
        return super().weights_again(scores, visible, replace(saved, lse=lse))


@mistake(
    "own-grad-delta-without-sink",
    "D is the mean over the keys alone, without the sink",
    killed_by="gradients-account-for-sinks",
    features=(Feature.SINKS,),
)
class DeltaWithoutSink(Explicit):
    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        total = p.sum(-1, keepdim=True)
        return super().delta(grad, p, dP, saved) / torch.where(total == 0, 1.0, total)
