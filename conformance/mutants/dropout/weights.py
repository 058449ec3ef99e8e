"""Mutants of DRP: wrong weights, probabilities, scales, seeds or gradients."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import EmptyRow, Feature

DROPOUT = {Feature.DROPOUT}


def kept_mask(weights: torch.Tensor, p: float) -> torch.Tensor:
    """Return the mask of kept weights."""
    return torch.rand_like(weights) >= p


@mistake(
    "DRP-03",
    "the same weights dropped at every call: seed and offset are constants",
    killed_by="calls-drop-independently",
    source="https://github.com/Dao-AILab/flash-attention/issues/2088",
    features=DROPOUT,
)
class SameEveryTime(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        fixed = torch.Generator(weights.device).manual_seed(0)
        drawn = torch.rand(weights.shape, generator=fixed, device=weights.device)
        return weights * (drawn >= dropout_p) / max(1 - dropout_p, 1e-30)


@mistake(
    "own-dropout-not-scaled",
    "kept weights not divided by 1 - p",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
)
class NotScaled(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        return weights * kept_mask(weights, dropout_p)


@mistake(
    "own-dropout-mean-not-scaled",
    "kept weights of an empty row not divided by 1 - p",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
    empty_row=EmptyRow.MEAN,
)
class MeanNotScaled(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        empty = ~visible.any(-1, keepdim=True)
        return torch.where(empty, 1 / scores.shape[-1], super().softmax(scores, visible))

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        is_mean = (weights == 1 / weights.shape[-1]).all(-1, keepdim=True)
        dropped = super().drop(weights, dropout_p)
        return torch.where(is_mean, dropped * (1 - dropout_p), dropped)


@mistake(
    "own-dropout-scaled-by-p",
    "kept weights divided by p in place of 1 - p",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
)
class ScaledByP(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        return weights * kept_mask(weights, dropout_p) / dropout_p


@mistake(
    "own-dropout-normalised",
    "kept weights normalised anew, so that they sum to one",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
)
class Normalised(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        kept = weights * kept_mask(weights, dropout_p)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-30)


@mistake(
    "own-dropout-before-softmax",
    "scores dropped to minus infinity before the softmax",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
)
class BeforeSoftmax(Dense):
    p = 0.0

    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.p = options.pop("dropout_p", 0.0)
        return super().__call__(*operands, **options)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        hidden = super().hide(scores, visible)
        return hidden.masked_fill(~kept_mask(scores, self.p), -torch.inf) if self.p else hidden


@mistake(
    "own-dropout-on-output",
    "channels of the output dropped in place of weights",
    killed_by="a-weight-is-dropped-or-scaled-up",
    features=DROPOUT,
)
class OnOutput(Dense):
    p = 0.0

    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.p = options.get("dropout_p", 0.0)
        return super().__call__(*operands, **options)

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        return weights

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        value = value * kept_mask(value, self.p).flip(-1) * 1.25 if self.p else value
        return super().mix(weights, value)


@mistake(
    "own-dropout-other-way",
    "the probability is taken for that of keeping",
    killed_by="weights-are-dropped-with-the-given-probability",
    features=DROPOUT,
)
class OtherWay(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        return weights * ~kept_mask(weights, dropout_p) / max(1 - dropout_p, 1e-30)


@mistake(
    "own-dropout-eight-bits",
    "the probability rounded to eighths",
    killed_by="weights-are-dropped-with-the-given-probability",
    features=DROPOUT,
)
class Coarse(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        coarse = round(dropout_p * 8) / 8
        return weights * kept_mask(weights, coarse) / max(1 - dropout_p, 1e-30)


@mistake(
    "own-dropout-last-tile-kept",
    "the last sixteen keys are never dropped",
    killed_by="weights-are-dropped-with-the-given-probability",
    features=DROPOUT,
)
class LastTileKept(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        kept = kept_mask(weights, dropout_p)
        kept[..., 48:] = True
        return weights * kept / (1 - dropout_p)


def _repeated_mask(weights: torch.Tensor, p: float, axis: int) -> torch.Tensor:
    """Return a mask of kept weights that repeats along an axis."""
    return kept_mask(weights.select(axis, 0).unsqueeze(axis), p).expand_as(weights)


class RepeatedChoice(Dense):
    """An attention whose dropout repeats its choice along an axis."""

    axis = 0

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1 or weights.shape[self.axis] == 0:
            return super().drop(weights, dropout_p)
        return weights * _repeated_mask(weights, dropout_p, self.axis) / (1 - dropout_p)


@mistake(
    "own-dropout-heads-alike",
    "all heads drop alike",
    killed_by="weights-are-dropped-independently",
    features=DROPOUT,
)
class HeadsAlike(RepeatedChoice):
    axis = 1


@mistake(
    "own-dropout-batch-alike",
    "all batch elements drop alike",
    killed_by="weights-are-dropped-independently",
    features=DROPOUT,
)
class BatchAlike(RepeatedChoice):
    axis = 0


@mistake(
    "own-dropout-tiles-alike",
    "each tile of sixteen keys drops as the one before: the offset is not moved on",
    killed_by="weights-are-dropped-independently",
    features=DROPOUT,
)
class TilesAlike(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1 or weights.shape[-1] <= 16:
            return super().drop(weights, dropout_p)
        tile = kept_mask(weights[..., :16], dropout_p)
        repeats = -(-weights.shape[-1] // 16)
        kept = tile.repeat(1, 1, 1, repeats)[..., : weights.shape[-1]]
        return weights * kept / (1 - dropout_p)


@mistake(
    "own-dropout-certain-nan",
    "everything dropped gives NaN: zero times infinity",
    killed_by="dropping-everything-gives-zeros",
    features=DROPOUT,
)
class CertainNan(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        grown = torch.tensor(1.0, dtype=weights.dtype) / (1 - dropout_p)
        return weights * kept_mask(weights, dropout_p) * grown


@mistake(
    "own-dropout-always-draws",
    "random numbers drawn where the probability is zero",
    killed_by="no-dropout-drops-nothing",
    features=DROPOUT,
)
class AlwaysDraws(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.rand_like(weights)
        return super().mix(weights, value)


@mistake(
    "own-dropout-default",
    "a tenth dropped although the probability is zero",
    killed_by="no-dropout-drops-nothing",
    features=DROPOUT,
)
class DropsByDefault(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        is_passed = "dropout_p" in options
        if is_passed and options["dropout_p"] == 0:
            options["dropout_p"] = 0.1
        return super().__call__(*operands, **options)


@mistake(
    "own-dropout-seed-of-its-own",
    "drops by the system's randomness, whatever the seed",
    killed_by="equal-seeds-drop-alike",
    features=DROPOUT,
)
class OwnSeed(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        own = torch.Generator(weights.device)
        own.seed()
        drawn = torch.rand(weights.shape, generator=own, device=weights.device)
        return weights * (drawn >= dropout_p) / (1 - dropout_p)


@mistake(
    "own-dropout-in-log-sum-exp",
    "log-sum-exp of the kept weights only",
    killed_by="dropout-leaves-the-log-sum-exp-alone",
    features={Feature.DROPOUT, Feature.LSE},
)
class InLogSumExp(Dense):
    total_kept: torch.Tensor | None = None

    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.total_kept = None
        return super().__call__(*operands, **options)

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        kept = super().drop(weights, dropout_p)
        self.total_kept = kept.sum(-1)
        return kept

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        whole = super().lse(scores)
        return whole if self.total_kept is None else whole + self.total_kept.clamp(min=1e-30).log()


@mistake(
    "own-dropout-any-probability",
    "a probability above one is taken for one, a negative one for zero",
    killed_by="a-probability-lies-between-zero-and-one",
    features={Feature.DROPOUT, Feature.VALIDATES},
)
class AnyProbability(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        options["dropout_p"] = min(max(options.get("dropout_p", 0.0), 0.0), 1.0)
        return super().__call__(*operands, **options)


class _Backward(torch.autograd.Function):
    """An autograd function that multiplies by one mask forward and by another backward."""

    @staticmethod
    def forward(
        context: Any, weights: torch.Tensor, there: torch.Tensor, back: torch.Tensor
    ) -> torch.Tensor:
        context.save_for_backward(back)
        return weights * there

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (back,) = context.saved_tensors
        return grad * back, None, None


@mistake(
    "own-dropout-backward-anew",
    "the backward pass throws the dice anew",
    killed_by="backward-drops-the-same-weights-as-forward",
    features=DROPOUT,
)
class BackwardAnew(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        there, back = (kept_mask(weights, dropout_p) / (1 - dropout_p) for _ in range(2))
        return _Backward.apply(weights, there, back)  # type: ignore[no-any-return, no-untyped-call]


@mistake(
    "own-dropout-backward-not-scaled",
    "the backward pass forgets 1/(1 - p)",
    killed_by="backward-drops-the-same-weights-as-forward",
    features=DROPOUT,
)
class BackwardNotScaled(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        kept = kept_mask(weights, dropout_p).to(weights)
        return _Backward.apply(weights, kept / (1 - dropout_p), kept)  # type: ignore[no-any-return, no-untyped-call]


@mistake(
    "own-dropout-backward-first-tile",
    "the backward pass drops in every tile of 64 queries what the first tile drops",
    killed_by="backward-drops-the-same-weights-as-forward",
    features=DROPOUT,
)
class BackwardFirstTile(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1:
            return super().drop(weights, dropout_p)
        there = kept_mask(weights, dropout_p) / (1 - dropout_p)
        places = torch.arange(weights.shape[-2], device=weights.device) % 64
        return _Backward.apply(weights, there, there[..., places, :])  # type: ignore[no-any-return, no-untyped-call]


@mistake(
    "own-dropout-backward-by-memory",
    "the backward pass counts the weights that it drops by the place of their queries in memory",
    killed_by="backward-drops-the-same-weights-as-forward",
    features=DROPOUT,
)
class BackwardByMemory(Dense):
    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        is_contiguous = query.stride(1) == query.shape[2] * query.shape[3]
        self.is_inside = query.shape[1] > 1 < query.shape[2] and not is_contiguous
        return super().__call__(query, *rest, **options)

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if dropout_p == 1 or not self.is_inside:
            return super().drop(weights, dropout_p)
        batch, heads, queries, keys = weights.shape
        there = kept_mask(weights, dropout_p) / (1 - dropout_p)
        back = there.reshape(batch, queries, heads, keys).transpose(1, 2)
        return _Backward.apply(weights, there, back)  # type: ignore[no-any-return, no-untyped-call]


@mistake(
    "own-dropout-without-sinks",
    "with dropout, a sink takes no weight if gradients are required",
    killed_by="backward-drops-the-same-weights-as-forward",
    features={*DROPOUT, Feature.SINKS},
)
class DropoutWithoutSinks(Dense):
    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        if weights.requires_grad:
            weights = weights / weights.sum(-1, keepdim=True)
        return super().drop(weights, dropout_p)
