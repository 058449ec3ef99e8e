"""Mutants of GRD, first part: one step of the backward formula is wrong."""

import math
from dataclasses import replace

import torch

from attnspec.conformance.mutants.explicit import Explicit, Gradients, Pass
from attnspec.conformance.mutants.planting import mistake

DEFINITION = "gradients-are-those-of-the-definition"
MASK = "the-gradient-of-a-mask-is-summed-where-it-broadcasts"
FORM = "gradients-have-the-form-of-their-operands"
UNREAD = "keys-that-nobody-reads-have-no-gradient"
EMPTY = "an-empty-row-takes-no-part-in-gradients"
ZERO = "no-incoming-gradient-gives-none"
REACH = "a-gradient-reaches-only-what-its-row-reads"
POISON = "poison-that-nobody-reads-reaches-no-gradient"
CANCEL = "the-gradients-of-a-row-of-scores-cancel"
BALANCE = "gradients-balance"
GROUP = "a-group-adds-up-its-gradients"
LINEAR = "gradients-are-linear-in-the-incoming-one"
LAYOUT = "the-layout-of-the-incoming-gradient-means-nothing"
OPERANDS = "the-layout-of-the-operands-means-nothing-backward"
APART = "backward-passes-know-nothing-of-each-other"
AGAIN = "a-second-backward-pass-gives-its-own-gradients"
ALONE = "each-gradient-may-be-asked-alone"
OUTPUT = "asking-for-gradients-changes-no-output"
CAP = "gradients-go-through-the-softcap"
SINKS = "sinks-take-their-share-of-gradients"
PLACES = "gradients-go-through-windows-and-slopes"
MEET = "options-meet-in-the-gradients"


class _Delta(Explicit):
    """Change D."""

    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return delta

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        return self.wrong(super().delta(grad, p, dP, done), grad, done)


