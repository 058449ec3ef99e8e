"""A correct GPT-2 in which one step is the learner's, so that the laws of models judge that step.

The rest is the base of the mutants, which shares no code with the reference. A learner's mistake
then makes the same model as the mutant that repeats it, and likeness names it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2
from attnspec.spec import GPT2Config, ModelImplementation

Function = Callable[..., Any]

_MODELS: dict[str, Callable[[Function], type[CompactGPT2]]] = {}

_SWITCHES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gelu", "mlp"), ("activation_function",)),
    **dict.fromkeys(("causal_attention", "multi_head_attention"), ("scale",)),
    **dict.fromkeys(("block", "transformer"), ("activation_function", "scale")),
    **dict.fromkeys(("load_parameters", "head"), ("tie_word_embeddings",)),
}
"""The fields of a configuration that a learner's function is not given, or need not follow."""


def assemble(function: str, learners: Function) -> ModelImplementation:
    """Return a GPT-2 whose step `function` is the learner's.

    It claims no features, both dtypes, and the configurations that the function can follow.
    """
    model = _MODELS[function](learners)

    def supports(config: GPT2Config) -> str | None:
        return _refusal(function, config)

    return ModelImplementation(
        name=function,
        build=model,
        dtypes=(torch.float64, torch.float32),
        supports=supports,
    )


def _refusal(function: str, config: GPT2Config) -> str | None:
    """Return the field for whose value the function is not judged, or None."""
    is_released = {
        "activation_function": config.activation_function == "gelu_new",
        "scale": config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    wrong = [field for field in _SWITCHES.get(function, ()) if not is_released[field]]
    return f"{function} is not judged with another {wrong[0]}" if wrong else None


def _assembles(function: str) -> Callable[[Any], Any]:
    def register(model: Callable[[Function], type[CompactGPT2]]) -> Any:
        _MODELS[function] = model
        return model

    return register


@_assembles("load_parameters")
def _with_parameters(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def check(self) -> None:
            self.parameters = learners(self.config, self.parameters)

    return Model


@_assembles("embed")
def _with_embeddings(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            tables = (self.parameters[f"transformer.{name}.weight"] for name in ("wte", "wpe"))
            return learners(input_ids, *tables)  # type: ignore[no-any-return]

    return Model


@_assembles("layer_norm")
def _with_layer_norm(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def layer_norm(
            self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
        ) -> torch.Tensor:
            return learners(x, weight, bias, self.config.layer_norm_epsilon)  # type: ignore[no-any-return]

    return Model


@_assembles("linear")
def _with_linear(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
            weight, bias = (self.block_parameter(f"{name}.{part}") for part in ("weight", "bias"))
            return learners(x, weight, bias)  # type: ignore[no-any-return]

    return Model


@_assembles("square linear")
def _with_square_linear(learners: Function) -> type[CompactGPT2]:
    """Use it where the weight is square: a transposed one raises in all other places."""

    class Model(CompactGPT2):
        def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
            if name != "attn.c_proj":
                return super().linear(x, name)
            weight, bias = (self.block_parameter(f"{name}.{part}") for part in ("weight", "bias"))
            return learners(x, weight, bias)  # type: ignore[no-any-return]

    return Model


@_assembles("gelu")
def _with_gelu(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def activation(self, x: torch.Tensor) -> torch.Tensor:
            return learners(x)  # type: ignore[no-any-return]

    return Model


@_assembles("mlp")
def _with_mlp(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def mlp(self, x: torch.Tensor) -> torch.Tensor:
            parts = (
                self.block_parameter(f"mlp.{name}.{part}")
                for name in ("c_fc", "c_proj")
                for part in ("weight", "bias")
            )
            return learners(x, *parts)  # type: ignore[no-any-return]

    return Model


@_assembles("causal_attention")
def _with_attention(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def attend(
            self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
        ) -> torch.Tensor:
            return learners(query, key, value)  # type: ignore[no-any-return]

    return Model


@_assembles("multi_head_attention")
def _with_heads(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def attention(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
            parts = (
                self.block_parameter(f"attn.{name}.{part}")
                for name in ("c_attn", "c_proj")
                for part in ("weight", "bias")
            )
            return learners(x, *parts, self.config.n_head), kept

    return Model


@_assembles("block")
def _with_block(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def block(self, x: torch.Tensor, visible: torch.Tensor, kept: Any) -> Any:
            prefix = f"transformer.h.{self.layer}."
            own = {
                name.removeprefix(prefix): tensor
                for name, tensor in self.parameters.items()
                if name.startswith(prefix)
            }
            return learners(x, own, self.config), kept

    return Model


@_assembles("transformer")
def _with_stack(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.head(learners(input_ids, self.parameters, self.config))

    return Model


@_assembles("head")
def _with_head(learners: Function) -> type[CompactGPT2]:
    class Model(CompactGPT2):
        def head(self, x: torch.Tensor) -> torch.Tensor:
            return learners(x, self.parameters, self.config)  # type: ignore[no-any-return]

    return Model
