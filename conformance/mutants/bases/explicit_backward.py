"""A correct attention with its own backward pass, by formula, in overridable steps.

As in fused kernels, the forward pass saves the stored output and the log-sum-exp, and the backward
pass recomputes the weights from them. The names are those of the chapter on gradients.
"""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The tensors and options that the forward pass saves for the backward pass.

    Attributes:
        query: as passed by the caller, like key, value, mask, sinks and slopes.
        out: as returned.
        lse: in the accumulator's type.
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


class Explicit(Dense):
    """A correct attention: the forward pass of `Dense`, and a backward pass in overridable steps.

    Gradients are summed tile by tile: dK and dV over tiles of queries, dQ over tiles of keys.
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
        """Return output and log-sum-exp."""
        out, lse = super().__call__(query, key, value, attn_mask, return_lse=True, **options)
        return out, lse

    def save(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Return a tensor as it is saved for the backward pass: in its own memory."""
        return tensor

    def backward(self, saved: Saved, d_out: torch.Tensor, needed: tuple[bool, ...]) -> Gradients:
        """Return the gradients of query, key, value and mask.

        Args:
            saved: by the forward pass.
            d_out: the incoming gradient.
            needed: whether each of the gradients is requested.
        """
        wide = self.wide(saved.query.dtype)
        grad = self.incoming(d_out, saved).to(wide)
        q, k, v = (tensor.to(wide) for tensor in (saved.query, saved.key, saved.value))
        if k.shape[1] != q.shape[1]:
            k, v = self.share_again(k, q.shape[1]), self.share_again(v, q.shape[1])
        scale = self.scale(q, v, saved.scale)
        capped, scores, visible = self.scores_again(q, k, v, scale, saved)
        p = self.hide_again(self.weights_again(scores, visible, saved), visible)
        dP = self.to_weights(grad, v)
        dS = self.to_scores(p, dP, self.delta(grad, p, dP, saved))
        dS = self.hide_again(dS, visible)
        dt = dS if saved.softcap is None else self.uncap(dS, capped, saved.softcap)

        d_query, d_key, d_value = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for at in self.tiles(k.shape[2]):
            d_query = self.add(d_query, self.to_query(dt[..., at], k[:, :, at], scale))
        for at in self.tiles(q.shape[2]):
            d_key = self.add(d_key, self.to_key(dt[:, :, at], q[:, :, at], scale))
            d_value = self.add(d_value, self.to_value(p[:, :, at], grad[:, :, at]))
        if d_key.shape[1] != saved.key.shape[1]:
            d_key = self.join_heads(d_key, saved.key)
            d_value = self.join_heads(d_value, saved.value)
        d_mask = None
        if needed[3] and saved.attn_mask is not None:
            d_mask = self.finish_mask(self.fold(dS, saved.attn_mask), saved.attn_mask)
        return (
            self.finish_gradient(d_query, saved.query),
            self.finish_gradient(d_key, saved.key),
            self.finish_gradient(d_value, saved.value),
            d_mask,
        )

    def incoming(self, grad: torch.Tensor, saved: Saved) -> torch.Tensor:
        """Return the incoming gradient, read with its own strides."""
        return grad

    def share_again(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Repeat key/value heads so that query head i reads head i // group."""
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def scores_again(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, saved: Saved
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the capped scores, the scores before the softmax, and which keys are readable."""
        capped = self.scores(q, k, scale)
        if saved.softcap is not None:
            capped = self.cap(capped, saved.softcap)
        scores = capped
        if saved.alibi_slopes is not None:
            scores = self.add_alibi(scores, saved.alibi_slopes.to(q.dtype))
        visible, bias = torch.ones_like(scores, dtype=torch.bool), None
        if saved.attn_mask is not None or saved.is_causal:
            visible, bias = self.mask_again(saved, scores)
        if saved.window is not None:
            visible = visible & self.window_again(saved, scores).to(scores.device)
        scores = scores if bias is None else self.add_bias(scores, bias)
        return capped, self.hide(scores, visible), visible

    def mask_again(
        self, saved: Saved, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Recompute which keys the mask and the causal flag allow, and the bias to add or None."""
        return self.mask(saved.attn_mask, saved.is_causal, scores)

    def window_again(self, saved: Saved, scores: torch.Tensor) -> torch.Tensor:
        """Return which keys the window allows."""
        left, right = saved.window or (None, None)
        return self.window(left, right, *scores.shape[-2:])

    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        """Form P = exp(s - lse); a row that reads nothing has weights of zero."""
        lse = torch.where(saved.lse == -torch.inf, torch.inf, saved.lse)
        return self.exp(scores, lse[..., None])

    def hide_again(self, numbers: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Set the elements of unreadable keys to zero, even NaN."""
        return numbers.masked_fill(~visible, 0.0)

    def to_weights(self, grad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Form dP = dO Vᵀ."""
        return grad @ value.mT

    def delta(
        self, grad: torch.Tensor, p: torch.Tensor, dP: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        """Form D = Σ_c dO O, by the stored output."""
        return (grad * saved.out.to(grad.dtype)).sum(-1, keepdim=True)

    def to_scores(self, p: torch.Tensor, dP: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Form dS = P ∘ (dP - D)."""
        return p * (dP - delta)

    def uncap(self, dS: torch.Tensor, capped: torch.Tensor, softcap: float) -> torch.Tensor:
        """Form dt = χ dS with χ = 1 - tanh²."""
        return dS * (1 - (capped / softcap) ** 2)

    def tiles(self, length: int) -> list[slice]:
        """Return the tiles over which a gradient is summed."""
        return [slice(start, start + self.tile) for start in range(0, length, self.tile)]

    def add(self, total: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Add one tile's part to a gradient."""
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
        """Sum a gradient over the query heads of each group."""
        batch, heads, keys, channels = gradient.shape
        shared = like.shape[1]
        return gradient.reshape(batch, shared, heads // shared, keys, channels).sum(2)

    def fold(self, dS: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Form dB, the sum of dS over the axes along which the mask was broadcast."""
        return dS.sum_to_size(mask.shape)

    def finish_mask(self, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Round the gradient of the mask to its storage type."""
        return gradient.to(mask.dtype)

    def finish_gradient(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Round a gradient to the storage type of its operand."""
        return gradient.to(like.dtype)


class _Function(torch.autograd.Function):
    """An autograd function that calls the two passes of an `Explicit`."""

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
        """Compute, and save tensors for the backward pass."""
        out, lse = steps.forward(query, key, value, attn_mask, options)
        per_head = options["sinks"], options["alibi_slopes"]
        # autograd raises if a tensor that is saved in this way is overwritten before it is read
        tensors = (query, key, value, attn_mask, *per_head, out, lse)
        ctx.save_for_backward(*map(steps.save, tensors))
        ctx.steps, ctx.options = steps, options
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        """Return the requested gradients."""
        query, key, value, attn_mask, sinks, alibi_slopes, out, lse = ctx.saved_tensors
        tensors = {
            "query": query,
            "key": key,
            "value": value,
            "attn_mask": attn_mask,
            "sinks": sinks,
            "alibi_slopes": alibi_slopes,
            "out": out,
            "lse": lse,
        }
        saved = Saved(**ctx.options | tensors)
        needed = ctx.needs_input_grad[2:]
        gradients = ctx.steps.backward(saved, grad, needed)
        pairs = zip(gradients, needed, strict=True)
        return None, None, *(gradient if is_needed else None for gradient, is_needed in pairs)
