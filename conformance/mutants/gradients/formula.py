"""Mutants of GRD: one step of the backward formula is wrong."""

import math
from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake

DEFINITION = "gradients-equal-the-definition"
MASK = "the-gradient-of-a-mask-is-summed-where-it-broadcasts"
FORM = "gradients-have-the-shape-and-dtype-of-their-operands"
UNREAD = "unreadable-keys-have-no-gradient"
EMPTY = "an-empty-row-adds-nothing-to-gradients"
REACH = "a-gradient-reaches-only-what-its-row-reads"
CANCEL = "the-gradients-of-a-row-of-scores-cancel"
BALANCE = "sums-of-gradients-agree"
GROUP = "gradients-are-summed-over-a-group"
LINEAR = "gradients-are-linear-in-the-incoming-one"
LAYOUT = "the-layout-of-the-incoming-gradient-changes-nothing"
OPERANDS = "the-layout-of-the-operands-changes-no-gradient"
APART = "backward-passes-are-independent"
AGAIN = "a-second-backward-pass-gives-its-own-gradients"
ALONE = "each-gradient-may-be-computed-alone"
OUTPUT = "requiring-gradients-changes-no-output"
CAP = "gradients-go-through-the-softcap"
SINKS = "gradients-account-for-sinks"
PLACES = "gradients-go-through-windows-and-slopes"
MEET = "gradients-are-right-with-options-combined"


class OtherDelta(Explicit):
    """A backward pass that changes D."""

    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return delta

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        return self.changed_delta(super().delta(grad, p, dP, saved), grad, saved)


