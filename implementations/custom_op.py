"""Attention as a custom operator, registered with torch together with its shapes and gradient.

`torch.compile` treats such an operator as one opaque step and uses the registered shapes.
"""

import math
from typing import Any, cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.arguments import check
from attnspec.spec import Attention, Extra, Feature, Implementation, MaskedNonfinite, Profile


@torch.library.custom_op("attnspec::attention", mutates_args=())
def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in the accumulator's type; return the output and the log-sum-exp of each row.

    Args:
        query: (batch, heads, queries, d_head), and so on; as many heads as `key`.
        key: likewise.
        value: likewise.
        bias: added to the scaled scores; minus infinity where a row may not read a key.
        is_causal: a row reads the keys up to its own position.
        scale: multiplies the scores.
    """
    scores, visible = _scores(query, key, bias, is_causal, scale)
    empty = ~visible.any(dim=-1, keepdim=True)
    # not from the log-sum-exp, whose rounding error grows with the scores
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    return (weights @ value.to(weights.dtype)).to(value.dtype), scores.logsumexp(dim=-1)


@forward.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors of the shapes of `forward`'s results, without computing them."""
    rows = query.shape[:3]
    return value.new_empty(*rows, value.shape[3]), query.new_empty(rows, dtype=_wide(query.dtype))


@torch.library.custom_op("attnspec::attention_backward", mutates_args=())
def backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Recompute the weights from the log-sum-exp, and compute the gradients from them.

    Args:
        grad_out: the incoming gradient.
        query: as given to `forward`, and so on.
        key: likewise.
        value: likewise.
        bias: likewise.
        out: the output of `forward`.
        lse: likewise.
        is_causal: as given to `forward`.
        scale: likewise.

    Returns:
        The gradients of query, key, value, and of the scores.
    """
    scores, visible = _scores(query, key, bias, is_causal, scale)
    empty = ~visible.any(dim=-1, keepdim=True)
    weights = torch.exp(scores - lse[..., None].masked_fill(empty, 0.0))
    wide = weights.dtype
    d_out, v = grad_out.to(wide), value.to(wide)
    d_weights = d_out @ v.mT
    # the row sum of dP · P equals the row sum of dO · O; from the weights it has full precision
    d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
    return (
        (scale * (d_scores @ key.to(wide))).to(query.dtype),
        (scale * (d_scores.mT @ query.to(wide))).to(key.dtype),
        (weights.mT @ d_out).to(value.dtype),
        d_scores,
    )


@backward.register_fake
def _(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tensors of the shapes of `backward`'s results, without computing them."""
    scores = query.new_empty(*query.shape[:3], key.shape[2], dtype=lse.dtype)
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        torch.empty_like(key, memory_format=torch.contiguous_format),
        torch.empty_like(value, memory_format=torch.contiguous_format),
        scores,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Save the tensors that the backward pass needs, and mark the log-sum-exp as constant."""
    query, key, value, bias, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, bias, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backpropagate(ctx: Any, grad_out: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
    """Pass the gradients to autograd, in the order of the arguments."""
    query, key, value, bias, out, lse = ctx.saved_tensors
    if grad_out is None:
        return (None,) * 6
    gradients = backward(grad_out, query, key, value, bias, out, lse, ctx.is_causal, ctx.scale)
    d_bias = None
    if bias is not None and ctx.needs_input_grad[3]:
        d_bias = gradients[3].sum_to_size(bias.shape).to(bias.dtype)
    return *gradients[:3], d_bias, None, None


forward.register_autograd(_backpropagate, setup_context=_save)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scaled scores, minus infinity at hidden keys, and the visible pairs."""
    wide = _wide(query.dtype)
    scores = scale * (query.to(wide) @ key.to(wide).mT)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
    if is_causal:
        visible = visible.tril()
    if bias is not None:
        scores = scores + bias.to(wide)
        visible = visible & (bias != -torch.inf)
    return scores.masked_fill(~visible, -torch.inf), visible


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Attend by the registered operator.

    Raises:
        ValueError: if shapes do not fit together, or dropout is requested.
    """
    check(query, key, value, attn_mask, enable_gqa=enable_gqa)
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, got {dropout_p}")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros(attn_mask.shape, dtype=_wide(query.dtype), device=query.device)
        bias = bias.masked_fill(~attn_mask, -torch.inf)
    out: torch.Tensor = forward(query, key, value, bias, is_causal, float(scale))[0]
    return out


IMPLEMENTATION = Implementation(
    name="custom_op",
    attention=cast(Attention, attention),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD, Feature.VALIDATES}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
    profile=Profile(masked_values=MaskedNonfinite.PROPAGATES),
    extras=frozenset({Extra.COMPILE, Extra.OPCHECK}),
)
