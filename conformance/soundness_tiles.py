"""Attention tile by tile, as fused kernels compute it, for trying the error bound.

An online softmax forward; backward, the weights are rebuilt from the log-sum-exp. It shares nothing
with the reference.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.soundness_dense import (
    Results,
    finite_bias,
    heads_of,
    hidden,
    scale_of,
    slopes,
    stored,
    summed,
    wide,
)

LOG2E = 1.4426950408889634

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product in float32 whose adder takes 16 terms at a time and truncates."""
    a, b = a.double(), b.double()
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float32)
    for start in range(0, a.shape[-1], 16):
        exact = total.double() + a[..., start : start + 16] @ b[..., start : start + 16, :]
        near = exact.float()
        inward = torch.nextafter(near, torch.zeros_like(near))
        total = torch.where(near.double().abs() > exact.abs(), inward, near)
    return total


@dataclass(frozen=True, kw_only=True)
class Tiled:
    """An attention over tiles of keys.

    Attributes:
        block: keys per tile.
        backwards: the last tile first.
        base2: exponentials to base 2.
        scaled: what the scale multiplies: `scores`, `query` (in the wide type), `root` (its root
            on both sides) or `stored` (the query, rounded to the storage type).
        splits: how many runs of tiles are computed apart and merged by their log-sum-exp.
        weights_stay_wide: weights and score gradients are not rounded to the storage type.
        sum_rounded: the sum of a row is taken over rounded weights.
        lazy: the maximum is followed only when it has grown by more than this.
        sink_last: the sink joins at the end, by the log-sum-exp, and not as a first key.
        product: how matrices are multiplied.
        exp: the exponential; relative errors are its own.
        group_rounded: key and value gradients of one head are rounded before a group adds them.
        row_block: queries after which key and value gradients are written back; None is never.
    """

    block: int = 64
    backwards: bool = False
    base2: bool = False
    scaled: str = "scores"
    splits: int = 1
    weights_stay_wide: bool = False
    sum_rounded: bool = False
    lazy: float = 0.0
    sink_last: bool = False
    product: Product = torch.matmul
    exp: Callable[[torch.Tensor], torch.Tensor] = torch.exp
    group_rounded: bool = False
    row_block: int | None = None

    def __call__(self, call: Call, grad: torch.Tensor | None) -> Results:
        """Compute `out` and `lse`, and with `grad` the gradients."""
        run = _Run(self, call)
        out, lse = run.forward()
        results = {"out": out.to(call.value.dtype), "lse": lse}
        return results if grad is None else results | run.backward(results["out"], lse, grad)


