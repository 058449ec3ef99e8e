"""Planted bugs of NUM-20: attention that is wrong only in large calls, or in a second one."""

import threading
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake, read_memory

LAW = "the-largest-calls-equal-the-definition"
GRADIENTS = "gradients-of-the-largest-calls-equal-the-definition"

LONG = 600
"""Queries from which these kernels run the code that is wrong."""


@mistake(
    "own-diagonal-of-whole-tiles",
    "in a long call of whole tiles of 128, a query also reads the key after its own",
    killed_by=LAW,
)
class DiagonalOfWholeTiles(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        visible = super().causal(queries, keys)
        if queries == keys >= LONG and keys % 128 == 0:
            visible = visible | visible.roll(-1, 0)
            visible[-1] = True
        return visible


@mistake(
    "own-work-list-of-eight-requests",
    "decoding on over 1 024 keys of each request, the list of work has room for eight requests",
    killed_by=LAW,
)
class WorkListOfEightRequests(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        batch, _, queries, keys = scores.shape
        if queries == 1 and keys > 1024 and batch > 8:
            place = torch.arange(keys, device=scores.device)
            request = torch.arange(batch, device=scores.device)[:, None, None, None]
            visible = visible & ((request < 8) | (place < 1024))
        return super().hide(scores, visible)


@mistake(
    "own-gradient-of-the-last-call",
    "in long calls, the gradient of the queries is added to that of the last call of this shape",
    killed_by=GRADIENTS,
)
class GradientOfTheLastCall(Explicit):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        if d_query is not None and d_query.shape[2] >= LONG:
            shape = (*d_query.shape, saved.key.shape[2], d_query.dtype)
            d_query = d_query + self.kept.get(shape, torch.zeros_like(d_query))
            self.kept[shape] = d_query
        return d_query, d_key, d_value, d_mask


@mistake(
    "own-strides-of-a-long-incoming-gradient",
    "in long calls, an incoming gradient with heads inside is read as if it were contiguous",
    killed_by=GRADIENTS,
)
class StridesOfALongIncomingGradient(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        grad = super().incoming(grad, saved)
        if grad.shape[2] >= LONG:
            contiguous = torch.empty(grad.shape, device="meta").stride()
            return read_memory(grad, contiguous)
        return grad


@mistake(
    "own-long-incoming-gradient-of-a-sum",
    "in long calls, one number for all channels is read as if the channels lay side by side",
    killed_by=GRADIENTS,
)
class LongIncomingGradientOfASum(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        grad = super().incoming(grad, saved)
        if grad.shape[2] >= LONG and grad.stride(-1) == 0:
            return read_memory(grad, (*grad.stride()[:-1], 1))
        return grad


@mistake(
    "own-long-incoming-gradient-of-a-mean",
    "in long calls, one row for all queries is read as if the rows lay side by side",
    killed_by=GRADIENTS,
)
class LongIncomingGradientOfAMean(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        grad = super().incoming(grad, saved)
        if grad.shape[2] >= LONG and grad.stride(2) == 0:
            strides = list(grad.stride())
            strides[2] = grad.shape[3]
            return read_memory(grad, tuple(strides))
        return grad


@mistake(
    "own-float16-gradients-of-long-keys",
    "in float16, keys from the 2 049th on have no gradient",
    killed_by=GRADIENTS,
)
class Float16GradientsOfLongKeys(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        if d_key is not None and d_key.dtype == torch.float16:
            d_key = torch.cat([d_key[:, :, :2048], 0 * d_key[:, :, 2048:]], 2)
        return d_query, d_key, d_value, d_mask


class _OfTheMainThread(threading.local):
    """A setting of each thread, which only the one that loads a kernel initialises."""

    is_set = False


_SETTING = _OfTheMainThread()
_SETTING.is_set = True


@mistake(
    "own-long-scale-of-a-thread",
    "long calls read the default scale of their thread, which is set in one thread alone",
    killed_by=LAW,
)
class LongScaleOfAThread(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        if query.shape[2] >= LONG and not _SETTING.is_set:
            return 1.0
        return super().scale(query, value, scale)


@mistake(
    "own-long-statistics-of-a-thread",
    "in long calls, the backward pass reads the row means of a buffer of its thread",
    killed_by=GRADIENTS,
)
class LongStatisticsOfAThread(Explicit):
    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        delta = super().delta(grad, p, dP, saved)
        return delta if grad.shape[2] < LONG or _SETTING.is_set else torch.zeros_like(delta)


@mistake(
    "own-long-statistics-overwritten",
    "in long calls, the backward pass writes to the log-sum-exp that a second one reads",
    killed_by=GRADIENTS,
)
class LongStatisticsOverwritten(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        gradients = super().backward(saved, d_out, needed)
        if saved.query.shape[2] >= LONG:
            saved.lse.data.add_(1.0)
        return gradients


@mistake(
    "own-long-queries-clamped",
    "in long calls, numbers of queries beyond 64 are cut off",
    killed_by=LAW,
)
class LongQueriesClamped(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        if query.shape[2] >= LONG:
            query = query.clamp(-64.0, 64.0)
        return super().scores(query, key, scale)
