"""A correct GPT-2 in small steps, each of which a mutant can replace by its mistake.

It shares no line with the reference: attention is a baddbmm of stacked heads, LayerNorm and the
activations are torch's own.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.mutants.registry import plant
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

OMNIVERSE = "https://github.com/gao-hongnan/omniverse/issues/72"
Cache = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class CompactGPT2:
    """GPT-2 as one class; every method is a step."""

    def __init__(self, config: GPT2Config, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep the configuration and the weights."""
        self.config = config
        self.weights = weights

    def __call__(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """From token ids to logits, and whatever else is asked for."""
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
        answer: list[Any] = [self.head(x)]
        if cache is not None:
            answer.append(tuple(kept))
        if output_hidden_states:
            answer.append(self.report(states))
        return tuple(answer) if len(answer) > 1 else answer[0]

    def empty_cache(self) -> Cache:
        """A cache of nothing."""
        return ()

    def past(self, cache: Cache | None) -> int:
        """How many tokens a cache holds."""
        return cache[0][0].shape[2] if cache else 0

    def positions(self, past: int, length: int) -> torch.Tensor:
        """The positions of new tokens."""
        return torch.arange(past, past + length)[None]

    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Token rows plus position rows."""
        return self.tokens(input_ids) + self.places(position_ids)

    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Token rows; torch refuses an id that is out of range, negative ones too."""
        return functional.embedding(input_ids, self.weights["transformer.wte.weight"])

    def places(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Position rows."""
        return functional.embedding(position_ids, self.weights["transformer.wpe.weight"])

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Earlier keys that are no padding; a row that would see nothing sees all."""
        length = input_ids.shape[1]
        seen = self.causal(past, length)
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None, :]
        return seen | ~seen.any(-1, keepdim=True)

    def causal(self, past: int, length: int) -> torch.Tensor:
        """Keys up to the query's own place."""
        return torch.ones(length, past + length, dtype=torch.bool).tril(past)[None, None]

    def block(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Attention and MLP, each on the normalized stream and added to it."""
        mixed, kept = self.attention(self.norm(x, "ln_1"), visible, kept)
        x = x + mixed
        return x + self.mlp(self.norm(x, "ln_2")), kept

    def own(self, name: str) -> torch.Tensor:
        """A weight of the present block."""
        return self.weights[f"transformer.h.{self.layer}.{name}"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """LayerNorm with weights of the present block."""
        return self.layer_norm(x, self.own(f"{name}.weight"), self.own(f"{name}.bias"))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """LayerNorm."""
        return functional.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_epsilon)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A linear map of the present block, stored input-major."""
        return x @ self.own(f"{name}.weight") + self.own(f"{name}.bias")

    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Multi-head attention over cached and new keys."""
        query, key, value = self.heads(self.linear(x, "attn.c_attn"))
        if kept is not None:
            key, value = torch.cat([kept[0], key], 2), torch.cat([kept[1], value], 2)
        mixed = self.attend(query, key, value, visible)
        merged = mixed.permute(0, 2, 1, 3).flatten(2)
        return self.linear(merged, "attn.c_proj"), (key, value)

    def heads(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys, values, each (batch, heads, length, d_head)."""
        parts = packed.unflatten(-1, (3, self.config.n_head, -1))
        return tuple(parts.permute(2, 0, 3, 1, 4))

    def scale(self) -> float:
        """The factor of the scores in the present block."""
        factor = 1 / math.sqrt(self.config.d_head) if self.config.scale_attn_weights else 1.0
        return factor / (self.layer + 1) if self.config.scale_attn_by_inverse_layer_idx else factor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Softmax attention."""
        scores = (query * self.scale()) @ key.mT
        return scores.masked_fill(~visible, -math.inf).softmax(-1) @ value

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP."""
        return self.linear(self.activation(self.linear(x, "mlp.c_fc")), "mlp.c_proj")

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        """The activation that the configuration names."""
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
        """The LayerNorm before the head."""
        weight, bias = (self.weights[f"transformer.ln_f.{part}"] for part in ("weight", "bias"))
        return self.layer_norm(x, weight, bias)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        tied = self.config.tie_word_embeddings
        return x @ self.weights["transformer.wte.weight" if tied else "lm_head.weight"].mT

    def report(self, states: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The hidden states to return."""
        return tuple(states)


def _supports(config: GPT2Config) -> str | None:
    known = config.activation_function in ("gelu_new", "gelu", "silu", "relu", "tanh")
    return None if known else f"activation not claimed: {config.activation_function}"


def implementation(name: str, model: type[CompactGPT2]) -> ModelImplementation:
    """The record of such a model: it claims everything that the correct one does."""
    return ModelImplementation(
        name=name,
        build=model,
        features=frozenset(ModelFeature),
        dtypes=(torch.float64, torch.float32),
        supports=_supports,
    )


COMPACT = implementation("compact_gpt2", CompactGPT2)
"""The correct one."""


def model_mistake(
    id: str, title: str, *kills: str, source: str = ""
) -> Callable[[type[CompactGPT2]], type[CompactGPT2]]:
    """Plant a model class as a mutant."""

    def add(model: type[CompactGPT2]) -> type[CompactGPT2]:
        name = id.lower().replace("-", "_")
        plant(id=id, title=title, subject=implementation(name, model), kills=kills, source=source)
        return model

    return add


class Normalizing(CompactGPT2):
    """LayerNorm written out, so that one part of it can be wrong."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.normalize(x) * weight + bias

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()
