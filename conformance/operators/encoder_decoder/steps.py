"""An encoder-decoder in overridable steps, in torch's own functions: the base of mistakes.

It shares no line with the reference.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional

from attnspec.spec.encoder_decoder import EncoderDecoderConfig, EncoderDecoderProfile

ACTS: dict[str, "Branch"] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
}
"""The activation functions by their names in a configuration."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values by heads."""

Branch = Callable[[torch.Tensor], torch.Tensor]
"""A branch of a block."""


class Steps:
    """A correct encoder-decoder; every method is a step.

    Attributes:
        title: the mistake of a derived class, in words.
    """

    title: ClassVar[str] = ""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        state_dict: Mapping[str, torch.Tensor],
        profile: EncoderDecoderProfile | None = None,
    ) -> None:
        """Keep the configuration, the parameters and the behaviour in which models differ."""
        self.config, self.weights = config, state_dict
        self.profile = profile or EncoderDecoderProfile()

    def __call__(
        self,
        input_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return the logits, and hidden states if they are requested."""
        encoded = self.encode(input_ids, self.real(input_ids, attention_mask))
        hidden = self.hidden(decoder_input_ids, decoder_attention_mask)
        places = self.places(self.real(decoder_input_ids, decoder_attention_mask))
        decoded = [self.embed(decoder_input_ids, "decoder", places)]
        readable = self.cross_visible(input_ids, decoder_input_ids, attention_mask)
        for layer in range(self.config.decoder_layers):
            name = f"model.decoder.layers.{layer}"
            cross = self.pair(self.memory(encoded, layer), f"{name}.encoder_attn")
            decoded.append(self.decoder_block(name, decoded[-1], None, cross, hidden, readable)[0])
        decoded[-1] = self.final(decoded[-1], "decoder")
        logits = self.logits(decoded[-1])
        return (logits, tuple(encoded), tuple(decoded)) if output_hidden_states else logits

    def start(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Return the cache before the first target token."""
        encoded = self.encode(input_ids, self.real(input_ids, attention_mask))
        names = [f"model.decoder.layers.{i}" for i in range(self.config.decoder_layers)]
        return {
            "encoded": encoded,
            "ids": input_ids,
            "mask": attention_mask,
            "cross": [
                self.pair(self.memory(encoded, layer), f"{name}.encoder_attn")
                for layer, name in enumerate(names)
            ],
            "past": [None] * len(names),
            "length": 0,
        }

    def step(
        self, decoder_input_ids: torch.Tensor, cache: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the logits of the next target tokens, and the cache that holds them too."""
        length, count = cache["length"], decoder_input_ids.shape[1]
        places = self.offset(length) + self.places(self.real(decoder_input_ids, None))
        x = self.embed(decoder_input_ids, "decoder", places)
        hidden = self.hidden_of_step(length, count)
        readable = self.cross_visible(cache["ids"], decoder_input_ids, cache["mask"])
        past = []
        for layer in range(self.config.decoder_layers):
            name = f"model.decoder.layers.{layer}"
            cross = self.cross_of_step(cache, layer)
            x, kept = self.decoder_block(name, x, cache["past"][layer], cross, hidden, readable)
            past.append(kept)
        logits = self.logits(self.final(x, "decoder"))
        return logits, {**cache, "past": past, "length": length + count}

    def offset(self, length: int) -> int:
        """Return the position of the first token of a step."""
        return length

    def hidden_of_step(self, length: int, count: int) -> torch.Tensor:
        """Return which keys are hidden from the tokens of a step."""
        return torch.ones(count, length + count, dtype=torch.bool).triu(length + 1)

    def cross_of_step(self, cache: dict[str, Any], layer: int) -> Pair:
        """Return keys and values of the source in a step."""
        pair: Pair = cache["cross"][layer]
        return pair

    def real(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return true for real tokens, (batch, 1, 1, length)."""
        return (torch.ones_like(ids) if mask is None else mask).bool()[:, None, None]

    def cross_visible(
        self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return what each target position reads of the source."""
        return self.real(source, mask)

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return which target tokens are hidden from which, (batch, 1, target, target)."""
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        return later | ~self.real(ids, mask)

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        """Return the states of the encoder that a block of the decoder reads."""
        return encoded[-1]

    def encode(self, ids: torch.Tensor, real: torch.Tensor) -> list[torch.Tensor]:
        """Return the states of the encoder."""
        states = [self.embed(ids, "encoder", self.places(real))]
        for layer in range(self.config.encoder_layers):
            states.append(self.encoder_block(f"model.encoder.layers.{layer}", states[-1], real))
        states[-1] = self.final(states[-1], "encoder")
        return states

    def places(self, real: torch.Tensor) -> torch.Tensor:
        """Return the position of each token, (batch, length)."""
        real = real[:, 0, 0]
        if self.profile.positions == "slots":
            return torch.arange(real.shape[1]).repeat(len(real), 1)
        return (real.cumsum(1) - 1).clamp(min=0)

    def embed(self, ids: torch.Tensor, side: str, places: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        rows = functional.embedding(ids, self.weights["model.shared.weight"])
        rows = rows * self.token_scale()
        if self.config.position_embedding == "sinusoidal":
            return rows + torch.stack([self.sinusoids(row) for row in places]).to(rows.dtype)
        rows = rows + self.learned(places, side)
        return self.norm(rows, f"model.{side}.layernorm_embedding")

    def token_scale(self) -> float:
        """Return the factor of the rows of tokens."""
        return float(self.config.d_model**0.5) if self.config.scale_embedding else 1.0

    def learned(self, places: torch.Tensor, side: str) -> torch.Tensor:
        """Return rows of the table of positions."""
        return self.weights[f"model.{side}.embed_positions.weight"][2:][places]

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        """Return sinusoidal positions."""
        width = self.config.d_model
        table = torch.zeros(len(places), width, dtype=torch.float64)
        even = torch.arange(0, width, 2, dtype=torch.float64)
        angles = torch.outer(places.double(), torch.pow(10_000.0, -even / width))
        sines, cosines = slice(0, None, 2), slice(1, None, 2)
        if self.profile.sinusoids == "halves":
            sines, cosines = slice(0, width // 2), slice(width // 2, None)
        table[:, sines], table[:, cosines] = torch.sin(angles), torch.cos(angles)
        return table

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return a LayerNorm."""
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], gain, bias, self.epsilon(name))

    def epsilon(self, name: str) -> float:
        """Return the epsilon of a LayerNorm."""
        return self.config.layer_norm_eps

    def final(self, x: torch.Tensor, side: str) -> torch.Tensor:
        """Return the states after the final LayerNorm, if there is one."""
        return self.norm(x, f"model.{side}.layer_norm") if self.config.final_norm else x

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return a linear map."""
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def branch(self, x: torch.Tensor, name: str, function: Branch) -> torch.Tensor:
        """Return the states with a branch, and its LayerNorm before the branch or after the sum."""
        if self.config.norm_first:
            return x + function(self.norm(x, name))
        return self.norm(x + function(x), name)

    def encoder_block(self, name: str, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return the states after a block of the encoder."""
        hidden, own = self.encoder_hidden(x, real), f"{name}.self_attn"

        def attended(rows: torch.Tensor) -> torch.Tensor:
            return self.attend(own, rows, self.pair(rows, own), hidden)

        x = self.branch(x, f"{own}_layer_norm", attended)
        return self.feed_forward(name, x)

    def encoder_hidden(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return which source tokens are hidden."""
        return ~real

    def decoder_block(
        self,
        name: str,
        x: torch.Tensor,
        past: Pair | None,
        cross: Pair,
        hidden: torch.Tensor,
        readable: torch.Tensor,
    ) -> tuple[torch.Tensor, Pair]:
        """Return the states after a block of the decoder, and keys and values of its targets."""
        own = f"{name}.self_attn"
        kept: list[Pair] = []

        def attended(rows: torch.Tensor) -> torch.Tensor:
            kept.append(self.join(past, self.pair(rows, own)))
            return self.attend(own, rows, kept[0], hidden)

        x = self.branch(x, f"{own}_layer_norm", attended)
        x = self.cross(name, x, cross, readable)
        return self.feed_forward(name, x), kept[0]

    def join(self, past: Pair | None, new: Pair) -> Pair:
        """Return the keys and values so far, with the new ones."""
        if past is None:
            return new
        return torch.cat([past[0], new[0]], 2), torch.cat([past[1], new[1]], 2)

    def cross(
        self, name: str, x: torch.Tensor, cross: Pair, readable: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the cross-attention."""
        part = f"{name}.encoder_attn"
        return self.branch(
            x, f"{part}_layer_norm", lambda rows: self.attend(part, rows, cross, ~readable)
        )

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the states after the feed-forward network."""

        def inner(rows: torch.Tensor) -> torch.Tensor:
            return self.linear(self.activate(self.linear(rows, f"{name}.fc1")), f"{name}.fc2")

        return self.branch(x, f"{name}.final_layer_norm", inner)

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation function."""
        return ACTS[self.config.activation_function](x)

    def heads(self, name: str) -> int:
        """Return the heads of an attention."""
        is_encoder = name.startswith("model.encoder")
        config = self.config
        return config.encoder_attention_heads if is_encoder else config.decoder_attention_heads

    def split(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the heads of a projection, (batch, heads, length, d_head)."""
        parts: torch.Tensor = x.unflatten(-1, (self.heads(name), -1))
        return parts.transpose(1, 2)

    def pair(self, x: torch.Tensor, name: str) -> Pair:
        """Return keys and values of an attention."""
        key, value = (self.split(self.linear(x, f"{name}.{part}_proj"), name) for part in "kv")
        return key, value

    def scale(self, d_head: int) -> float:
        """Return the scale of the scores."""
        return float(d_head**-0.5)

    def attend(self, name: str, x: torch.Tensor, pair: Pair, hidden: torch.Tensor) -> torch.Tensor:
        """Return an attention."""
        query = self.split(self.linear(x, f"{name}.q_proj"), name)
        scores = (query @ pair[0].mT) * self.scale(query.shape[-1])
        # finite, so that padding before a target, which reads nothing, has no NaN
        lowest = torch.finfo(scores.dtype).min
        weights = torch.softmax(scores.masked_fill(hidden, lowest), -1)
        mixed = (weights @ pair[1]).transpose(1, 2).flatten(-2)
        return self.linear(mixed, f"{name}.out_proj")

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        head = functional.linear(x, self.weights["model.shared.weight"])
        return head + self.weights["final_logits_bias"]
