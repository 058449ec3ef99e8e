"""Gated MLPs and experts a second time: scalar loops straight from the formulas.

This module shares no tensor operation and no code with `attnspec.reference.gated_mlp` and
`attnspec.reference.experts`. Every sum is correctly rounded. NumPy only holds arguments and
results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import mul

import numpy as np
from jaxtyping import Float64, Int64

from attnspec.spec.experts import RouterScores
from attnspec.spec.gated_mlp import GateForm


def scalar_gated_mlp(
    x: Float64[np.ndarray, "tokens d_model"],
    gate: Float64[np.ndarray, "d_inner d_model"],
    up: Float64[np.ndarray, "d_inner d_model"],
    down: Float64[np.ndarray, "d_model d_inner"],
    *,
    gate_bias: Float64[np.ndarray, " d_inner"] | None = None,
    up_bias: Float64[np.ndarray, " d_inner"] | None = None,
    down_bias: Float64[np.ndarray, " d_model"] | None = None,
    form: GateForm = GateForm.SWIGLU,
) -> Float64[np.ndarray, "tokens d_model"]:
    """Compute a gated MLP, one number at a time.

    Args:
        x: dimensionless, finite.
        gate: output-major.
        up: output-major.
        down: output-major.
        gate_bias: one per inner channel; None is zero.
        up_bias: likewise.
        down_bias: one per channel of the model; None is zero.
        form: the function of gate and up.

    Returns:
        One row per row of `x`.

    Clauses:
        GLU-1, GLU-3, GLU-4, GLU-6
    """
    rows = []
    for row in x.tolist():
        g, u = _affine(gate, row, gate_bias), _affine(up, row, up_bias)
        hidden = [_GATES[form](*pair) for pair in zip(g, u, strict=True)]
        rows.append(_affine(down, hidden, down_bias))
    return np.array(rows, dtype=np.float64).reshape(len(x), len(down))


def scalar_router(
    x: Float64[np.ndarray, "tokens d_model"],
    weight: Float64[np.ndarray, "experts d_model"],
    top_k: int,
    *,
    bias: Float64[np.ndarray, " experts"] | None = None,
    scores: RouterScores = RouterScores.SOFTMAX_CHOSEN,
    renormalized: bool = False,
) -> tuple[Float64[np.ndarray, "tokens top_k"], Int64[np.ndarray, "tokens top_k"]]:
    """Choose and score experts, one number at a time.

    Args:
        x: dimensionless, finite.
        weight: one row per expert.
        top_k: at least 1, at most the number of experts.
        bias: one per expert; None is zero.
        scores: the function that makes scores of the logits.
        renormalized: divide the scores of a token by their sum.

    Returns:
        Scores and indices, the largest logit first, the lower index first among equals.

    Clauses:
        MOE-1, MOE-2, MOE-3, MOE-4, MOE-5
    """
    all_scores, all_indices = [], []
    for row in x.tolist():
        logits = _affine(weight, row, bias)
        chosen = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:top_k]
        pool = chosen if scores is RouterScores.SOFTMAX_CHOSEN else range(len(logits))
        top = logits[chosen[0]]
        total = math.fsum(math.exp(logits[e] - top) for e in pool)
        given = [
            _logistic(logits[e])
            if scores is RouterScores.SIGMOID
            else math.exp(logits[e] - top) / total
            for e in chosen
        ]
        norm = math.fsum(given) if renormalized else 1.0
        all_scores.append([score / norm for score in given])
        all_indices.append(chosen)
    shape = (len(x), top_k)
    return (
        np.array(all_scores, dtype=np.float64).reshape(shape),
        np.array(all_indices, dtype=np.int64).reshape(shape),
    )


def scalar_experts(
    x: Float64[np.ndarray, "tokens d_model"],
    indices: Int64[np.ndarray, "tokens top_k"],
    scores: Float64[np.ndarray, "tokens top_k"],
    gate: Float64[np.ndarray, "experts d_inner d_model"],
    up: Float64[np.ndarray, "experts d_inner d_model"],
    down: Float64[np.ndarray, "experts d_model d_inner"],
    *,
    gate_bias: Float64[np.ndarray, "experts d_inner"] | None = None,
    up_bias: Float64[np.ndarray, "experts d_inner"] | None = None,
    down_bias: Float64[np.ndarray, "experts d_model"] | None = None,
    shared: Mapping[str, np.ndarray] | None = None,
    form: GateForm = GateForm.SWIGLU,
) -> Float64[np.ndarray, "tokens d_model"]:
    """Sum the chosen experts of each token, one token at a time.

    Args:
        x: dimensionless, finite.
        indices: the chosen experts of each token.
        scores: one per chosen expert.
        gate: the gate of each expert, output-major.
        up: likewise up.
        down: likewise down.
        gate_bias: one row per expert; None is zero.
        up_bias: likewise.
        down_bias: likewise.
        shared: arguments of one more gated MLP, which every token uses; None is none.
        form: the function of gate and up.

    Returns:
        One row per token.

    Clauses:
        MOE-8, MOE-11, MOE-14
    """
    result = np.zeros(x.shape)
    for token in range(len(x)):
        terms = []
        for expert, score in zip(indices[token].tolist(), scores[token].tolist(), strict=True):
            biases = {
                name: None if bias is None else bias[expert]
                for name, bias in (
                    ("gate_bias", gate_bias),
                    ("up_bias", up_bias),
                    ("down_bias", down_bias),
                )
            }
            row = scalar_gated_mlp(
                x[token : token + 1], gate[expert], up[expert], down[expert], form=form, **biases
            )
            terms.append([score * y for y in row[0].tolist()])
        if shared is not None:
            terms.append(scalar_gated_mlp(x[token : token + 1], **shared, form=form)[0].tolist())
        for channel in range(x.shape[1]):
            result[token, channel] = math.fsum(term[channel] for term in terms)
    return result


def _affine(weight: np.ndarray, row: Sequence[float], bias: np.ndarray | None) -> list[float]:
    biases = [0.0] * len(weight) if bias is None else bias.tolist()
    return [
        math.fsum([*map(mul, weights, row), b])
        for weights, b in zip(weight.tolist(), biases, strict=True)
    ]


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _gelu_tanh(x: float) -> float:
    # x times the logistic function of twice the argument of tanh: no cancellation far below zero
    return x * _logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _clamped(gate: float, up: float) -> float:
    gate = min(gate, 7.0)
    return gate * _logistic(1.702 * gate) * (max(-7.0, min(up, 7.0)) + 1)


_GATES: Mapping[GateForm, Callable[[float, float], float]] = {
    GateForm.SWIGLU: lambda gate, up: gate * _logistic(gate) * up,
    GateForm.GEGLU_TANH: lambda gate, up: _gelu_tanh(gate) * up,
    GateForm.GEGLU_ERF: lambda gate, up: gate * math.erfc(-gate / math.sqrt(2)) / 2 * up,
    GateForm.REGLU: lambda gate, up: max(gate, 0.0) * up,
    GateForm.GLU: lambda gate, up: _logistic(gate) * up,
    GateForm.CLAMPED: _clamped,
}
