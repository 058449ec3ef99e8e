"""Attention the plain way, all scores at once, for trying the error bound; autograd goes back.

It shares nothing with the reference: masks and scores are written again here.
"""

import math
from typing import Literal

import torch

from attnspec.conformance.call import Call

Results = dict[str, torch.Tensor]
"""`out`, perhaps `lse`; with an incoming gradient `query`, `key`, `value`, perhaps `attn_mask`."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which a kernel accumulates."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to a storage type and come back."""
    return tensor.to(dtype).to(tensor.dtype)


def hidden(call: Call) -> torch.Tensor:
    """True where a query may not read a key, causal and window counted from the upper left."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    left, right = call.window or (None, None)
    band = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        if call.is_causal:
            band[i, i + 1 :] = True
        if left is not None:
            band[i, : max(0, i - left)] = True
        if right is not None:
            band[i, i + right + 1 :] = True
    if call.attn_mask is None:
        return band
    mask = call.attn_mask
    return band | (~mask if mask.dtype == torch.bool else mask == -math.inf)


def finite_bias(call: Call, dtype: torch.dtype) -> torch.Tensor | None:
    """The float mask without its infinities."""
    if call.attn_mask is None or call.attn_mask.dtype == torch.bool:
        return None
    return call.attn_mask.masked_fill(call.attn_mask == -math.inf, 0.0).to(dtype)


def slopes(call: Call, dtype: torch.dtype) -> torch.Tensor | None:
    """What ALiBi takes away, multiplied in the given type."""
    if call.alibi_slopes is None:
        return None
    queries, keys = call.query.shape[2], call.key.shape[2]
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().to(dtype)
    return call.alibi_slopes.to(dtype)[:, None, None] * distance


def scale_of(call: Call) -> float:
    """The scale, or its default."""
    return float(call.query.shape[-1]) ** -0.5 if call.scale is None else call.scale


def heads_of(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """Keys or values for every query head."""
    return tensor.repeat_interleave(call.query.shape[1] // tensor.shape[1], 1)


def summed(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Add up what broadcasting, or a group of heads, has spread."""
    for axis, size in enumerate((1,) * (4 - like.ndim) + tuple(like.shape)):
        if gradient.shape[axis] != size:
            lead, tail = gradient.shape[:axis], gradient.shape[axis + 1 :]
            gradient = gradient.reshape(*lead, size, -1, *tail).sum(axis + 1)
    return gradient.reshape(like.shape)


def dense(
    call: Call,
    grad: torch.Tensor | None,
    *,
    dtype: torch.dtype | None = None,
    scaled: Literal["scores", "query", "both"] = "scores",
    by_hand: bool = False,
    shuffled: bool = False,
) -> Results:
    """Form all scores at once, and let autograd go back.

    Args:
        call: what is asked.
        grad: the incoming gradient; `None` computes no gradients.
        dtype: the type of every intermediate result; `None` is the storage type.
        scaled: what the scale multiplies; `both` takes its root on either side.
        by_hand: exponentials, their sum and the quotients one by one.
        shuffled: the keys in another order.
    """
    dtype = dtype or call.value.dtype
    leaves = {"query": call.query, "key": call.key, "value": call.value}
    bias = finite_bias(call, call.query.dtype if call.attn_mask is None else call.attn_mask.dtype)
    if bias is not None:
        leaves["attn_mask"] = bias
    leaves = {
        name: each.detach().clone().requires_grad_(grad is not None)
        for name, each in leaves.items()
    }
    q, k, v = (leaves[name].to(dtype) for name in ("query", "key", "value"))
    k, v, scale, fall = heads_of(k, call), heads_of(v, call), scale_of(call), slopes(call, dtype)
    shape = (*q.shape[:3], k.shape[2])
    hides = hidden(call).expand(shape)
    extra = leaves["attn_mask"].to(dtype).expand(shape) if bias is not None else None
    if shuffled:
        order = torch.randperm(k.shape[2], generator=torch.Generator().manual_seed(k.shape[2]))
        k, v, hides = k[:, :, order], v[:, :, order], hides[..., order]
        extra = None if extra is None else extra[..., order]
        fall = None if fall is None else fall[..., order]
    if scaled == "query":
        s = (q * scale) @ k.mT
    elif scaled == "both":
        root = math.sqrt(abs(scale))
        s = (q * math.copysign(root, scale)) @ (k * root).mT
    else:
        s = (q @ k.mT) * scale
    if call.softcap is not None:
        s = torch.tanh(s / call.softcap) * call.softcap
    if fall is not None:
        s = s - fall
    if extra is not None:
        s = s + extra
    is_empty = hides.all(-1, keepdim=True)
    s = s.masked_fill(hides & ~is_empty, -math.inf)
    if call.sinks is not None:
        s = torch.cat([s, call.sinks.to(dtype)[None, :, None, None].expand(*shape[:3], 1)], -1)
    if by_hand:
        e = torch.exp(s - s.amax(-1, keepdim=True).detach())
        p = e / e.sum(-1, keepdim=True)
    else:
        p = torch.softmax(s, -1)
    out = (p[..., : shape[3]].masked_fill(hides, 0.0) @ v).to(call.value.dtype)
    results = {"out": out.detach()}
    with torch.no_grad():
        lse = torch.logsumexp(s.to(wide(dtype)), -1)
        nothing = lse.new_tensor(-math.inf)
        if call.sinks is not None:
            nothing = call.sinks.to(lse.dtype)[:, None]
        results["lse"] = torch.where(is_empty[..., 0], nothing, lse)
    if grad is not None:
        found = torch.autograd.grad(out, list(leaves.values()), grad)
        results |= dict(zip(leaves, found, strict=True))
    return results
