"""Calls of the MLPs, routers and experts of transformers' models, on weights that a call gives.

Each call makes a module of the library on the meta device, whose parameters are then replaced by
the given tensors, so that the library's own `forward` runs on them.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch


def unavailable() -> str | None:
    """Return the reason why transformers cannot be imported, or None."""
    return None if find_spec("transformers") else "no module transformers"


def _module(model: str, name: str, config: str, **fields: Any) -> Any:
    """Make a module of a model without memory for its parameters."""
    folder = f"transformers.models.{model}"
    made = getattr(import_module(f"{folder}.configuration_{model}"), config)(**fields)
    with torch.device("meta"):
        module = getattr(import_module(f"{folder}.modeling_{model}"), name)(made)
    return module


def _call(module: Any, parameters: dict[str, torch.Tensor], *arguments: Any) -> Any:
    return torch.func.functional_call(module, parameters, arguments, strict=True)


def separate_mlp(model: str, name: str, config: str, activation: str) -> Callable[..., Any]:
    """Return a gated MLP that keeps gate and up in two matrices."""

    def gated_mlp(
        x: torch.Tensor,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        **biases: torch.Tensor,
    ) -> Any:
        fields: dict[str, Any] = {}
        if model == "llama":
            # the configuration is checked as a whole, also what the MLP does not read
            fields = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2}
            fields["mlp_bias"] = bool(biases)
        module = _module(
            model,
            name,
            config,
            hidden_size=gate.shape[1],
            intermediate_size=gate.shape[0],
            hidden_act=activation,
            **fields,
        )
        parameters = {
            "gate_proj.weight": gate,
            "up_proj.weight": up,
            "down_proj.weight": down,
        }
        for part in ("gate", "up", "down") if biases else ():
            parameters[f"{part}_proj.bias"] = biases[f"{part}_bias"]
        return _call(module, parameters, x)

    return gated_mlp


def phi3_mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> Any:
    """Call Phi-3's gated MLP, whose packed matrix has the gate first."""
    module = _module(
        *("phi3", "Phi3MLP", "Phi3Config"),
        hidden_size=gate_up.shape[1],
        intermediate_size=down.shape[1],
        hidden_act="silu",
    )
    return _call(module, {"gate_up_proj.weight": gate_up, "down_proj.weight": down}, x)


def mixtral_router(
    x: torch.Tensor, weight: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call Mixtral's router, and return its scores and indices."""
    module = _module(
        *("mixtral", "MixtralTopKRouter", "MixtralConfig"),
        hidden_size=weight.shape[1],
        num_local_experts=weight.shape[0],
        num_experts_per_tok=top_k,
    )
    _, scores, indices = _call(module, {"weight": weight}, x)
    return scores, indices


def gpt_oss_router(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, *, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call GPT-OSS's router, and return its scores and indices."""
    module = _module(
        *("gpt_oss", "GptOssTopKRouter", "GptOssConfig"),
        hidden_size=weight.shape[1],
        num_local_experts=weight.shape[0],
        num_experts_per_tok=top_k,
    )
    given = bias if bias is not None else weight.new_zeros(len(weight))
    _, scores, indices = _call(module, {"weight": weight, "bias": given}, x)
    return scores, indices


def mixtral_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> Any:
    """Call Mixtral's experts in their loop, whose packed matrices have the gate first."""
    module = _module(
        *("mixtral", "MixtralExperts", "MixtralConfig"),
        hidden_size=down.shape[1],
        intermediate_size=down.shape[2],
        num_local_experts=len(down),
        hidden_act="silu",
        experts_implementation="eager",
    )
    return _call(module, {"gate_up_proj": gate_up, "down_proj": down}, x, indices, scores)


def gpt_oss_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> Any:
    """Call GPT-OSS's experts in their loop, whose weights are input-major and interleaved."""
    count, d_model, d_inner = down.shape
    module = _module(
        *("gpt_oss", "GptOssExperts", "GptOssConfig"),
        hidden_size=d_model,
        intermediate_size=d_inner,
        num_local_experts=count,
        experts_implementation="eager",
    )
    zeros = x.new_zeros
    parameters = {
        "gate_up_proj": gate_up.mT,
        "gate_up_proj_bias": zeros(count, 2 * d_inner) if gate_up_bias is None else gate_up_bias,
        "down_proj": down.mT,
        "down_proj_bias": zeros(count, d_model) if down_bias is None else down_bias,
    }
    return _call(module, parameters, x, indices, scores)
