"""The reference as an implementation: the whole contract of attention, built from the pieces."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.reference.arguments import check_arguments
from attnspec.reference.attention import attention_with_options
from attnspec.reference.heads import repeat_kv
from attnspec.reference.masks import (
    alibi,
    displacement_of_elements,
    visible_keys,
    within_length,
)
from attnspec.spec import (
    Attention,
    CausalAlignment,
    CausalSingleQuery,
    EmptyRow,
    Feature,
    Grouping,
    Implementation,
    SoftcapOrder,
)

SCORES_AT_ONCE = 2**25
"""The largest number of scores held at once; longer calls take a run of queries at a time."""


def scaled_dot_product_attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, " heads"] | None = None,
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
    key_lengths: Int[torch.Tensor, " batch"] | None = None,
    query_offset: Int[torch.Tensor, " batch"] | None = None,
    return_lse: bool = False,
    causal_alignment: CausalAlignment = CausalAlignment.UPPER_LEFT,
    causal_single_query: CausalSingleQuery = CausalSingleQuery.HIDES,
    empty_row: EmptyRow = EmptyRow.ZERO,
    grouping: Grouping = Grouping.CONSECUTIVE,
    softcap_order: SoftcapOrder = SoftcapOrder.BEFORE_BIAS,
    compute_dtype: torch.dtype = torch.float64,
) -> (
    Float[torch.Tensor, "batch heads queries d_value"]
    | tuple[
        Float[torch.Tensor, "batch heads queries d_value"],
        Float[torch.Tensor, "batch heads queries"],
    ]
):
    """Compute attention under the contract: a drop-in for PyTorch's function of this name.

    Args:
        query: floating point, dimensionless; key and value have its dtype and device.
        key: dimensionless; as many heads as `query`, or fewer with `enable_gqa`.
        value: any unit; as many heads as `key`.
        attn_mask: bool, true if a query may read a key, or float, added to the scaled scores;
            of rank 2 to 4, broadcastable to (batch, heads, queries, keys).
        dropout_p: the probability in [0, 1] with which each weight is dropped.
        is_causal: hide every key after the query's own position, besides all other hidden keys.
        scale: multiplies the scores; None is ``d_head ** -0.5``.
        enable_gqa: allow fewer key/value heads, each shared by a run of query heads.
        window: ``(left, right)``, how far from its own position a query may read; None is
            unbounded.
        softcap: bounds the scaled scores, before masks and biases; None or positive.
        sinks: one more logit per head, in the denominator and the log-sum-exp only; None is minus
            infinity.
        alibi_slopes: one per head, in score units per position; a score loses
            slope · |i + offset - j|.
        key_lengths: the number of keys of each batch element, the first ones; None is all.
        query_offset: the position of query 0 of each batch element, at least 0; None is what
            `causal_alignment` says.
        return_lse: return the log-sum-exp too.
        causal_alignment: the position of query 0, for `is_causal`, `window` and `alibi_slopes`.
        causal_single_query: whether `is_causal` hides keys from a single query.
        empty_row: the output of a query that may read nothing and has no sink; zeros if there are
            no keys at all.
        grouping: the key/value head of each query head, if `enable_gqa` allows fewer.
        softcap_order: `after_bias` bounds the scores after masks and biases are added, and before
            keys are hidden.
        compute_dtype: the dtype of every intermediate result.

    Returns:
        The output in the dtype of `value`; with `return_lse` also the log-sum-exp, in
        `compute_dtype`, minus infinity for a query that may read nothing and has no sink.

    Raises:
        TypeError: for a tensor of the wrong dtype.
        ValueError: for anything else that has no reading, naming the argument.

    Clauses:
        ATT-1, ATT-11, MSK-2, MSK-3, MSK-12, HED-2, LEN-1, LEN-3
    """
    check_arguments(
        query,
        key,
        value,
        attn_mask,
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
        window=window,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        key_lengths=key_lengths,
        query_offset=query_offset,
    )
    heads, queries, d_head = query.shape[1:]
    keys = key.shape[2]
    wide: Callable[[torch.Tensor], torch.Tensor] = partial(torch.Tensor.to, dtype=compute_dtype)

    ignored = queries == 1 and causal_single_query == CausalSingleQuery.IGNORED
    after = None
    if key_lengths is not None or query_offset is not None:
        after = displacement_of_elements(
            queries,
            keys,
            causal_alignment,
            key_lengths=key_lengths,
            query_offset=query_offset,
            device=query.device,
        )
    visible, bias = visible_keys(
        queries,
        keys,
        attn_mask=attn_mask,
        is_causal=is_causal and not ignored,
        window=window,
        alignment=causal_alignment,
        after=after,
        device=query.device,
    )
    if key_lengths is not None:
        visible = visible & within_length(key_lengths, keys)
    if bias is not None:
        bias = wide(bias)
    if alibi_slopes is not None:
        slopes = alibi(wide(alibi_slopes), queries, keys, causal_alignment, after=after)
        bias = slopes if bias is None else bias + slopes
    if scale is None:
        scale = d_head**-0.5 if d_head else 1.0

    attend = partial(
        _attend,
        key=repeat_kv(wide(key), heads, grouping),
        value=repeat_kv(wide(value), heads, grouping),
        scale=scale,
        softcap=softcap,
        softcap_order=softcap_order,
        sinks=None if sinks is None else wide(sinks),
        dropout_p=dropout_p,
        empty_row=empty_row,
    )
    rows = max(1, SCORES_AT_ONCE // max(1, query.shape[0] * heads * keys))
    parts = [
        attend(
            wide(query[:, :, start : start + rows]),
            visible=_rows(visible, start, rows),
            bias=None if bias is None else _rows(bias, start, rows),
        )
        for start in range(0, max(queries, 1), rows)
    ]
    out = torch.cat([part for part, _ in parts], dim=2).to(value.dtype)
    lse = torch.cat([part for _, part in parts], dim=2)
    return (out, lse) if return_lse else out


def _rows(x: torch.Tensor, start: int, rows: int) -> torch.Tensor:
    """Cut a run of queries out of (…, queries, keys), where the axis of queries may be 1."""
    return x if x.shape[-2] == 1 else x[..., start : start + rows, :]


def _attend(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch heads keys d_head"],
    value: Float[torch.Tensor, "batch heads keys d_value"],
    visible: Bool[torch.Tensor, "..."],
    *,
    empty_row: EmptyRow,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with one run of queries, and fill the empty rows."""
    out, lse = attention_with_options(query, key, value, visible, **options)
    return _fill_empty_rows(out, lse, value, visible, empty_row), lse


def _fill_empty_rows(
    out: Float[torch.Tensor, "batch heads queries d_value"],
    lse: Float[torch.Tensor, "batch heads queries"],
    value: Float[torch.Tensor, "batch heads keys d_value"],
    visible: Bool[torch.Tensor, "..."],
    empty_row: EmptyRow,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Give a query that may read nothing and has no sink what the profile declares."""
    if empty_row == EmptyRow.ZERO or value.shape[2] == 0:
        return out
    is_empty = ~visible.any(dim=-1) & (lse == -torch.inf)
    fill = value.mean(dim=2, keepdim=True) if empty_row == EmptyRow.MEAN else torch.nan
    return torch.where(is_empty[..., None], fill, out)


REFERENCE = Implementation(
    name="reference",
    attention=cast(Attention, scaled_dot_product_attention),
    features=frozenset(Feature),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    devices=("cpu", "cuda"),
)
"""The reference as an attention implementation, which claims every feature."""