class _Run:
    """One call under way."""

    def __init__(self, how: Tiled, call: Call) -> None:
        self.how, self.call = how, call
        self.acc = wide(call.value.dtype)
        self.query = call.query.to(self.acc)
        self.key, self.value = (heads_of(x.to(self.acc), call) for x in (call.key, call.value))
        self.scale = torch.tensor(scale_of(call), dtype=self.acc)
        root, sign = self.scale.abs().sqrt(), self.scale.sign()
        if how.scaled != "scores":
            self.query = self.query * (root * sign if how.scaled == "root" else self.scale)
        if how.scaled == "stored":
            self.query = stored(self.query, call.value.dtype)
        if how.scaled == "root":
            self.key = self.key * root
        keys = self.key.shape[2]
        self.shape = (*self.query.shape[:3], keys)
        self.hides = hidden(call).expand(self.shape)
        bias, fall = finite_bias(call, self.acc), slopes(call, self.acc)
        self.bias = bias if fall is None else -fall if bias is None else bias - fall
        if self.bias is not None:
            self.bias = self.bias.expand(self.shape)
        starts = range(0, keys, how.block)
        tiles = [torch.arange(a, min(a + how.block, keys)) for a in starts]
        self.tiles = tiles[::-1] if how.backwards else tiles

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """Round what meets the values, unless it stays wide."""
        return x if self.how.weights_stay_wide else stored(x, self.call.value.dtype)

    def exp(self, x: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
        """The exponential of a difference, in either base."""
        if self.how.base2:
            return torch.exp2(x * LOG2E - peak * LOG2E)
        return self.how.exp(x - peak)

    def scores(self, j: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Masked scores of a tile, and the slope of the cap."""
        s = self.how.product(self.query, self.key[:, :, j].mT)
        if self.how.scaled == "scores":
            s = s * self.scale
        slope = None
        if self.call.softcap is not None:
            bent = torch.tanh(s / self.call.softcap)
            s, slope = bent * self.call.softcap, 1 - bent * bent
        if self.bias is not None:
            s = s + self.bias[..., j]
        return s.masked_fill(self.hides[..., j], -math.inf), slope

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, not yet rounded, and the log-sum-exp."""
        sink = None
        if self.call.sinks is not None:
            per_head = self.call.sinks.to(self.acc)[None, :, None, None]
            sink = per_head.expand(*self.shape[:3], 1)
        runs = range(self.how.splits if self.tiles else 1)
        parts = [self.part(r, sink if r == 0 and not self.how.sink_last else None) for r in runs]
        m, total, out = parts[0] if len(parts) == 1 else _merged(parts)
        some = total > 0
        safe = torch.where(some, total, 1.0)
        out, lse = out / safe, torch.where(some, m + safe.log(), -math.inf)
        if sink is not None and self.how.sink_last:
            is_empty = (lse == -math.inf) & (sink == -math.inf)
            out = torch.where(is_empty, 0.0, out * torch.sigmoid(lse - sink))
            lse = torch.logaddexp(lse, sink)
        return out, lse[..., 0]

    def part(self, run: int, sink: torch.Tensor | None) -> Partial:
        """Maximum, sum and unnormalised output over one run of tiles."""
        m = torch.full((*self.shape[:3], 1), -math.inf, dtype=self.acc)
        total = torch.zeros_like(m)
        if sink is not None:
            m, total = sink.clone(), torch.ones_like(m)
        out = torch.zeros(*self.shape[:3], self.value.shape[-1], dtype=self.acc)
        for j in self.tiles[run :: self.how.splits]:
            s, _ = self.scores(j)
            highest = torch.maximum(m, s.amax(-1, keepdim=True))
            peak = torch.where(highest > m + self.how.lazy, highest, m)
            base = torch.where(peak == -math.inf, 0.0, peak)
            w, shrink = self.exp(s, base), self.exp(m, base)
            counted = self.narrow(w) if self.how.sum_rounded else w
            total = total * shrink + counted.sum(-1, keepdim=True)
            out = out * shrink + self.how.product(self.narrow(w), self.value[:, :, j])
            m = peak
        return m, total, out

    def backward(self, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor) -> Results:
        """The gradients, from the stored output and the log-sum-exp."""
        call, product, dtype = self.call, self.how.product, self.call.value.dtype
        grad = grad.to(self.acc)
        log = torch.where(lse == -math.inf, math.inf, lse)[..., None]
        delta = (grad * out.to(self.acc)).sum(-1, keepdim=True)
        dq, dk, dv = (torch.zeros_like(x) for x in (self.query, self.key, self.value))
        dbias = torch.zeros(self.shape, dtype=self.acc)
        rows = self.how.row_block or max(1, self.shape[2])
        for j in self.tiles:
            s, slope = self.scores(j)
            p = self.exp(s, log)
            ds = p * (product(grad, self.value[:, :, j].mT) - delta)
            dbias[..., j] = ds
            dt, p = self.narrow(ds if slope is None else ds * slope), self.narrow(p)
            dq += product(dt, self.key[:, :, j])
            for i in range(0, self.shape[2], rows):
                part = slice(i, i + rows)
                dv[:, :, j] += product(p[:, :, part].mT, grad[:, :, part])
                dk[:, :, j] += product(dt[:, :, part].mT, self.query[:, :, part])
                if self.how.row_block:
                    dv[:, :, j] = stored(dv[:, :, j], dtype)
                    dk[:, :, j] = stored(dk[:, :, j], dtype)
        root = self.scale.abs().sqrt()
        dq = dq * root * self.scale.sign() if self.how.scaled == "root" else dq * self.scale
        dk = dk * {"root": root, "scores": self.scale}.get(self.how.scaled, 1.0)
        if self.how.group_rounded:
            dk, dv = stored(dk, dtype), stored(dv, dtype)
        results = {
            "query": dq.to(dtype),
            "key": summed(dk, call.key).to(dtype),
            "value": summed(dv, call.value).to(dtype),
        }
        if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
            results["attn_mask"] = summed(dbias, call.attn_mask).to(call.attn_mask.dtype)
        return results


def _merged(parts: list[Partial]) -> Partial:
    """Merge normalised partial results by their log-sum-exp."""
    logs, outs = [], []
    for m, total, out in parts:
        some = total > 0
        safe = torch.where(some, total, 1.0)
        outs.append(out / safe)
        logs.append(torch.where(some, m + safe.log(), -math.inf))
    peak = torch.stack(logs).amax(0)
    base = torch.where(peak == -math.inf, 0.0, peak)
    shares = [torch.exp(each - base) for each in logs]
    total = torch.stack(shares).sum(0)
    mixed = torch.stack([w * out for w, out in zip(shares, outs, strict=True)]).sum(0)
    return peak, total, mixed
