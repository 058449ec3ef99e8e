"""A correct attention with a backward pass of its own, by formula, in overridable steps.

As in fused kernels, the forward pass saves the stored output and the log-sum-exp, and the backward
pass builds the weights anew from them. The names are those of the chapter on gradients.
"""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What the forward pass leaves to the backward pass.

    Attributes:
        query: as given, like key, value, mask, sinks and slopes.
        out: as returned.
        lse: of the accumulator's type.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None
    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    is_causal: bool
    scale: float | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    out: torch.Tensor
    lse: torch.Tensor

    @property
    def wide(self) -> torch.dtype:
        """The accumulator's type."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32


class Explicit(Dense):
    """The forward pass of `Dense`, and a backward pass whose every step is a method.

    A gradient is summed tile by tile: those of keys and values over tiles of queries, that of the
    queries over tiles of keys.
    """

    tile = 64

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        if dropout_p:
            raise ValueError(f"dropout_p must be 0, got {dropout_p}")
        options = {
            "is_causal": is_causal,
            "scale": scale,
            "window": window,
            "softcap": softcap,
            "sinks": sinks,
            "alibi_slopes": alibi_slopes,
        }
        out, lse = _Function.apply(self, options, query, key, value, attn_mask)  # type: ignore[no-untyped-call]
        return (out, lse) if return_lse else out

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp."""
        out, lse = Dense.__call__(self, query, key, value, attn_mask, return_lse=True, **options)
        return out, lse

    def backward(self, done: Pass, given: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        """The gradients of query, key, value and mask.

        Args:
            done: the forward pass.
            given: the incoming gradient.
            needed: which of the gradients are asked for.
        """
        grad = self.incoming(given, done).to(done.wide)
        q, k, v = (each.to(done.wide) for each in (done.query, done.key, done.value))
        if k.shape[1] != q.shape[1]:
            k, v = self.share_again(k, q.shape[1]), self.share_again(v, q.shape[1])
        scale = self.scale(q, v, done.scale)
        capped, scores, visible = self.scores_again(q, k, v, scale, done)
        p = self.hide_again(self.weights_again(scores, visible, done), visible)
        dP = self.to_weights(grad, v)
        dS = self.to_scores(p, dP, self.delta(grad, p, dP, done))
        dS = self.hide_again(dS, visible)
        dt = dS if done.softcap is None else self.uncap(dS, capped, done.softcap)

        d_query, d_key, d_value = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for at in self.tiles(k.shape[2]):
            d_query = self.add(d_query, self.to_query(dt[..., at], k[:, :, at], scale))
        for at in self.tiles(q.shape[2]):
            d_key = self.add(d_key, self.to_key(dt[:, :, at], q[:, :, at], scale))
            d_value = self.add(d_value, self.to_value(p[:, :, at], grad[:, :, at]))
        if d_key.shape[1] != done.key.shape[1]:
            d_key = self.join_heads(d_key, done.key)
            d_value = self.join_heads(d_value, done.value)
        d_mask = None
        if needed[3] and done.attn_mask is not None:
            d_mask = self.finish_mask(self.fold(dS, done.attn_mask), done.attn_mask)
        return (
            self.finish_gradient(d_query, done.query),
            self.finish_gradient(d_key, done.key),
            self.finish_gradient(d_value, done.value),
            d_mask,
        )

    def incoming(self, grad: torch.Tensor, done: Pass) -> torch.Tensor:
        """The incoming gradient by its own strides."""
        return grad

    def share_again(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Query head i read key/value head i // group."""
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def scores_again(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, done: Pass
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores as they leave the cap, as they enter the softmax, and what may be read."""
        capped = self.scores(q, k, scale)
        if done.softcap is not None:
            capped = self.cap(capped, done.softcap)
        scores = capped
        if done.alibi_slopes is not None:
            scores = self.lean(scores, done.alibi_slopes.to(done.wide))
        visible, bias = torch.ones_like(scores, dtype=torch.bool), None
        if done.attn_mask is not None or done.is_causal:
            visible, bias = self.mask_again(done, scores)
        if done.window is not None:
            visible = visible & self.window_again(done, scores).to(scores.device)
        scores = scores if bias is None else self.add_bias(scores, bias)
        return capped, self.hide(scores, visible), visible

    def mask_again(
        self, done: Pass, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the mask and the causal flag let a query read, and what is added."""
        return self.mask(done.attn_mask, done.is_causal, scores)

    def window_again(self, done: Pass, scores: torch.Tensor) -> torch.Tensor:
        """What the window lets a query read."""
        left, right = done.window or (None, None)
        return self.window(left, right, *scores.shape[-2:])

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        """Form P = exp(s - lse); a row that reads nothing has no weights."""
        lse = torch.where(done.lse == -torch.inf, torch.inf, done.lse)
        return torch.exp(scores - lse[..., None])

    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Zero where a query may not read, whatever stands there."""
        return numbers.masked_fill(~visible, 0.0)

    def to_weights(self, grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Form dP = dO Vᵀ."""
        return grad @ value.mT

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        """Form D = Σ_c dO O, by the stored output."""
        return (grad * done.out.to(done.wide)).sum(-1, keepdim=True)

    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Form dS = P ∘ (dP - D)."""
        return p * (dP - delta)

    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        """Form dt = χ dS with χ = 1 - tanh²."""
        return dS * (1 - (capped / softcap) ** 2)

    def tiles(self, length: int) -> list[slice]:
        """The tiles over which a gradient is summed."""
        return [slice(start, start + self.tile) for start in range(0, length, self.tile)]

    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """What one tile adds to a gradient."""
        return total + part

    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        """Form dQ = scale dt K."""
        return dt @ key * scale

    def to_key(self, dt: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Form dK = scale dtᵀ Q."""
        return dt.mT @ query * scale

    def to_value(self, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Form dV = Pᵀ dO."""
        return p.mT @ grad

    def join_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The sum over the query heads of a group."""
        batch, heads, keys, channels = gradient.shape
        shared = like.shape[1]
        return gradient.reshape(batch, shared, heads // shared, keys, channels).sum(2)

    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Form dB, the sum over what the mask was broadcast along."""
        return dS.sum_to_size(mask.shape)

    def finish_mask(self, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The gradient of the mask in its storage type."""
        return gradient.to(mask.dtype)

    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A gradient in the storage type of its operand."""
        return gradient.to(like.dtype)


class _Function(torch.autograd.Function):
    """The two passes, as autograd calls them."""

    @staticmethod
    def forward(
        ctx: Any,
        steps: Explicit,
        options: dict[str, Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute, and save what the way back needs."""
        out, lse = steps.forward(query, key, value, attn_mask, options)
        ctx.save_for_backward(query, key, value, attn_mask, out, lse)
        ctx.steps, ctx.options = steps, options
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        """Differentiate."""
        query, key, value, attn_mask, out, lse = ctx.saved_tensors
        done = Pass(
            query=query,
            key=key,
            value=value,
            attn_mask=attn_mask,
            out=out,
            lse=lse,
            **ctx.options,
        )
        needed = ctx.needs_input_grad[2:]
        found = ctx.steps.backward(done, grad, needed)
        return None, None, *(each if ask else None for each, ask in zip(found, needed, strict=True))
