"""Experts: gated MLPs of which a router chooses a few for each token."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.spec.experts import RouterScores
from attnspec.spec.gated_mlp import GateForm


def choose(
    logits: Float[torch.Tensor, "tokens experts"], top_k: int
) -> Int[torch.Tensor, "tokens top_k"]:
    """Return the experts with the largest logits of each token, the largest first.

    Args:
        logits: dimensionless, no NaN.
        top_k: at least 1, at most the number of experts.

    Returns:
        Indices of experts; of equal logits the lower index comes first.

    Raises:
        ValueError: if `top_k` is out of range.

    Clauses:
        MOE-1, MOE-2
    """
    experts = logits.shape[-1]
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k must lie in [1, {experts}], got {top_k}")
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]


def router(
    x: Float[torch.Tensor, "tokens d_model"],
    weight: Float[torch.Tensor, "experts d_model"],
    top_k: int,
    *,
    bias: Float[torch.Tensor, " experts"] | None = None,
    scores: RouterScores = RouterScores.SOFTMAX_CHOSEN,
    renormalized: bool = False,
) -> tuple[Float[torch.Tensor, "tokens top_k"], Int[torch.Tensor, "tokens top_k"]]:
    r"""Choose experts for each token, and give each a score.

    .. math:: \ell = W x + b, \qquad s_e = \frac{e^{\ell_e}}{\sum_{l \in S} e^{\ell_l}}

    Args:
        x: the normalized residual stream, dimensionless.
        weight: one row per expert: :math:`W`.
        top_k: experts of each token, at least 1, at most their number.
        bias: one per expert: :math:`b`; None is zero.
        scores: the set :math:`S` of the softmax: all experts or the chosen ones; or the logistic
            function of each logit.
        renormalized: divide the scores of a token by their sum.

    Returns:
        Scores and indices of the chosen experts, the largest logit first.

    Raises:
        ValueError: if `top_k` is out of range.

    Clauses:
        MOE-1, MOE-2, MOE-3, MOE-4, MOE-5, MOE-6, MOE-7

    Source:
        Shazeer et al. 2017, section 2.1; Jiang et al. 2024, section 2.1
    """
    logits = x @ weight.mT
    if bias is not None:
        logits = logits + bias
    indices = choose(logits, top_k)
    if scores is RouterScores.SIGMOID:
        chosen = ACTIVATIONS["sigmoid"](logits).gather(-1, indices)
    elif scores is RouterScores.SOFTMAX_ALL:
        chosen = _softmax(logits).gather(-1, indices)
    else:
        chosen = _softmax(logits.gather(-1, indices))
    if renormalized:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen, indices


def _softmax(logits: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True)


def experts(
    x: Float[torch.Tensor, "tokens d_model"],
    indices: Int[torch.Tensor, "tokens top_k"],
    scores: Float[torch.Tensor, "tokens top_k"],
    gate: Float[torch.Tensor, "experts d_inner d_model"],
    up: Float[torch.Tensor, "experts d_inner d_model"],
    down: Float[torch.Tensor, "experts d_model d_inner"],
    *,
    gate_bias: Float[torch.Tensor, "experts d_inner"] | None = None,
    up_bias: Float[torch.Tensor, "experts d_inner"] | None = None,
    down_bias: Float[torch.Tensor, "experts d_model"] | None = None,
    shared: Mapping[str, torch.Tensor] | None = None,
    form: GateForm = GateForm.SWIGLU,
) -> Float[torch.Tensor, "tokens d_model"]:
    r"""Sum the results of the chosen experts of each token, each times its score.

    .. math:: y = \sum_{e \in S} s_e\, \mathrm{MLP}_e(x) + \mathrm{MLP}_{\mathrm{shared}}(x)

    Args:
        x: the normalized residual stream, dimensionless.
        indices: the chosen experts of each token, which differ.
        scores: one per chosen expert, any sign.
        gate: the gate of each expert, output-major.
        up: likewise up.
        down: likewise down.
        gate_bias: one row per expert; None is zero.
        up_bias: likewise.
        down_bias: likewise; multiplied by the score like the rest of the expert's result.
        shared: arguments `gate`, `up`, `down` of one more gated MLP, which every token uses with
            score 1; None is none.
        form: the function of gate and up.

    Returns:
        One row per token, which depends on that token alone.

    Clauses:
        MOE-8, MOE-9, MOE-10, MOE-11, MOE-12, MOE-13, MOE-14, MOE-15

    Source:
        Shazeer et al. 2017, equation 1; Dai et al. 2024, DeepSeekMoE, equation 9 (shared experts)
    """
    result = torch.zeros_like(x)
    for expert in range(len(gate)):
        token, place = (indices == expert).nonzero(as_tuple=True)
        part = gated_mlp(
            x[token],
            gate[expert],
            up[expert],
            down[expert],
            gate_bias=None if gate_bias is None else gate_bias[expert],
            up_bias=None if up_bias is None else up_bias[expert],
            down_bias=None if down_bias is None else down_bias[expert],
            form=form,
        )
        result = result.index_add(0, token, scores[token, place, None] * part)
    if shared is not None:
        result = result + gated_mlp(x, **shared, form=form)
    return result
