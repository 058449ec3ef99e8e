"""Correct attentions by tiles of keys, as fused kernels compute them, with explicit gradients.

`Fused` joins the two correct bases of the mutants, which share no code with the reference: an
online softmax forward, and weights recomputed from the log-sum-exp backward. Its settings change
the order and the roundings of their steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from attnspec.conformance.mutants.bases.explicit_backward import Explicit
from attnspec.conformance.mutants.bases.tiled import Tiled

LOG2E = 1.4426950408889634

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices in float32 with an adder that sums 16 terms at a time and truncates."""
    a, b = a.double(), b.double()
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float32)
    for start in range(0, a.shape[-1], 16):
        exact = total.double() + a[..., start : start + 16] @ b[..., start : start + 16, :]
        near = exact.float()
        inward = torch.nextafter(near, torch.zeros_like(near))
        total = torch.where(near.double().abs() > exact.abs(), inward, near)
    return total


@dataclass(kw_only=True, eq=False)
class Fused(Explicit, Tiled):
    """An attention over tiles of keys; the ALiBi bias is added to the mask, and both to the scores.

    Attributes:
        tile: keys per tile; in the backward pass also queries.
        backwards: whether the last tile comes first.
        base2: whether exponentials are to base 2.
        scaled: the operand that the scale multiplies: `scores`, `query` (in the wide type), `root`
            (queries and keys, by its square root) or `stored` (the query, rounded to the storage
            type).
        splits: number of runs of tiles that are computed separately and merged by their
            log-sum-exp.
        shares_of_lse: whether the weights of merged runs are exp(l_s - l) with the rounded
            log-sum-exp l of the row, as in flash-decoding, and not a softmax.
        mask_rounded: whether a float mask is rounded to the storage type.
        weights_stay_wide: whether attention weights and score gradients are not rounded to the
            storage type.
        sum_rounded: whether the sum of a row is taken over rounded weights.
        lazy: the maximum is updated only if it has grown by more than this.
        sink_last: whether the sink is merged at the end, by the log-sum-exp, not as a first key.
        product: the matrix product.
        group_rounded: whether key and value gradients of each head are rounded before the heads of
            a group are summed.
        row_block: number of queries after which key and value gradients are written back; `None`
            is never.
    """

    tile: int = 64
    backwards: bool = False
    base2: bool = False
    scaled: Literal["scores", "query", "root", "stored"] = "scores"
    splits: int = 1
    shares_of_lse: bool = False
    mask_rounded: bool = False
    weights_stay_wide: bool = False
    sum_rounded: bool = False
    lazy: float = 0.0
    sink_last: bool = False
    product: Product = torch.matmul
    group_rounded: bool = False
    row_block: int | None = None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *rest: Any,
        alibi_slopes: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        self.storage = value.dtype
        if self.mask_rounded and attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(self.storage)
        if alibi_slopes is not None:
            zero = query.new_zeros(query.shape[2], key.shape[2], dtype=self.wide(query.dtype))
            bias = self.add_alibi(zero, alibi_slopes.to(zero))
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                bias = torch.where(attn_mask, bias, -torch.inf)
            elif attn_mask is not None:
                bias = attn_mask + bias
            attn_mask = bias
        return super().__call__(query, key, value, attn_mask, *rest, **options)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        no_sink, parts = {**options, "sinks": None}, []
        for first in range(self.splits):
            self.run = slice(first, None, self.splits)
            reads_sink = first == 0 and not self.sink_last
            part = super().forward(query, key, value, attn_mask, options if reads_sink else no_sink)
            parts.append(part)
        out, lse = parts[0] if len(parts) == 1 else self.merge(*zip(*parts, strict=True))
        if self.sink_last and options["sinks"] is not None:
            without, sink = lse, options["sinks"].to(lse)[:, None]
            lse = torch.logaddexp(without, sink)
            share = torch.sigmoid(without - sink)
            if self.shares_of_lse:
                share = self.exp(without, lse)
            share = share.masked_fill(lse == -torch.inf, 0.0)
            out = out * share[..., None]
        return out.to(self.storage), lse

    def merge(
        self, outs: tuple[torch.Tensor, ...], lses: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Merge the results of separate runs of tiles by their log-sum-exp."""
        logs = torch.stack(lses)
        lse = logs.logsumexp(0)
        finite = torch.where(lse == -torch.inf, 0.0, lse)
        if self.shares_of_lse:
            shares = self.exp(logs, finite)
        else:
            shares = torch.softmax(logs.masked_fill(lse == -torch.inf, 0.0), 0)
        return (shares[..., None] * torch.stack(outs)).sum(0), lse

    def key_tiles(self, keys: int) -> list[slice]:
        tiles = super().key_tiles(keys)
        return (tiles[::-1] if self.backwards else tiles)[self.run]

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # `forward` rounds, after it has merged runs of tiles and the sink
        return out

    def narrow(self, factor: torch.Tensor) -> torch.Tensor:
        """Round a factor of a matrix product to the storage type, unless weights stay wide."""
        return factor if self.weights_stay_wide else self.store(factor)

    def store(self, tensor: torch.Tensor) -> torch.Tensor:
        """Round to the storage type and convert back."""
        return tensor.to(self.storage).to(tensor.dtype)

    def factors(self, scale: float) -> tuple[float, float, float]:
        """Return the factors of queries, keys and scores whose product is the scale."""
        if self.scaled == "root":
            return math.copysign(math.sqrt(abs(scale)), scale), math.sqrt(abs(scale)), 1.0
        return (1.0, 1.0, scale) if self.scaled == "scores" else (scale, 1.0, 1.0)

    def scaled_query(self, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Return the queries that meet the keys."""
        query = query * self.factors(scale)[0]
        return self.store(query) if self.scaled == "stored" else query

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        _, of_key, of_scores = self.factors(scale)
        return self.product(self.scaled_query(query, scale), (key * of_key).mT) * of_scores

    def exp(self, scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        if self.base2:
            return torch.exp2(scores * LOG2E - shift * LOG2E)
        return super().exp(scores, shift)

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        return torch.where(grown > peak + self.lazy, grown, peak)

    def tile_total(self, weights: torch.Tensor) -> torch.Tensor:
        return super().tile_total(self.narrow(weights) if self.sum_rounded else weights)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return self.product(self.narrow(weights), value)

    def to_weights(self, grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return self.product(grad, value.mT)

    def tiles(self, length: int) -> list[slice]:
        if self.row_block is not None:
            return [slice(0, length)]  # `over_queries` divides it
        return super().tiles(length)[:: -1 if self.backwards else 1]

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        of_query, of_key, of_scores = self.factors(scale)
        return self.product(self.narrow(dt), key * of_key) * (of_query * of_scores)

    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        _, of_key, of_scores = self.factors(scale)
        return self.over_queries(dt, self.scaled_query(query, scale)) * (of_key * of_scores)

    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return self.over_queries(p, grad)

    def over_queries(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Form leftᵀ right, and write the sum back after each `row_block` of queries."""
        left = self.narrow(left)
        if self.row_block is None:
            return self.product(left.mT, right)
        total = torch.zeros(())
        for start in range(0, left.shape[2], self.row_block):
            at = slice(start, start + self.row_block)
            total = self.store(total + self.product(left[:, :, at].mT, right[:, :, at]))
        return total

    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().join_heads(self.store(gradient) if self.group_rounded else gradient, like)
