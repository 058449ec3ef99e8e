"""Mutants of ATT: the softcap bends too much, too little, or at the wrong place."""

import torch

from attnspec.conformance.mutants.attention_pairs import Noticing
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import Feature

GITHUB = "https://github.com"
SOFTCAP = {Feature.SOFTCAP}
VALUE = "softcap-bends-the-scaled-scores"
SHAPE = "softcap-is-bounded-odd-and-monotone"
BIAS = "softcap-leaves-the-bias-alone"
HIDDEN = "softcap-reveals-no-hidden-key"
LARGE = "a-large-softcap-bounds-nothing"
REFUSED = "a-softcap-that-is-not-positive-is-refused"


class Late(Noticing):
    """A correct attention that remembers its softcap and does not use it."""

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return scores

    def late(self, scores: torch.Tensor) -> torch.Tensor:
        """Bend the scores now."""
        softcap = self.given.get("softcap")
        return scores if softcap is None else super().cap(scores, softcap)


@mistake(
    "MSK-36",
    "softcap after the mask, so that minus infinity becomes -c",
    kills=(VALUE, HIDDEN, BIAS),
    source=f"{GITHUB}/onnx/onnx/issues/7865",
    features=SOFTCAP,
)
class CapAfterMask(Late):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return self.late(super().hide(scores, visible))


@mistake(
    "own-softcap-after-bias",
    "softcap after the bias, which it bounds",
    kills=(VALUE, BIAS),
    source=f"{GITHUB}/microsoft/onnxruntime/pull/28370",
    features=SOFTCAP,
)
class CapAfterBias(Late):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(self.late(scores), visible)


@mistake(
    "own-softcap-before-scale",
    "softcap before the scale",
    kills=(VALUE, SHAPE),
    features=SOFTCAP,
)
class CapBeforeScale(Late):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return self.late(super().scores(query, key, 1.0)) * scale


@mistake(
    "own-softcap-ignored", "softcap is ignored", kills=(VALUE, SHAPE, REFUSED), features=SOFTCAP
)
class CapIgnored(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores


@mistake(
    "own-softcap-not-multiplied",
    "tanh(score / c) is not multiplied by c again",
    kills=(VALUE, SHAPE, LARGE),
    features=SOFTCAP,
)
class NotMultiplied(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(scores, softcap) / softcap


@mistake(
    "own-softcap-not-divided",
    "the score is not divided by c before tanh",
    kills=(VALUE, SHAPE, LARGE),
    features=SOFTCAP,
)
class NotDivided(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(scores * softcap, softcap)


@mistake(
    "own-softcap-clamped",
    "scores are cut off at c where they should bend",
    kills=(VALUE, SHAPE),
    features=SOFTCAP,
)
class Clamped(Tiled):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return scores.clamp(-softcap, softcap)


@mistake(
    "own-softcap-positive-only",
    "only scores above zero are bounded",
    kills=(VALUE, SHAPE),
    features=SOFTCAP,
)
class PositiveOnly(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return torch.where(scores > 0, super().cap(scores, softcap), scores)


@mistake(
    "own-softcap-sigmoid",
    "scores lie between 0 and c",
    kills=(VALUE, SHAPE, LARGE),
    features=SOFTCAP,
)
class Sigmoid(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return softcap * torch.sigmoid(scores / softcap)


@mistake(
    "own-softcap-folds-back",
    "a polynomial stands for tanh and falls beyond 1.5 c",
    kills=(VALUE, SHAPE),
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
    kills=(VALUE, SHAPE),
    features=SOFTCAP,
)
class CapTwice(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return super().cap(super().cap(scores, softcap), softcap)


@mistake(
    "own-softcap-coarse-tanh",
    "tanh is formed as 1 - 2/(e^2x + 1), which loses small scores beside a large c",
    kills=(LARGE,),
    features=SOFTCAP,
)
class CoarseTanh(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return softcap * (1 - 2 / (torch.exp(2 * scores / softcap) + 1))


@mistake(
    "own-softcap-fixed",
    "every softcap is taken for 50",
    kills=(VALUE, SHAPE, LARGE),
    features=SOFTCAP,
)
class CapFixed(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        super().cap(scores, softcap)
        return super().cap(scores, 50.0)


@mistake(
    "own-softcap-zero-is-none",
    "a softcap of zero bounds nothing, and one below zero is taken as its size",
    kills=(REFUSED,),
    features=SOFTCAP,
)
class ZeroIsNone(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        return scores if softcap == 0 else softcap * torch.tanh(scores / softcap)