@mistake(
    "own-grad-without-delta",
    "the row's mean is not subtracted from dP",
    killed_by="gradients-equal-the-definition",
)
class WithoutDelta(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return torch.zeros_like(delta)


@mistake(
    "own-grad-delta-epsilon",
    "a small constant is added to D, for stability",
    killed_by="zero-incoming-gradients-give-zeros",
)
class DeltaEpsilon(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return delta + 1e-7


@mistake(
    "own-grad-delta-one-channel-short",
    "D leaves out the last value channel",
    killed_by="gradients-equal-the-definition",
)
class DeltaShort(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return (grad * saved.out)[..., :-1].sum(-1, keepdim=True)


@mistake(
    "own-grad-delta-of-rounded-output",
    "D is formed from an output rounded to bfloat16",
    killed_by="gradients-equal-the-definition",
)
class DeltaRounded(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return (grad * saved.out.bfloat16().to(grad.dtype)).sum(-1, keepdim=True)


@mistake(
    "own-grad-delta-of-the-next-head",
    "D is that of the neighbouring head",
    killed_by="gradients-equal-the-definition",
)
class DeltaOfNeighbour(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return delta.roll(1, dims=1)


@mistake(
    "BWD-06",
    "D is read before the incoming gradient is complete: dQ and dK wrong, dV right",
    killed_by="gradients-equal-the-definition",
    source="https://github.com/Dao-AILab/flash-attention/pull/2481",
)
class DeltaTooEarly(OtherDelta):
    def changed_delta(self, delta: torch.Tensor, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        half = (grad.shape[-1] + 1) // 2
        return (grad * saved.out)[..., :half].sum(-1, keepdim=True)


@mistake(
    "BWD-03",
    "dP is reduced over as many channels as queries have, not values",
    killed_by="gradients-equal-the-definition",
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
)
class ReducedOverQueryChannels(Explicit):
    channels = 0

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.channels = saved.query.shape[-1]
        return super().backward(saved, d_out, needed)

    def to_weights(self, grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return grad[..., : self.channels] @ value[..., : self.channels].mT


@mistake(
    "own-grad-diagonal-softmax",
    "the derivative of the softmax is taken for its diagonal alone",
    killed_by="gradients-equal-the-definition",
)
class DiagonalSoftmax(Explicit):
    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return p * (1 - p) * dP


@mistake(
    "own-grad-difference-reversed",
    "dS has the wrong sign",
    killed_by="gradients-equal-the-definition",
)
class DifferenceReversed(Explicit):
    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return p * (delta - dP)


@mistake(
    "own-grad-query-unscaled",
    "dQ is not scaled",
    killed_by="gradients-equal-the-definition",
)
class QueryUnscaled(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return dt @ key


@mistake(
    "own-grad-key-unscaled",
    "dK is not scaled",
    killed_by="gradients-equal-the-definition",
)
class KeyUnscaled(Explicit):
    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return dt.mT @ query


@mistake(
    "own-grad-key-scaled-twice",
    "dK is formed from scaled queries and scaled again",
    killed_by="sums-of-gradients-agree",
)
class KeyScaledTwice(Explicit):
    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return dt.mT @ (query * scale) * scale


@mistake(
    "own-grad-default-scale",
    "the backward pass always takes the default scale",
    killed_by="gradients-equal-the-definition",
)
class DefaultScale(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        return super().backward(replace(saved, scale=None), d_out, needed)


@mistake(
    "own-grad-scale-of-either-sign",
    "dQ and dK are multiplied by the magnitude of the scale",
    killed_by="gradients-equal-the-definition",
)
class MagnitudeOfScale(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_query(dt, key, abs(scale))

    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_key(dt, query, abs(scale))


class OtherWeights(Explicit):
    """A backward pass that changes P when it recomputes it."""

    def changed_weights(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse)

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        lse = torch.where(saved.lse == -torch.inf, torch.inf, saved.lse)[..., None]
        return self.changed_weights(scores, lse)


@mistake(
    "own-grad-weights-not-normalised",
    "the backward pass saves the maximum of a row, and not the log-sum-exp",
    killed_by="gradients-equal-the-definition",
)
class NotNormalised(OtherWeights):
    def changed_weights(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        if not scores.shape[-1]:
            return scores
        peak = scores.amax(-1, keepdim=True)
        return torch.exp(scores - torch.where(peak == -torch.inf, 0.0, peak))


@mistake(
    "own-grad-log-sum-exp-of-base-2",
    "the log-sum-exp is saved in base 2 and read as a natural logarithm",
    killed_by="gradients-equal-the-definition",
)
class BaseTwo(OtherWeights):
    def changed_weights(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse / math.log(2))


@mistake(
    "own-grad-narrow-log-sum-exp",
    "the log-sum-exp is saved in half precision",
    killed_by="gradients-equal-the-definition",
)
class NarrowLogSumExp(OtherWeights):
    def changed_weights(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse.half().to(scores.dtype))


@mistake(
    "own-grad-narrow-weights",
    "weights are rounded to bfloat16 in the backward pass, whatever the storage type",
    killed_by="gradients-equal-the-definition",
)
class NarrowWeights(OtherWeights):
    def changed_weights(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse).bfloat16().to(scores.dtype)


@mistake(
    "own-grad-value-unweighted",
    "dV is formed from the gradients of the weights",
    killed_by="gradients-equal-the-definition",
)
class ValueFromScoreGradients(Explicit):
    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return (p * (1 - p)).mT @ grad


@mistake(
    "own-grad-clipped",
    "the incoming gradient is clipped to [-1, 1]",
    killed_by="gradients-are-linear-in-the-incoming-one",
)
class IncomingClipped(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return grad.clamp(-1, 1)


@mistake(
    "own-grad-normalised",
    "the incoming gradient is divided by its largest number",
    killed_by="gradients-are-linear-in-the-incoming-one",
)
class IncomingNormalised(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return grad / grad.abs().amax().clamp(min=1) if grad.numel() else grad


@mistake(
    "own-grad-narrow-incoming",
    "the incoming gradient is converted to bfloat16",
    killed_by="gradients-equal-the-definition",
)
class NarrowIncoming(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return grad.bfloat16()


@mistake(
    "own-grad-narrow-keys",
    "dK is written in bfloat16, whatever the type of the keys",
    killed_by="gradients-equal-the-definition",
)
class NarrowKeys(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        return d_query, d_key.bfloat16().to(d_key.dtype), d_value, d_mask


@mistake(
    "own-grad-nan-to-zero",
    "NaN in a gradient is replaced by zero",
    killed_by="unreadable-nan-and-infinity-reach-no-gradient",
)
class NanToZero(Explicit):
    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().finish_gradient(gradient, like).nan_to_num(0.0)


@mistake(
    "own-grad-empty-is-an-error",
    "a length of zero ends the backward pass with an error",
    killed_by="gradients-have-the-shape-and-dtype-of-their-operands",
)
class EmptyRaises(Explicit):
    def tiles(self, length: int) -> list[slice]:
        step = math.ceil(length / math.ceil(length / self.tile))
        return [slice(start, start + step) for start in range(0, length, step)]


@mistake(
    "own-grad-never-written",
    "gradients of a length of zero are never written",
    killed_by="gradients-have-the-shape-and-dtype-of-their-operands",
)
class NeverWritten(Explicit):
    rest = 0.0

    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().finish_gradient(gradient, like) + self.rest

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.rest = 0.0 if saved.key.shape[2] and saved.query.shape[2] else torch.nan
        return super().backward(saved, d_out, needed)
