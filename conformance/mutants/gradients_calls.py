"""Mutants of GRD, fourth part: layouts, and what one call leaves to the next."""

import random
from typing import Any

import torch

from attnspec.conformance.mutants.explicit import Explicit, Gradients, Pass
from attnspec.conformance.mutants.gradients import (
    AGAIN,
    ALONE,
    APART,
    BALANCE,
    DEFINITION,
    LAYOUT,
    LINEAR,
    MASK,
    OPERANDS,
    OUTPUT,
    REACH,
)
from attnspec.conformance.mutants.planting import mistake, read_memory


@mistake(
    "BWD-01",
    "the incoming gradient is read as if it were contiguous",
    kills=(LAYOUT,),
    source="https://github.com/Dao-AILab/flash-attention/issues/355",
)
class _Contiguous(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return read_memory(grad, torch.empty_like(done.out).stride())


@mistake(
    "BWD-02",
    "the incoming gradient is read with the strides of the output",
    kills=(LAYOUT, DEFINITION),
    source="https://github.com/pytorch/pytorch/pull/138354",
)
class _StridesOfOutput(Explicit):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        # the output lies (batch, queries, heads, channels), as fused kernels leave it
        return super().finish(out, value).transpose(1, 2).contiguous().transpose(1, 2)

    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return read_memory(grad, done.out.stride())


@mistake(
    "own-grad-batch-stride",
    "the incoming gradient is read with a batch stride of zero",
    kills=(DEFINITION, LAYOUT, REACH),
)
class _BatchStride(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return grad[:1].expand_as(grad)


@mistake(
    "own-grad-channel-stride",
    "the channels of the incoming gradient are taken to lie next to each other",
    kills=(LAYOUT,),
)
class _ChannelStride(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        return read_memory(grad, (*grad.stride()[:-1], 1))


@mistake(
    "own-grad-keys-as-contiguous",
    "the backward pass reads keys and values as if they were contiguous",
    kills=(OPERANDS, DEFINITION),
)
class _KeysContiguous(Explicit):
    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        read = {
            name: read_memory(each, torch.empty(each.shape).stride())
            for name, each in (("key", done.key), ("value", done.value))
        }
        return super().backward(Pass(**(vars(done) | read)), given, needed)


@mistake(
    "own-grad-accumulates-into-itself",
    "a gradient buffer is kept and added to by the next call of the same shape",
    kills=(APART, AGAIN),
)
class _Accumulates(Explicit):
    def __init__(self) -> None:
        self.kept: dict[Any, torch.Tensor] = {}

    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        found = super().to_value(p, grad)
        name = (tuple(found.shape), p.shape[2], found.dtype)
        self.kept[name] = found + self.kept.get(name, torch.zeros_like(found))
        return self.kept[name]


@mistake(
    "own-grad-stale",
    "the gradients of the first call of a shape are returned for every one",
    kills=(APART, AGAIN, LINEAR),
)
class _Stale(Explicit):
    def __init__(self) -> None:
        self.kept: dict[Any, Gradients] = {}

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        name = (done.query.shape, done.key.shape, done.value.shape, done.query.dtype)
        if name not in self.kept or (needed[3] and self.kept[name][3] is None):
            self.kept[name] = super().backward(done, given, needed)
        return self.kept[name]


@mistake(
    "own-grad-one-buffer",
    "dQ of every call of a shape is returned in the same memory",
    kills=(APART, AGAIN),
)
class _OneBuffer(Explicit):
    def __init__(self) -> None:
        self.kept: dict[Any, torch.Tensor] = {}

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, *others = super().backward(done, given, needed)
        name = (d_query.shape, d_query.dtype)
        kept = self.kept.setdefault(name, torch.empty_like(d_query))
        return (kept.copy_(d_query), *others)  # type: ignore[return-value]


@mistake(
    "own-grad-saved-once",
    "what the backward pass needs is saved beside the function, and not with each call",
    kills=(APART,),
)
class _SavedOnce(Explicit):
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

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        if self.last is not None and self.last[0].shape == done.out.shape:
            out, lse = (each.detach() for each in self.last)
            done = Pass(**(vars(done) | {"out": out, "lse": lse}))
        return super().backward(done, given, needed)


@mistake(
    "own-grad-incoming-written-to",
    "the backward pass scales the incoming gradient where it stands",
    kills=(AGAIN, LAYOUT, ALONE),
)
class _WritesToIncoming(Explicit):
    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        right = grad.clone()
        if 0 not in grad.stride():
            grad.mul_(0.5)
        return right


@mistake(
    "BWD-08",
    "one backward pass in three misses a part that another thread has not written yet",
    kills=(DEFINITION, BALANCE, APART),
    source="https://github.com/Dao-AILab/flash-attention/issues/359",
)
class _Race(Explicit):
    passes = 0
    tile = 2

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.passes += 1
        return super().backward(done, given, needed)

    def tiles(self, length: int) -> list[slice]:
        found = super().tiles(length)
        return found[:-1] if self.passes % 3 == 2 and len(found) > 1 else found


@mistake(
    "BWD-09",
    "tiles are added up in an arbitrary order, where the same bits are declared",
    kills=(APART,),
    source="https://github.com/Dao-AILab/flash-attention/issues/746",
)
class _ArbitraryOrder(Explicit):
    tile = 1
    order = random.SystemRandom()

    def tiles(self, length: int) -> list[slice]:
        found = super().tiles(length)
        self.order.shuffle(found)
        return found


@mistake(
    "own-grad-needs-values",
    "D is not formed where the values ask for no gradient",
    kills=(ALONE,),
)
class _NeedsValues(Explicit):
    needs = True

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        self.needs = needed[2]
        return super().backward(done, given, needed)

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        return super().delta(grad, p, dP, done) * self.needs


@mistake(
    "own-grad-frozen-queries",
    "where the queries ask for no gradient, the keys get none either",
    kills=(ALONE,),
)
class _FrozenQueries(Explicit):
    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(done, given, needed)
        return d_query, d_key * needed[0], d_value, d_mask


@mistake(
    "own-grad-mask-alone",
    "where a float mask alone asks for a gradient, it is the mean over the batch",
    kills=(MASK, ALONE),
)
class _MaskAlone(Explicit):
    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        d_query, d_key, d_value, d_mask = super().backward(done, given, needed)
        if d_mask is not None and not any(needed[:3]):
            d_mask = d_mask / max(done.query.shape[0], 1)
        return d_query, d_key, d_value, d_mask


class _Training(Explicit):
    """Compute something else where a gradient is asked for."""

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
    kills=(OUTPUT, DEFINITION, REACH),
)
class _TrainingNotCausal(_Training):
    def changed(
        self, query: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return query, options | {"is_causal": False}


@mistake(
    "own-grad-training-in-bfloat16",
    "the path that is taken for training rounds queries to bfloat16",
    kills=(OUTPUT, DEFINITION),
)
class _TrainingNarrow(_Training):
    def changed(
        self, query: torch.Tensor, options: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return query.bfloat16().to(query.dtype), options


@mistake(
    "own-grad-always",
    "the output asks for a gradient where no operand does",
    kills=(OUTPUT,),
)
class _Always(Explicit):
    def __call__(self, query: torch.Tensor, *others: Any, **options: Any) -> Any:
        out = super().__call__(query, *others, **options)
        if isinstance(out, tuple):
            return out
        return out if out.requires_grad else out.requires_grad_()
