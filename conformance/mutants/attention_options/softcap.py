"""Mutants of ATT: a softcap with a wrong formula, or at the wrong place."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.spec import Feature, SoftcapOrder

GITHUB = "https://github.com"
SOFTCAP = {Feature.SOFTCAP}


class CapElsewhere(DenseWithArguments):
    """An attention that skips its softcap, for mutants that apply it at another place."""

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return scores

    def apply_cap(self, scores: torch.Tensor) -> torch.Tensor:
        """Apply the softcap, if there is one."""
        softcap = self.call.get("softcap")
        return scores if softcap is None else super().cap(scores, softcap)


@mistake(
    "MSK-36",
    "softcap after the mask, so that minus infinity becomes -c",
    killed_by="softcap-reveals-no-hidden-key",
    source=f"{GITHUB}/onnx/onnx/issues/7865",
    features=SOFTCAP,
)
class CapAfterMask(CapElsewhere):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return self.apply_cap(super().hide(scores, visible))


@mistake(
    "own-softcap-after-bias",
    "softcap after the bias, which it bounds",
    killed_by="softcap-leaves-the-bias-alone",
    source=f"{GITHUB}/microsoft/onnxruntime/pull/28370",
    features=SOFTCAP,
)
class CapAfterBias(CapElsewhere):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(self.apply_cap(scores), visible)


plant_dense(
    "own-softcap-before-bias",
    "softcap before the bias where after_bias is declared",
    Dense(),
    killed_by="softcap-leaves-the-bias-alone",
    features=SOFTCAP,
    softcap_order=SoftcapOrder.AFTER_BIAS,
)


@mistake(
    "own-softcap-after-bias-and-mask",
    "softcap after the bias, as declared, and after the mask, so that minus infinity becomes -c",
    killed_by="softcap-reveals-no-hidden-key",
    features=SOFTCAP,
    softcap_order=SoftcapOrder.AFTER_BIAS,
)
class CapAfterBiasAndMask(CapAfterMask):
    """The same attention as `CapAfterMask`, with the other declaration."""


@mistake(
    "own-softcap-before-slopes",
    "softcap after the float mask and before ALiBi where after_bias is declared",
    killed_by="alibi-is-added-after-scale-and-softcap",
    features={Feature.SOFTCAP, Feature.ALIBI},
    softcap_order=SoftcapOrder.AFTER_BIAS,
)
class CapBeforeSlopes(CapElsewhere):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return scores

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        scores, slopes = self.apply_cap(scores), self.call.get("alibi_slopes")
        if slopes is not None:
            scores = super().add_alibi(scores, slopes.to(scores))
        return super().hide(scores, visible)


@mistake(
    "own-grad-softcap-around-bias",
    "softcap after the bias, as declared, but the gradient of the bias does not go through it",
    killed_by="gradients-go-through-the-softcap",
    features=SOFTCAP,
    softcap_order=SoftcapOrder.AFTER_BIAS,
)
class GradientAroundCap(CapElsewhere):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        finite = bias.masked_fill(bias == -torch.inf, 0.0)
        # adds zero, whose gradient by the bias is one
        capped = self.apply_cap(scores + finite.detach()) + (finite - finite.detach())
        self.is_capped = True
        return capped

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if not self.is_capped:
            scores = self.apply_cap(scores)
        return super().hide(scores, visible)

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.is_capped = False
        return super().scores(query, key, scale)


@mistake(
    "own-softcap-before-scale",
    "softcap before the scale",
    killed_by="softcap-is-bounded-odd-and-monotone",
    features=SOFTCAP,
)
class CapBeforeScale(CapElsewhere):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return self.apply_cap(super().scores(query, key, 1.0)) * scale


@mistake(
    "own-softcap-ignored",
    "softcap is ignored",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class CapIgnored(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores


@mistake(
    "own-softcap-not-multiplied",
    "tanh(score / c) is not multiplied by c again",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class NotMultiplied(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(scores, softcap) / softcap


@mistake(
    "own-softcap-not-divided",
    "the score is not divided by c before tanh",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class NotDivided(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(scores * softcap, softcap)


@mistake(
    "own-softcap-clamped",
    "scores are cut off at c where they should bend",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class Clamped(Tiled):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return scores.clamp(-softcap, softcap)


@mistake(
    "own-softcap-positive-only",
    "only scores above zero are bounded",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class PositiveOnly(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return torch.where(scores > 0, super().cap(scores, softcap), scores)


@mistake(
    "own-softcap-sigmoid",
    "scores lie between 0 and c",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class Sigmoid(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return softcap * torch.sigmoid(scores / softcap)


@mistake(
    "own-softcap-folds-back",
    "a polynomial stands for tanh and falls beyond 1.5 c",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class FoldsBack(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        ratio = (scores / softcap).clamp(-2.5, 2.5)
        return softcap * (ratio - ratio**3 / 3 + 2 * ratio**5 / 15 - 17 * ratio**7 / 315)


@mistake(
    "own-softcap-twice",
    "the softcap bends the scores twice",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class CapTwice(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(super().cap(scores, softcap), softcap)


@mistake(
    "own-softcap-coarse-tanh",
    "tanh is formed as 1 - 2/(e^2x + 1), which loses small scores beside a large c",
    killed_by="a-large-softcap-changes-nothing",
    features=SOFTCAP,
)
class CoarseTanh(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return softcap * (1 - 2 / (torch.exp(2 * scores / softcap) + 1))


@mistake(
    "own-softcap-fixed",
    "every softcap is taken for 50",
    killed_by="softcap-bounds-the-scaled-scores",
    features=SOFTCAP,
)
class CapFixed(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return super().cap(scores, 50.0)


@mistake(
    "own-softcap-zero-is-none",
    "a softcap of zero bounds nothing, and one below zero is taken as its size",
    killed_by="a-softcap-that-is-not-positive-is-refused",
    features={Feature.SOFTCAP, Feature.VALIDATES},
)
class ZeroIsNone(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores if softcap == 0 else softcap * torch.tanh(scores / softcap)
