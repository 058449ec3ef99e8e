"""Mutants of rotary positions: wrong pairs, signs, widths, bases and gradients."""

from collections.abc import Mapping
from typing import Any

import torch

from attnspec.conformance.mutants.bases.rotary import PlainRotary, rotary_mistake
from attnspec.spec.rotary import Pairing, RotaryProfile

DEFINITION = "rotary-equals-the-definition"
LENGTHS = "lengths-of-pairs-are-kept"
PAIRS = "pairs-are-the-declared-ones"
PART = "channels-beyond-the-turned-ones-are-kept"
BACK = "the-gradient-turns-back"
INTERLEAVED = RotaryProfile(pairing=Pairing.INTERLEAVED)


@rotary_mistake(
    "own-rotary-other-pairing",
    "neighbouring channels are pairs, though halves are declared",
    killed_by=PAIRS,
    source="https://github.com/huggingface/transformers/issues/25199",
)
class OtherPairing(PlainRotary):
    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[..., 0::2], x[..., 1::2]

    def join(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.stack([first, second], dim=-1).flatten(-2)


@rotary_mistake(
    "own-rotary-written-as-halves",
    "pairs are read as neighbours and written as halves",
    killed_by=PAIRS,
    profile=INTERLEAVED,
    source="https://github.com/vllm-project/vllm/issues/5984",
)
class WrittenAsHalves(PlainRotary):
    def join(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat([first, second], dim=-1)


@rotary_mistake(
    "own-rotary-angles-of-halves",
    "angles are in the order of halves, and pairs are neighbours",
    killed_by=LENGTHS,
    profile=INTERLEAVED,
    source="https://github.com/facebookresearch/vjepa2/pull/15",
)
class AnglesOfHalves(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        a, b = self.split(x)
        cosine, sine = torch.cat([cosine, cosine], -1), torch.cat([sine, sine], -1)
        return x * cosine + self.join(-b, a) * sine


@rotary_mistake(
    "own-rotary-sign",
    "pairs are turned the other way",
    killed_by=DEFINITION,
    source="https://github.com/karpathy/nanochat/pull/489",
)
class OtherWay(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return super().turn(x, cosine, -sine)


@rotary_mistake(
    "own-rotary-no-minus",
    "the second channel is added to the first without a minus",
    killed_by="scores-depend-on-distances-only",
)
class WithoutMinus(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        a, b = self.split(x)
        return self.join(a * cosine + b * sine, a * sine + b * cosine)


@rotary_mistake(
    "own-rotary-swapped",
    "cosine and sine are swapped",
    killed_by="position-zero-changes-nothing",
    source="https://github.com/PaddlePaddle/Paddle/pull/70845",
)
class Swapped(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return super().turn(x, sine, cosine)


@rotary_mistake(
    "own-rotary-inverse-frequency",
    "positions are divided by the frequency",
    killed_by=DEFINITION,
    source="https://github.com/xlite-dev/LeetCUDA/issues/289",
)
class InverseFrequency(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions, 1 / theta)


@rotary_mistake(
    "own-rotary-frequencies-of-head",
    "a part of the head is turned by frequencies of the whole head",
    killed_by=PART,
    source="https://github.com/pie-project/pie/issues/602",
)
class FrequenciesOfHead(PlainRotary):
    d_head = 0

    def __call__(self, x: torch.Tensor, positions: torch.Tensor, **keywords: Any) -> torch.Tensor:
        self.d_head = x.shape[-1]
        return super().__call__(x, positions, **keywords)

    def powers(self, width: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return super().powers(self.d_head, base, dtype)[: width // 2]


@rotary_mistake(
    "own-rotary-whole-head",
    "the whole head is turned, though the call asks for a part",
    killed_by=PART,
    source="https://github.com/AI-Hypercomputer/maxtext/issues/4616",
)
class WholeHead(PlainRotary):
    def __call__(self, x: torch.Tensor, positions: torch.Tensor, **keywords: Any) -> torch.Tensor:
        keywords.pop("rotary_dim", None)
        return super().__call__(x, positions, **keywords)


@rotary_mistake(
    "own-rotary-last-channels",
    "the last channels of a head are turned, and the first kept",
    killed_by=PART,
)
class LastChannels(PlainRotary):
    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        rotary_dim: int | None = None,
        base: float = 10_000.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> torch.Tensor:
        start = 0 if rotary_dim is None else x.shape[-1] - rotary_dim
        turned = super().__call__(x[..., start:], positions, base=base, scaling=scaling)
        return torch.cat([x[..., :start], turned], dim=-1)


@rotary_mistake(
    "own-rotary-base",
    "the base is 10 000, whatever the call gives",
    killed_by="the-base-is-the-given-one",
    source="https://github.com/huggingface/candle/pull/3746",
)
class FixedBase(PlainRotary):
    def powers(self, width: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return super().powers(width, 10_000.0, dtype)


class _TurnedForward(torch.autograd.Function):
    """A turn whose backward pass turns the incoming gradient forward."""

    @staticmethod
    def forward(ctx, a, b, cosine, sine):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.save_for_backward(cosine, sine)
        return a * cosine - b * sine, a * sine + b * cosine

    @staticmethod
    def backward(ctx, a, b):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        cosine, sine = ctx.saved_tensors
        return a * cosine - b * sine, a * sine + b * cosine, None, None


@rotary_mistake(
    "own-rotary-backward-sign",
    "the backward pass turns the incoming gradient forward",
    killed_by=BACK,
    source="https://github.com/PaddlePaddle/Paddle/pull/74716",
)
class BackwardSign(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        turned = _TurnedForward.apply(*self.split(x), cosine, sine)  # type: ignore[no-untyped-call]
        return self.join(*turned)


@rotary_mistake(
    "own-rotary-no-gradient",
    "the turned channels get no gradient",
    killed_by=BACK,
    source="https://github.com/huggingface/candle/issues/3568",
)
class NoGradient(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return super().turn(x.detach(), cosine, sine)