@mistake(
    "own-grad-without-delta",
    "the row's mean is not subtracted from dP",
    kills=(DEFINITION, CANCEL, BALANCE, MASK),
)
class _WithoutDelta(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return torch.zeros_like(delta)


@mistake(
    "own-grad-delta-epsilon",
    "a small constant is added to D, for stability",
    kills=(ZERO, REACH),
)
class _DeltaEpsilon(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return delta + 1e-7


@mistake(
    "own-grad-delta-one-channel-short",
    "D leaves out the last value channel",
    kills=(DEFINITION, CANCEL, BALANCE),
)
class _DeltaShort(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return (grad * done.out)[..., :-1].sum(-1, keepdim=True)


@mistake(
    "own-grad-delta-of-rounded-output",
    "D is formed from an output rounded to bfloat16",
    kills=(DEFINITION, CANCEL, BALANCE),
)
class _DeltaRounded(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return (grad * done.out.bfloat16().to(grad.dtype)).sum(-1, keepdim=True)


@mistake(
    "own-grad-delta-of-the-next-head",
    "D is that of the neighbouring head",
    kills=(DEFINITION, CANCEL, REACH),
)
class _DeltaOfNeighbour(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return delta.roll(1, dims=1)


@mistake(
    "BWD-06",
    "D is read before the incoming gradient is complete: dQ and dK wrong, dV right",
    kills=(DEFINITION, CANCEL, BALANCE, MASK),
    source="https://github.com/Dao-AILab/flash-attention/pull/2481",
)
class _DeltaTooEarly(_Delta):
    def wrong(self, delta: torch.Tensor, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        half = (grad.shape[-1] + 1) // 2
        return (grad * done.out)[..., :half].sum(-1, keepdim=True)


@mistake(
    "BWD-03",
    "dP is reduced over as many channels as queries have, not values",
    kills=(DEFINITION,),
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
)
class _WeightsOverQueryChannels(Explicit):
    channels = 0

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.channels = done.query.shape[-1]
        return super().backward(done, given, needed)

    def to_weights(self, grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return grad[..., : self.channels] @ value[..., : self.channels].mT


@mistake(
    "own-grad-diagonal-softmax",
    "the derivative of the softmax is taken for its diagonal alone",
    kills=(DEFINITION, CANCEL, BALANCE, MASK),
)
class _Diagonal(Explicit):
    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return p * (1 - p) * dP


@mistake(
    "own-grad-difference-reversed",
    "dS has the wrong sign",
    kills=(DEFINITION, MASK, MEET),
)
class _Reversed(Explicit):
    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return p * (delta - dP)


@mistake(
    "own-grad-query-unscaled",
    "dQ is not scaled",
    kills=(DEFINITION, BALANCE, ALONE),
)
class _QueryUnscaled(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return dt @ key


@mistake(
    "own-grad-key-unscaled",
    "dK is not scaled",
    kills=(DEFINITION, BALANCE, ALONE),
)
class _KeyUnscaled(Explicit):
    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return dt.mT @ query


@mistake(
    "own-grad-key-scaled-twice",
    "dK is formed from scaled queries and scaled again",
    kills=(DEFINITION, BALANCE),
)
class _KeyScaledTwice(Explicit):
    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return dt.mT @ (query * scale) * scale


@mistake(
    "own-grad-default-scale",
    "the backward pass always takes the default scale",
    kills=(DEFINITION, MEET, BALANCE),
)
class _DefaultScale(Explicit):
    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        return super().backward(replace(done, scale=None), given, needed)


@mistake(
    "own-grad-scale-of-either-sign",
    "dQ and dK are multiplied by the magnitude of the scale",
    kills=(DEFINITION,),
)
class _Magnitude(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_query(dt, key, abs(scale))

    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_key(dt, query, abs(scale))


class _Weights(Explicit):
    """Change P as it is built anew."""

    def wrong(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse)

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        lse = torch.where(done.lse == -torch.inf, torch.inf, done.lse)[..., None]
        return self.wrong(scores, lse)


@mistake(
    "own-grad-weights-not-normalised",
    "the backward pass saves the maximum of a row, and not the log-sum-exp",
    kills=(DEFINITION, BALANCE, MASK),
)
class _NotNormalised(_Weights):
    def wrong(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        if not scores.shape[-1]:
            return scores
        peak = scores.amax(-1, keepdim=True)
        return torch.exp(scores - torch.where(peak == -torch.inf, 0.0, peak))


@mistake(
    "own-grad-log-sum-exp-of-base-2",
    "the log-sum-exp is saved in base 2 and read as a natural logarithm",
    kills=(DEFINITION, BALANCE, MASK),
)
class _BaseTwo(_Weights):
    def wrong(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse / math.log(2))


@mistake(
    "own-grad-narrow-log-sum-exp",
    "the log-sum-exp is saved in half precision",
    kills=(DEFINITION, BALANCE),
)
class _NarrowLogSumExp(_Weights):
    def wrong(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse.half().to(scores.dtype))


@mistake(
    "own-grad-narrow-weights",
    "weights are rounded to bfloat16 in the backward pass, whatever the storage type",
    kills=(DEFINITION, BALANCE),
)
class _NarrowWeights(_Weights):
    def wrong(self, scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return torch.exp(scores - lse).bfloat16().to(scores.dtype)


@mistake(
    "own-grad-value-unweighted",
    "dV is formed from the gradients of the weights",
    kills=(DEFINITION, BALANCE),
)
class _ValueFromScores(Explicit):
    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return (p * (1 - p)).mT @ grad


@mistake(
    "own-grad-clipped",
    "the incoming gradient is clipped to [-1, 1]",
    kills=(LINEAR, DEFINITION, BALANCE),
)
class _Clipped(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return grad.clamp(-1, 1)


@mistake(
    "own-grad-normalised",
    "the incoming gradient is divided by its largest number",
    kills=(LINEAR, DEFINITION),
)
class _Normalised(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return grad / grad.abs().amax().clamp(min=1) if grad.numel() else grad


@mistake(
    "own-grad-narrow-incoming",
    "the incoming gradient is converted to bfloat16",
    kills=(DEFINITION, BALANCE),
)
class _NarrowIncoming(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return grad.bfloat16()


@mistake(
    "own-grad-narrow-keys",
    "dK is written in bfloat16, whatever the type of the keys",
    kills=(DEFINITION, LINEAR),
)
class _NarrowKeys(Explicit):
    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(done, given, needed)
        return d_query, d_key.bfloat16().to(d_key.dtype), d_value, d_mask


@mistake(
    "own-grad-nan-to-zero",
    "NaN in a gradient is replaced by zero",
    kills=(POISON,),
)
class _NanToZero(Explicit):
    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().finish_gradient(gradient, like).nan_to_num(0.0)


@mistake(
    "own-grad-empty-is-an-error",
    "a length of zero ends the backward pass with an error",
    kills=(FORM,),
)
class _EmptyRaises(Explicit):
    def tiles(self, length: int) -> list[slice]:
        step = math.ceil(length / math.ceil(length / self.tile))
        return [slice(start, start + step) for start in range(0, length, step)]


@mistake(
    "own-grad-never-written",
    "gradients of a length of zero are never written",
    kills=(FORM,),
)
class _NeverWritten(Explicit):
    rest = 0.0

    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().finish_gradient(gradient, like) + self.rest

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.rest = 0.0 if done.key.shape[2] and done.query.shape[2] else torch.nan
        return super().backward(done, given, needed)
