"""Heads: several attentions side by side, each on its own share of the channels."""

from collections.abc import Callable

import torch
from jaxtyping import Float

from attnspec.reference.linear import linear
from attnspec.spec import Grouping


def split_heads(
    x: Float[torch.Tensor, "batch length d_model"], heads: int
) -> Float[torch.Tensor, "batch {heads} length d_head"]:
    """Cut the channels into equal runs, one per head, first run first.

    Args:
        x: any unit.
        heads: a count that divides the channels.

    Returns:
        A view: head *h* holds channels ``h * d_head`` to ``(h + 1) * d_head - 1``.

    Raises:
        ValueError: if the channels cannot be cut evenly.

    Clauses:
        HED-1
    """
    batch, length, d_model = x.shape
    if heads < 1 or d_model % heads:
        raise ValueError(f"{d_model} channels cannot be shared evenly by {heads} heads")
    return x.reshape(batch, length, heads, d_model // heads).transpose(1, 2)


def merge_heads(
    x: Float[torch.Tensor, "batch heads length d_head"],
) -> Float[torch.Tensor, "batch length d_model"]:
    """Lay the heads' channels side by side again, undoing `split_heads`.

    Args:
        x: any unit.

    Returns:
        The channels of head 0, then those of head 1, and so on.

    Clauses:
        HED-1
    """
    batch, heads, length, d_head = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * d_head)


def repeat_kv(
    x: Float[torch.Tensor, "batch kv_heads keys channels"],
    heads: int,
    grouping: Grouping = Grouping.CONSECUTIVE,
) -> Float[torch.Tensor, "batch {heads} keys channels"]:
    """Give every query head its key/value head: query head *h* reads ``h // (heads / kv_heads)``.

    Args:
        x: keys, dimensionless, or values, of any unit.
        heads: the count of query heads, a multiple of the key/value heads.
        grouping: `interleaved` lets query head *h* read ``h % kv_heads``.

    Returns:
        Each key/value head repeated for its group, the copies of one head next to each other; or,
        if `grouping` is `interleaved`, all key/value heads in their order, again and again.

    Raises:
        ValueError: if the query heads cannot be shared out evenly.

    Clauses:
        HED-2

    Source:
        Ainslie et al. 2023, section 2.2
    """
    batch, kv_heads, keys, channels = x.shape
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} query heads do not share {kv_heads} key/value heads evenly")
    group = heads // kv_heads
    if grouping == Grouping.INTERLEAVED:
        return x.repeat(1, group, 1, 1)
    repeated = x[:, :, None].expand(batch, kv_heads, group, keys, channels)
    return repeated.reshape(batch, heads, keys, channels)


def multi_head_attention(
    x: Float[torch.Tensor, "batch length d_model"],
    qkv_weight: Float[torch.Tensor, "d_model three_d_model"],
    qkv_bias: Float[torch.Tensor, " three_d_model"],
    out_weight: Float[torch.Tensor, "d_model d_model"],
    out_bias: Float[torch.Tensor, " d_model"],
    *,
    heads: int,
    attention: Callable[..., torch.Tensor],
) -> Float[torch.Tensor, "batch length d_model"]:
    """Project to queries, keys and values, attend in every head, and project back.

    Args:
        x: the normalized residual stream, dimensionless.
        qkv_weight: input-major; the columns of the queries first, then keys, then values.
        qkv_bias: in the same order.
        out_weight: input-major.
        out_bias: added at the end.
        heads: a count that divides the channels.
        attention: ``(query, key, value) -> out`` on tensors (batch, heads, length, d_head); the
            caller has fixed the mask and the scale, and may extend keys and values by a cache.

    Returns:
        The term that attention adds to the residual stream.

    Clauses:
        HED-1, GPT-2

    Source:
        Vaswani et al. 2017, section 3.2.2; the packed projection: Radford et al. 2019, code
    """
    query, key, value = project_heads(x, qkv_weight, qkv_bias, heads=heads)
    return linear(merge_heads(attention(query, key, value)), out_weight, out_bias)


def project_heads(
    x: Float[torch.Tensor, "batch length d_model"],
    qkv_weight: Float[torch.Tensor, "d_model three_d_model"],
    qkv_bias: Float[torch.Tensor, " three_d_model"],
    *,
    heads: int,
) -> tuple[
    Float[torch.Tensor, "batch {heads} length d_head"],
    Float[torch.Tensor, "batch {heads} length d_head"],
    Float[torch.Tensor, "batch {heads} length d_head"],
]:
    """Project each token to a query, a key and a value in every head.

    Args:
        x: the normalized residual stream, dimensionless.
        qkv_weight: input-major; the columns of the queries first, then keys, then values.
        qkv_bias: in the same order.
        heads: a count that divides the channels.

    Returns:
        Queries, keys and values.

    Raises:
        ValueError: if the channels cannot be cut evenly.

    Clauses:
        HED-1, GPT-2

    Source:
        The packed projection: Radford et al. 2019, code
    """
    packed = linear(x, qkv_weight, qkv_bias)
    query, key, value = (split_heads(part, heads) for part in packed.chunk(3, dim=-1))
    return query, key, value
