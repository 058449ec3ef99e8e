"""Attention a second time: scalar loops straight from the formula, to judge the first by.

It shares nothing with `attnspec.reference.attention` or `attnspec.reference.masks`: no tensor
operation, no mask, no code. Slow, and accurate to a few units in the last place: every sum is
correctly rounded.
"""

import math
from collections.abc import Iterable
from operator import mul

import numpy as np
from jaxtyping import Bool, Float64

from attnspec.spec import CausalAlignment, EmptyRow


def numpy_attention(
    query: Float64[np.ndarray, "batch heads queries d_head"],
    key: Float64[np.ndarray, "batch kv_heads keys d_head"],
    value: Float64[np.ndarray, "batch kv_heads keys d_value"],
    *,
    attn_mask: Bool[np.ndarray, "..."] | Float64[np.ndarray, "..."] | None = None,
    is_causal: bool = False,
    causal_alignment: CausalAlignment = CausalAlignment.UPPER_LEFT,
    empty_row: EmptyRow = EmptyRow.ZERO,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Float64[np.ndarray, " heads"] | None = None,
    alibi_slopes: Float64[np.ndarray, " heads"] | None = None,
) -> tuple[
    Float64[np.ndarray, "batch heads queries d_value"], Float64[np.ndarray, "batch heads queries"]
]:
    """Compute the whole contract of an attention implementation, one query at a time.

    Args:
        query: as the contract has it.
        key: likewise.
        value: likewise.
        attn_mask: bool, true where a query may read a key, or float, added to the scaled scores.
        is_causal: hide what comes after the query.
        causal_alignment: where query 0 stands, for `is_causal`, `window` and `alibi_slopes`.
        empty_row: what a query gives that may read nothing and has no sink.
        scale: multiplies the scores; None is ``d_head ** -0.5``.
        window: how many keys before and after the query's own place it may read.
        softcap: bounds the scores.
        sinks: one more logit per head.
        alibi_slopes: lower a score in proportion to the distance of its key.

    Returns:
        The output, and the natural logarithm of the denominator.

    Clauses:
        ATT-1, MSK-4, MSK-12, MSK-14, NUM-1
    """
    batch, heads, queries, d_head = query.shape
    kv_heads, keys, d_value = value.shape[1:]
    if scale is None:
        scale = 1 / math.sqrt(d_head) if d_head else 1.0
    o = keys - queries if causal_alignment == "lower_right" else 0
    left, right = window if window is not None else (None, None)
    mask_is_bool = attn_mask is not None and attn_mask.dtype == bool
    mask: list[list[list[list[float]]]] | None = None
    if attn_mask is not None:
        mask = np.broadcast_to(attn_mask, (batch, heads, queries, keys)).tolist()

    out = np.zeros((batch, heads, queries, d_value))
    lse = np.full((batch, heads, queries), -math.inf)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // kv_heads)
            key_rows, value_rows = key[b, g].tolist(), value[b, g].tolist()
            sink = -math.inf if sinks is None else float(sinks[h])
            slope = 0.0 if alibi_slopes is None else float(alibi_slopes[h])
            for i, query_row in enumerate(query[b, h].tolist()):
                read, logits = [], []
                for j in range(keys):
                    if is_causal and j > i + o:
                        continue
                    if left is not None and j < i + o - left:
                        continue
                    if right is not None and j > i + o + right:
                        continue
                    bias = 0.0
                    if mask is not None:
                        given = mask[b][h][i][j]
                        if given == -math.inf or (mask_is_bool and not given):
                            continue
                        bias = 0.0 if mask_is_bool else given
                    score = scale * total(map(mul, query_row, key_rows[j]))
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    if alibi_slopes is not None:
                        score = score - slope * abs(i + o - j)
                    read.append(value_rows[j])
                    logits.append(score + bias)
                if read or sink > -math.inf or math.isnan(sink):
                    out[b, h, i], lse[b, h, i] = _row(read, logits, sink, d_value)
                elif keys and empty_row == "mean":
                    out[b, h, i] = [
                        total(column) / keys for column in zip(*value_rows, strict=True)
                    ]
                elif keys and empty_row == "nan":
                    out[b, h, i] = math.nan
    return out, lse


def _row(
    read: list[list[float]], logits: list[float], sink: float, d_value: int
) -> tuple[list[float], float]:
    """Mix the values that one query reads; the logit of the sink only adds to the denominator."""
    everything = [*logits, sink]
    if any(math.isnan(logit) or logit == math.inf for logit in everything):
        return [math.nan] * d_value, math.nan
    peak = max(everything)
    if peak == -math.inf:  # every logit is: an infinite key, and no weight to share out
        peak = 0.0
    masses = [math.exp(logit - peak) for logit in everything]
    denominator = total(masses)
    mixed = [
        total(map(_weighted, masses, column)) / (denominator or 1.0)
        for column in zip(*read, strict=True)
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
    given = list(numbers)
    try:
        return math.fsum(given)
    except (OverflowError, ValueError):
        return sum(given)
