"""Attention a second time: scalar loops straight from the formula, to judge the first by.

`scalar_attention` shares nothing with `attnspec.reference.attention` or `attnspec.reference.masks`:
no tensor operation, no mask, no code. It is slow, and accurate to a few units in the last place:
every sum is correctly rounded. NumPy only holds its arguments and results.
"""

import math
from collections.abc import Iterable, Mapping
from operator import mul

import numpy as np
from jaxtyping import Bool, Float64, Int

from attnspec.spec import CausalAlignment, CausalSingleQuery, EmptyRow, Grouping, SoftcapOrder


def scalar_attention(
    query: Float64[np.ndarray, "batch heads queries d_head"],
    key: Float64[np.ndarray, "batch kv_heads keys d_head"],
    value: Float64[np.ndarray, "batch kv_heads keys d_value"],
    *,
    attn_mask: Bool[np.ndarray, "..."] | Float64[np.ndarray, "..."] | None = None,
    is_causal: bool = False,
    causal_alignment: CausalAlignment = CausalAlignment.UPPER_LEFT,
    causal_single_query: CausalSingleQuery = CausalSingleQuery.HIDES,
    empty_row: EmptyRow | Mapping[str, EmptyRow] = EmptyRow.ZERO,
    grouping: Grouping = Grouping.CONSECUTIVE,
    softcap_order: SoftcapOrder = SoftcapOrder.BEFORE_BIAS,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Float64[np.ndarray, " heads"] | None = None,
    alibi_slopes: Float64[np.ndarray, " heads"] | None = None,
    key_lengths: Int[np.ndarray, " batch"] | None = None,
    query_offset: Int[np.ndarray, " batch"] | None = None,
) -> tuple[
    Float64[np.ndarray, "batch heads queries d_value"], Float64[np.ndarray, "batch heads queries"]
]:
    """Compute the whole contract of an attention implementation, one query at a time.

    Args:
        query: dimensionless, finite or not.
        key: dimensionless, finite or not; kv_heads divides heads.
        value: any unit, finite or not.
        attn_mask: bool, true if a query may read a key, or float, added to the scaled scores;
            broadcastable to (batch, heads, queries, keys). Minus infinity hides a key.
        is_causal: hide every key after the query's own position.
        causal_alignment: the position of query 0, for `is_causal`, `window` and `alibi_slopes`:
            `upper_left` is key 0, `lower_right` puts the last query at the last key.
        causal_single_query: whether `is_causal` hides keys from a single query.
        empty_row: the output of a query that may read nothing and has no sink; zeros if there are
            no keys at all. A mapping has one for each way to hide keys, as `Profile` has them; a
            query from which ways with different outputs hide keys gives zeros.
        grouping: the key/value head of query head *h*: `consecutive` is ``h // (heads //
            kv_heads)``, `interleaved` is ``h % kv_heads``.
        softcap_order: `after_bias` bounds the scores after mask and slopes are added.
        scale: multiplies the scores, any sign; None is ``d_head ** -0.5``.
        window: ``(left, right)``, how many keys before and after its own position a query may read,
            at least 0; None is unbounded.
        softcap: bounds the scaled scores, positive; None bounds nothing.
        sinks: one more logit per head, in the denominator only; None is minus infinity.
        alibi_slopes: one per head, in score units per position; lower a score in proportion to the
            distance of its key.
        key_lengths: the number of keys of each batch element; None is all.
        query_offset: the position of query 0 of each batch element, in place of the alignment.

    Returns:
        The output in the unit of `value`, and the natural logarithm of the denominator, minus
        infinity for a query that may read nothing and has no sink.

    Clauses:
        ATT-1, MSK-4, MSK-12, MSK-14, NUM-1
    """
    batch, heads, queries, d_head = query.shape
    kv_heads, keys, d_value = value.shape[1:]
    if scale is None:
        scale = 1 / math.sqrt(d_head) if d_head else 1.0
    left, right = window if window is not None else (None, None)
    if queries == 1 and causal_single_query == "ignored":
        is_causal = False
    mask_is_bool = attn_mask is not None and attn_mask.dtype == bool
    mask: list[list[list[list[float]]]] | None = None
    if attn_mask is not None:
        mask = np.broadcast_to(attn_mask, (batch, heads, queries, keys)).tolist()

    out = np.zeros((batch, heads, queries, d_value))
    lse = np.full((batch, heads, queries), -math.inf)
    for b in range(batch):
        length = keys if key_lengths is None else int(key_lengths[b])
        offset = length - queries if causal_alignment == "lower_right" else 0
        offset = offset if query_offset is None else int(query_offset[b])
        for h in range(heads):
            g = h % kv_heads if grouping == "interleaved" else h // (heads // kv_heads)
            key_rows, value_rows = key[b, g].tolist(), value[b, g].tolist()
            sink = -math.inf if sinks is None else float(sinks[h])
            slope = 0.0 if alibi_slopes is None else float(alibi_slopes[h])
            for i, query_row in enumerate(query[b, h].tolist()):
                values, logits, hidden_by = [], [], set()
                for j in range(keys):
                    hides = (
                        (is_causal and j > i + offset)
                        or (left is not None and j < i + offset - left)
                        or (right is not None and j > i + offset + right)
                        or j >= length
                    )
                    if hides:
                        hidden_by.add("position")
                    bias = 0.0
                    if mask is not None:
                        entry = mask[b][h][i][j]
                        if entry == -math.inf or (mask_is_bool and not entry):
                            hides = True
                            hidden_by.add("bool" if mask_is_bool else "float")
                        bias = 0.0 if mask_is_bool else entry
                    if hides:
                        continue
                    score = scale * total(map(mul, query_row, key_rows[j]))
                    if softcap is not None and softcap_order == "before_bias":
                        score = softcap * math.tanh(score / softcap)
                    if alibi_slopes is not None:
                        score = score - slope * abs(i + offset - j)
                    score = score + bias
                    if softcap is not None and softcap_order == "after_bias":
                        score = softcap * math.tanh(score / softcap)
                    values.append(value_rows[j])
                    logits.append(score)
                if values or sink > -math.inf or math.isnan(sink):
                    out[b, h, i], lse[b, h, i] = _row(values, logits, sink, d_value)
                    continue
                empty = {
                    empty_row if isinstance(empty_row, str) else empty_row[way] for way in hidden_by
                }
                if empty == {"mean"}:
                    out[b, h, i] = [
                        total(column) / keys for column in zip(*value_rows, strict=True)
                    ]
                elif empty == {"nan"}:
                    out[b, h, i] = math.nan
    return out, lse


def _row(
    values: list[list[float]], logits: list[float], sink: float, d_value: int
) -> tuple[list[float], float]:
    """Mix the values that one query reads; the logit of the sink only adds to the denominator."""
    all_logits = [*logits, sink]
    if any(math.isnan(logit) or logit == math.inf for logit in all_logits):
        return [math.nan] * d_value, math.nan
    peak = max(all_logits)
    if peak == -math.inf:  # every logit is, as after an infinite key: no weight is shared out
        peak = 0.0
    masses = [math.exp(logit - peak) for logit in all_logits]
    denominator = total(masses)
    mixed = [
        total(map(_weighted, masses, column)) / (denominator or 1.0)
        for column in zip(*values, strict=True)
    ]
    lse = peak + math.log(denominator) if denominator else -math.inf
    return mixed or [0.0] * d_value, lse


def _weighted(mass: float, number: float) -> float:
    """Multiply; a mass that underflows to 0 still lets infinity through."""
    return mass * number if math.isfinite(number) else number


def total(numbers: Iterable[float]) -> float:
    """Add up with a single rounding; NaN and infinities as IEEE 754 has them.

    Args:
        numbers: finite or not.

    Returns:
        The sum.
    """
    terms = list(numbers)
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return sum(terms)
