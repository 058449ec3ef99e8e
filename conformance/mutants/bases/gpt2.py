"""A correct GPT-2 in overridable steps: a mutant overrides the one step that it gets wrong.

It shares no line with the reference: attention is a baddbmm of stacked heads, LayerNorm and the
activations are torch's own.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.models.case import shapes
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

OMNIVERSE = "https://github.com/gao-hongnan/omniverse/issues/72"
Cache = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class CompactGPT2:
    """A correct GPT-2 in one class; every method is a step."""

    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        """Keep the configuration and the model parameters."""
        self.config = config
        self.parameters = parameters
        self.check()

    def check(self) -> None:
        """Refuse parameters that are missing, unknown or misshapen; buffers are not parameters."""
        expected = shapes(self.config)
        for name in (*expected, *self.parameters):
            if name not in self.parameters:
                raise ValueError(f"{name} is missing")
            shape = tuple(self.parameters[name].shape)
            if name not in expected and not name.endswith((".attn.bias", ".attn.masked_bias")):
                raise ValueError(f"{name} is no parameter of this model")
            if shape != expected.get(name, shape):
                raise ValueError(f"{name} must have shape {expected[name]}, got {shape}")

    def __call__(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return logits; also the cache and the hidden states if requested."""
        past = self.past(cache)
        if position_ids is None:
            position_ids = self.positions(past, input_ids.shape[1])
        x = self.embed(input_ids, position_ids)
        visible = self.visible(input_ids, past, attention_mask)
        states, kept = [x], []
        for layer in range(self.config.n_layer):
            self.layer = layer
            x, keys_and_values = self.block(x, visible, cache[layer] if cache else None)
            kept.append(keys_and_values)
            states.append(x)
        states[-1] = x = self.final_norm(x)
        outputs: list[Any] = [self.head(x)]
        if cache is not None:
            outputs.append(tuple(kept))
        if output_hidden_states:
            outputs.append(self.report(states))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def empty_cache(self) -> Cache:
        """Return a cache that holds no token."""
        return ()

    def past(self, cache: Cache | None) -> int:
        """Return the number of tokens in a cache."""
        return cache[0][0].shape[2] if cache else 0

    def positions(self, past: int, length: int) -> torch.Tensor:
        """Return the positions of new tokens."""
        return torch.arange(past, past + length)[None]

    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Add token rows and position rows."""
        return self.tokens(input_ids) + self.places(position_ids)

    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return token rows; torch raises for an id out of range, including negative ones."""
        return functional.embedding(input_ids, self.parameters["transformer.wte.weight"])

    def places(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Return position rows."""
        return functional.embedding(position_ids, self.parameters["transformer.wpe.weight"])

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the mask of earlier keys without padding; an empty row reads all keys."""
        length = input_ids.shape[1]
        seen = self.causal(past, length)
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None, :]
        return seen | ~seen.any(-1, keepdim=True)

    def causal(self, past: int, length: int) -> torch.Tensor:
        """Return the mask of keys up to the query's own position."""
        return torch.ones(length, past + length, dtype=torch.bool).tril(past)[None, None]

    def block(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Apply attention and MLP, each to the normalized residual stream, and add each to it."""
        mixed, kept = self.attention(self.norm(x, "ln_1"), visible, kept)
        x = x + mixed
        return x + self.mlp(self.norm(x, "ln_2")), kept

    def block_parameter(self, name: str) -> torch.Tensor:
        """Return a parameter of the current block."""
        return self.parameters[f"transformer.h.{self.layer}.{name}"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Apply LayerNorm with parameters of the current block."""
        return self.layer_norm(
            x, self.block_parameter(f"{name}.weight"), self.block_parameter(f"{name}.bias")
        )

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Apply LayerNorm."""
        return functional.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_epsilon)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Apply a linear map of the current block, stored input-major."""
        return x @ self.block_parameter(f"{name}.weight") + self.block_parameter(f"{name}.bias")

    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Apply multi-head attention over cached and new keys."""
        query, key, value = self.heads(self.linear(x, "attn.c_attn"))
        if kept is not None:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        mixed = self.attend(query, key, value, visible)
        merged = mixed.permute(0, 2, 1, 3).flatten(2)
        return self.linear(merged, "attn.c_proj"), (key, value)

    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split into queries, keys and values of shape (batch, heads, length, d_head)."""
        parts = packed.unflatten(-1, (3, self.config.n_head, -1))
        return tuple(parts.permute(2, 0, 3, 1, 4))

    def scale(self) -> float:
        """Return the factor of the scores in the current block."""
        factor = 1 / math.sqrt(self.config.d_head) if self.config.scale_attn_weights else 1.0
        return factor / (self.layer + 1) if self.config.scale_attn_by_inverse_layer_idx else factor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Apply softmax attention."""
        scores = (query * self.scale()) @ key.mT
        return scores.masked_fill(~visible, -math.inf).softmax(-1) @ value

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the MLP."""
        return self.linear(self.activation(self.linear(x, "mlp.c_fc")), "mlp.c_proj")

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the activation that the configuration names."""
        if self.config.activation_function == "gelu_new":
            return functional.gelu(x, approximate="tanh")
        named: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "gelu": functional.gelu,
            "silu": functional.silu,
            "relu": functional.relu,
            "tanh": torch.tanh,
        }
        return named[self.config.activation_function](x)

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the LayerNorm before the head."""
        weight, bias = (self.parameters[f"transformer.ln_f.{part}"] for part in ("weight", "bias"))
        return self.layer_norm(x, weight, bias)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        tied = self.config.tie_word_embeddings
        return x @ self.parameters["transformer.wte.weight" if tied else "lm_head.weight"].mT

    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the hidden states as the caller gets them."""
        return tuple(states)


def _supports(config: GPT2Config) -> str | None:
    known = config.activation_function in ("gelu_new", "gelu", "silu", "relu", "tanh")
    return None if known else f"activation not claimed: {config.activation_function}"


def implementation(name: str, model: type[CompactGPT2]) -> ModelImplementation:
    """Declare a model class with the claims of the correct one."""
    return ModelImplementation(
        name=name,
        build=model,
        features=frozenset(ModelFeature),
        dtypes=(torch.float64, torch.float32),
        supports=_supports,
    )


COMPACT = implementation("compact_gpt2", CompactGPT2)
"""The declaration of the correct model."""


def model_mistake(
    id: str, title: str, *, killed_by: str, breaks: tuple[str, ...] = (), source: str = ""
) -> Callable[[type[CompactGPT2]], type[CompactGPT2]]:
    """Register the decorated model class as a mutant."""

    def add(model: type[CompactGPT2]) -> type[CompactGPT2]:
        name = id.lower().replace("-", "_")
        plant(
            id=id,
            title=title,
            subject=implementation(name, model),
            killed_by=killed_by,
            breaks=breaks,
            source=source,
        )
        return model

    return add


class Normalizing(CompactGPT2):
    """A correct GPT-2 with LayerNorm written out, so that a mutant can override a part of it."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.normalize(x) * weight + bias

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()
