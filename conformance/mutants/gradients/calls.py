"""Mutants of GRD: memory layouts, state kept between calls, and requested gradients."""

import random
import threading
import time
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Gradients, Saved
from attnspec.conformance.mutants.planting import mistake, read_memory


@mistake(
    "BWD-01",
    "the incoming gradient is read as if it were contiguous",
    killed_by="the-layout-of-the-incoming-gradient-changes-nothing",
    source="https://github.com/Dao-AILab/flash-attention/issues/355",
)
class IncomingReadAsContiguous(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return read_memory(grad, torch.empty_like(saved.out).stride())


@mistake(
    "BWD-02",
    "the incoming gradient is read with the strides of the output",
    killed_by="the-layout-of-the-incoming-gradient-changes-nothing",
    source="https://github.com/pytorch/pytorch/pull/138354",
)
class StridesOfOutput(Explicit):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        # in memory the output is (batch, queries, heads, channels), as in fused kernels
        return super().finish(out, value).transpose(1, 2).contiguous().transpose(1, 2)

    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return read_memory(grad, saved.out.stride())


@mistake(
    "own-grad-batch-stride",
    "the incoming gradient is read with a batch stride of zero",
    killed_by="gradients-equal-the-definition",
)
class BatchStrideZero(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return grad[:1].expand_as(grad)


@mistake(
    "own-grad-channel-stride",
    "the channels of the incoming gradient are taken to lie next to each other",
    killed_by="the-layout-of-the-incoming-gradient-changes-nothing",
)
class ChannelStrideOne(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        return read_memory(grad, (*grad.stride()[:-1], 1))


@mistake(
    "own-grad-keys-as-contiguous",
    "the backward pass reads keys and values as if they were contiguous",
    killed_by="the-layout-of-the-operands-changes-no-gradient",
)
class KeysReadAsContiguous(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        read = {
            name: read_memory(tensor, torch.empty(tensor.shape).stride())
            for name, tensor in (("key", saved.key), ("value", saved.value))
        }
        return super().backward(Saved(**(vars(saved) | read)), d_out, needed)


@mistake(
    "own-grad-accumulates-into-itself",
    "a gradient buffer is kept and added to by the next call of the same shape",
    killed_by="backward-passes-are-independent",
)
class AccumulatesAcrossCalls(Explicit):
    def __init__(self) -> None:
        self.cache: dict[Any, torch.Tensor] = {}

    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        gradient = super().to_value(p, grad)
        cache_key = (tuple(gradient.shape), p.shape[2], gradient.dtype)
        self.cache[cache_key] = gradient + self.cache.get(cache_key, torch.zeros_like(gradient))
        return self.cache[cache_key]


@mistake(
    "own-grad-stale",
    "the gradients of the first call of a shape are returned for every one",
    killed_by="backward-passes-are-independent",
)
class GradientsOfTheFirstCall(Explicit):
    def __init__(self) -> None:
        self.cache: dict[Any, Gradients] = {}

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        cache_key = (saved.query.shape, saved.key.shape, saved.value.shape, saved.query.dtype)
        if cache_key not in self.cache or (needed[3] and self.cache[cache_key][3] is None):
            self.cache[cache_key] = super().backward(saved, d_out, needed)
        return self.cache[cache_key]


@mistake(
    "own-grad-one-buffer",
    "dQ of every call of a shape is returned in the same memory",
    killed_by="backward-passes-are-independent",
)
class OneBuffer(Explicit):
    def __init__(self) -> None:
        self.cache: dict[Any, torch.Tensor] = {}

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, *others = super().backward(saved, d_out, needed)
        cache_key = (d_query.shape, d_query.dtype)
        buffer = self.cache.setdefault(cache_key, torch.empty_like(d_query))
        return (buffer.copy_(d_query), *others)  # type: ignore[return-value]


@mistake(
    "own-grad-saved-once",
    "what the backward pass needs is saved beside the function, and not with each call",
    killed_by="backward-passes-are-independent",
)
class SavedOnce(Explicit):
    last: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.last = super().forward(query, key, value, attn_mask, options)
        return self.last

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        if self.last is not None and self.last[0].shape == saved.out.shape:
            out, lse = (tensor.detach() for tensor in self.last)
            saved = Saved(**(vars(saved) | {"out": out, "lse": lse}))
        return super().backward(saved, d_out, needed)


@mistake(
    "own-grad-saved-once-of-a-long-call",
    "what the backward pass of over 512 queries needs is saved beside the function",
    killed_by="backward-passes-are-independent",
)
class SavedOnceOfALongCall(SavedOnce):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        if saved.query.shape[2] <= 512:
            return Explicit.backward(self, saved, d_out, needed)
        return super().backward(saved, d_out, needed)


@mistake(
    "own-grad-incoming-written-to",
    "the backward pass scales the incoming gradient in place",
    killed_by="a-second-backward-pass-gives-its-own-gradients",
)
class WritesToIncoming(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        unscaled = grad.clone()
        if 0 not in grad.stride():
            grad.mul_(0.5)
        return unscaled


@mistake(
    "BWD-08",
    "one backward pass in three misses a part that another thread has not written yet",
    killed_by="gradients-equal-the-definition",
    source="https://github.com/Dao-AILab/flash-attention/issues/359",
)
class Race(Explicit):
    passes = 0
    tile = 2

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.passes += 1
        return super().backward(saved, d_out, needed)

    def tiles(self, length: int) -> list[slice]:
        tiles = super().tiles(length)
        return tiles[:-1] if self.passes % 3 == 2 and len(tiles) > 1 else tiles


@mistake(
    "BWD-09",
    "tiles are added up in an arbitrary order, where the same bits are declared",
    killed_by="backward-passes-are-independent",
    source="https://github.com/Dao-AILab/flash-attention/issues/746",
)
class ArbitraryOrder(Explicit):
    tile = 1
    order = random.SystemRandom()

    def tiles(self, length: int) -> list[slice]:
        tiles = super().tiles(length)
        self.order.shuffle(tiles)
        return tiles


@mistake(
    "own-grad-needs-values",
    "D is not computed if the values require no gradient",
    killed_by="each-gradient-may-be-computed-alone",
)
class DeltaNeedsValues(Explicit):
    needs = True

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.needs = needed[2]
        return super().backward(saved, d_out, needed)

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        return super().delta(grad, p, dP, saved) * self.needs


@mistake(
    "own-grad-frozen-queries",
    "if the queries require no gradient, the keys get none either",
    killed_by="each-gradient-may-be-computed-alone",
)
class FrozenQueries(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        return d_query, d_key * needed[0], d_value, d_mask


@mistake(
    "own-grad-mask-alone",
    "where a float mask alone asks for a gradient, it is the mean over the batch",
    killed_by="the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)
class MaskAlone(Explicit):
    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(saved, d_out, needed)
        if d_mask is not None and not any(needed[:3]):
            d_mask = d_mask / max(saved.query.shape[0], 1)
        return d_query, d_key, d_value, d_mask


class OtherCallInTraining(Explicit):
    """A forward pass that changes its arguments if a gradient is requested."""

    def __call__(self, query: torch.Tensor, *others: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and query.requires_grad:
            query, options = self.changed(query, options)
        return super().__call__(query, *others, **options)

    def changed(
        self, query: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return query, options


@mistake(
    "own-grad-training-drops-the-causal-flag",
    "the path that is taken for training does not know of the causal flag",
    killed_by="requiring-gradients-changes-no-output",
)
class TrainingNotCausal(OtherCallInTraining):
    def changed(
        self, query: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return query, options | {"is_causal": False}


@mistake(
    "own-grad-training-in-bfloat16",
    "the path that is taken for training rounds queries to bfloat16",
    killed_by="requiring-gradients-changes-no-output",
)
class TrainingNarrow(OtherCallInTraining):
    def changed(
        self, query: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return query.bfloat16().to(query.dtype), options


@mistake(
    "own-grad-always",
    "the output requires a gradient although no operand does",
    killed_by="requiring-gradients-changes-no-output",
)
class AlwaysRequiresGradient(Explicit):
    def __call__(self, query: torch.Tensor, *others: Any, **options: Any) -> Any:
        out = super().__call__(query, *others, **options)
        if isinstance(out, tuple):
            return out
        return out if out.requires_grad else out.requires_grad_()


@mistake(
    "own-grad-reads-what-is-there",
    "autograd does not notice that a saved tensor is overwritten before the backward pass",
    killed_by="gradients-are-those-of-the-numbers-of-the-forward-pass",
    source="https://github.com/pytorch/pytorch/issues/197887",
)
class NotCounted(Explicit):
    def save(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.data


@mistake(
    "own-grad-output-of-the-caller",
    "D is computed from the output as the caller has left it",
    killed_by="gradients-are-those-of-the-numbers-of-the-forward-pass",
)
class OutputOfTheCaller(Explicit):
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().forward(query, key, value, attn_mask, options)
        self.out = out
        return out, lse

    def save(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor.data if tensor is not None and tensor is self.out else tensor


@mistake(
    "own-grad-tables-of-a-thread",
    "the backward pass uses tables of its thread, which only a forward pass fills",
    killed_by="backward-passes-may-run-in-any-thread",
)
class TablesOfAThread(Explicit):
    def __init__(self) -> None:
        self.tables = threading.local()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.tables.one = 1.0
        return super().forward(query, key, value, attn_mask, options)

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_query(dt, key, scale) * getattr(self.tables, "one", 0.0)


@mistake(
    "own-grad-one-scratch",
    "all backward passes share one buffer for the incoming gradient",
    killed_by="backward-passes-may-run-in-any-thread",
)
class OneScratch(Explicit):
    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        self.scratch = grad
        time.sleep(1e-3)  # other threads run, as while a kernel waits: on few cores they seldom do
        return grad

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        return super().delta(self.scratch.to(grad.dtype), p, dP, saved)


class _ConstantsInBackward(torch.autograd.Function):
    """The product of weights and values; its backward pass takes both for constants."""

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Multiply, and save both factors without their graphs."""
        ctx.save_for_backward(weights.detach(), value.detach())
        return weights @ value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both factors, differentiable by the incoming gradient alone."""
        weights, value = ctx.saved_tensors
        return grad @ value.mT, weights.mT @ grad


@mistake(
    "own-grad-second-derivative",
    "second derivatives take the weights of the first backward pass for constants",
    killed_by="second-derivatives-are-right-or-raise",
)
class ConstantsInBackward(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = _ConstantsInBackward.apply(weights, value)  # type: ignore[no-untyped-call]
        return mixed


@mistake(
    "own-ring-of-log-sum-exps",
    "the log-sum-exps of over 64 queries are saved in memory that every 24th call reuses",
    killed_by="backward-passes-are-independent",
)
class RingOfLogSumExps(Explicit):
    def __init__(self) -> None:
        self.rings: dict[Any, list[torch.Tensor]] = {}

    def save(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        is_lse = tensor is not None and tensor.dim() == 3 and tensor.shape[2] > 64
        if tensor is None or not is_lse:
            return super().save(tensor)
        ring = self.rings.setdefault((tensor.shape, tensor.dtype), [])
        if len(ring) < 24:
            ring.append(tensor.detach().clone())
        else:
            ring.append(ring.pop(0))
            ring[-1].data.copy_(tensor)
        return ring[-1].data
