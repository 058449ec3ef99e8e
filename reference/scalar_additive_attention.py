"""Additive attention in scalar loops, from the formula: a second definition."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64


def scalar_additive_attention(
    query: Float64[np.ndarray, "batch queries d_query"],
    key: Float64[np.ndarray, "batch keys d_key"],
    value: Float64[np.ndarray, "batch keys d_value"],
    w_query: Float64[np.ndarray, "d_inner d_query"],
    w_key: Float64[np.ndarray, "d_inner d_key"],
    w_score: Float64[np.ndarray, " d_inner"],
    *,
    bias: Any = None,
    mask: Any = None,
) -> Float64[np.ndarray, "batch queries d_value"]:
    """Average the values by the softmax of additive scores, number by number.

    Args:
        query: any unit.
        key: any unit.
        value: any unit.
        w_query: W.
        w_key: U.
        w_score: v.
        bias: b, (d_inner); zero if it is not given.
        mask: (batch, keys), true for the real states; all if it is not given.

    Returns:
        The mean of the values of each query.

    Clauses:
        ADD-1

    Source:
        Bahdanau et al. 2014, section A.1.2
    """
    batch, queries, keys = len(query), query.shape[1], key.shape[1]
    out = np.zeros((batch, queries, value.shape[2]))
    for b in range(batch):
        real = [j for j in range(keys) if mask is None or mask[b, j]]
        for i in range(queries):
            scores = []
            for j in real:
                terms = []
                for c, weight in enumerate(w_score):
                    inside = 0.0 if bias is None else float(bias[c])
                    inside += math.fsum(w_query[c] * query[b, i])
                    inside += math.fsum(w_key[c] * key[b, j])
                    terms.append(float(weight) * math.tanh(inside))
                scores.append(math.fsum(terms))
            largest = max(scores)
            masses = [math.exp(score - largest) for score in scores]
            for c in range(value.shape[2]):
                products = [mass * value[b, j, c] for mass, j in zip(masses, real, strict=True)]
                out[b, i, c] = math.fsum(products) / math.fsum(masses)
    return out
