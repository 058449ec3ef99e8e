"""The gated MLP, in which one linear map of the input gates another."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float

from attnspec.reference.activation import ACTIVATIONS
from attnspec.spec.gated_mlp import GateForm, GatePacking

LIMIT = 7.0
"""The largest gate, and the largest magnitude of up, of the clamped form."""

_ACTIVATION_OF = {
    GateForm.SWIGLU: "silu",
    GateForm.GEGLU_TANH: "gelu_pytorch_tanh",
    GateForm.GEGLU_ERF: "gelu",
    GateForm.REGLU: "relu",
    GateForm.GLU: "sigmoid",
}


def clamped_gate(
    gate: Float[torch.Tensor, "*batch d_inner"], up: Float[torch.Tensor, "*batch d_inner"]
) -> Float[torch.Tensor, "*batch d_inner"]:
    r"""Combine gate and up like GPT-OSS.

    .. math::
        \bar g\, \sigma(1.702\, \bar g)\, (\bar u + 1), \qquad
        \bar g = \min(g, 7), \quad \bar u = \min(\max(u, -7), 7)

    Args:
        gate: any unit.
        up: any unit.

    Returns:
        At most 56 in magnitude.

    Clauses:
        GLU-4

    Source:
        OpenAI 2025, gpt-oss, `swiglu` of `gpt_oss/torch/model.py`
    """
    return ACTIVATIONS["quick_gelu"](gate.clamp(max=LIMIT)) * (up.clamp(-LIMIT, LIMIT) + 1.0)


def _times(activation: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda gate, up: ACTIVATIONS[activation](gate) * up


GATES: Mapping[GateForm, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        **{form: _times(name) for form, name in _ACTIVATION_OF.items()},
        GateForm.CLAMPED: clamped_gate,
    }
)
"""The function of gate and up of each form."""


def gated_mlp(
    x: Float[torch.Tensor, "*batch d_model"],
    gate: Float[torch.Tensor, "d_inner d_model"],
    up: Float[torch.Tensor, "d_inner d_model"],
    down: Float[torch.Tensor, "d_model d_inner"],
    *,
    gate_bias: Float[torch.Tensor, " d_inner"] | None = None,
    up_bias: Float[torch.Tensor, " d_inner"] | None = None,
    down_bias: Float[torch.Tensor, " d_model"] | None = None,
    form: GateForm = GateForm.SWIGLU,
) -> Float[torch.Tensor, "*batch d_model"]:
    r"""Widen each row twice, let one result gate the other, and narrow the product.

    .. math:: \mathrm{MLP}(x) = W_d\, f(W_g x + b_g,\; W_u x + b_u) + b_d

    Args:
        x: the normalized residual stream, dimensionless.
        gate: :math:`W_g`, output-major as in `torch.nn.Linear`.
        up: :math:`W_u`.
        down: :math:`W_d`.
        gate_bias: :math:`b_g`; None is zero.
        up_bias: :math:`b_u`; None is zero.
        down_bias: :math:`b_d`; None is zero.
        form: the function :math:`f`; SwiGLU is :math:`\mathrm{silu}(g)\, u`.

    Returns:
        The term that the MLP adds to the residual stream; each row depends on itself alone.

    Clauses:
        GLU-1, GLU-3, GLU-5, GLU-6, GLU-7, GLU-8

    Source:
        Shazeer 2020, GLU Variants Improve Transformer, equation 6, with biases
    """
    hidden = GATES[form](_linear(x, gate, gate_bias), _linear(x, up, up_bias))
    return _linear(hidden, down, down_bias)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    result = x @ weight.mT
    return result if bias is None else result + bias


def pack(
    gate: Float[torch.Tensor, "d_inner ..."],
    up: Float[torch.Tensor, "d_inner ..."],
    packing: GatePacking,
) -> Float[torch.Tensor, "rows ..."]:
    """Put the rows of gate and up, or their biases, into one matrix.

    Args:
        gate: one row per inner channel.
        up: one row per inner channel.
        packing: the order of the rows.

    Returns:
        Twice as many rows.

    Raises:
        ValueError: if the packing is `separate`.

    Clauses:
        GLU-2
    """
    if packing is GatePacking.GATE_FIRST:
        return torch.cat([gate, up])
    if packing is GatePacking.UP_FIRST:
        return torch.cat([up, gate])
    if packing is GatePacking.INTERLEAVED:
        return torch.stack([gate, up], dim=1).flatten(0, 1)
    raise ValueError(f"packing must be an order of one matrix, got {packing}")


def unpack(
    packed: Float[torch.Tensor, "rows ..."], packing: GatePacking
) -> tuple[Float[torch.Tensor, "d_inner ..."], Float[torch.Tensor, "d_inner ..."]]:
    """Take gate and up out of one matrix: the inverse of `pack`.

    Args:
        packed: an even number of rows.
        packing: the order of the rows.

    Returns:
        Gate and up.

    Raises:
        ValueError: if the packing is `separate`, or the number of rows is odd.

    Clauses:
        GLU-2
    """
    if len(packed) % 2:
        raise ValueError(f"packed must have an even number of rows, got {len(packed)}")
    first, second = packed[: len(packed) // 2], packed[len(packed) // 2 :]
    if packing is GatePacking.GATE_FIRST:
        return first, second
    if packing is GatePacking.UP_FIRST:
        return second, first
    if packing is GatePacking.INTERLEAVED:
        return packed[0::2], packed[1::2]
    raise ValueError(f"packing must be an order of one matrix, got {packing}")
