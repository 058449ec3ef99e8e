"""The bidirectional encoder: BERT, from token ids to the logits of hidden tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.attention import attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder import BertConfig, BertProfile, Pooled

Weights = Mapping[str, torch.Tensor]


def linear(
    x: Float[torch.Tensor, "*batch d_in"], weights: Weights, name: str
) -> Float[torch.Tensor, "*batch d_out"]:
    """Apply a linear map that is stored output-major, like `torch.nn.Linear`'s.

    Args:
        x: any unit.
        weights: hold ``name.weight`` (d_out, d_in) and ``name.bias`` (d_out).
        name: of the map.

    Clauses:
        ENC-2
    """
    return x @ weights[f"{name}.weight"].mT + weights[f"{name}.bias"]


def norm(
    x: Float[torch.Tensor, "*batch d_model"], weights: Weights, name: str, epsilon: float
) -> Float[torch.Tensor, "*batch d_model"]:
    """Apply the LayerNorm of a name.

    Args:
        x: any unit.
        weights: hold ``name.weight`` and ``name.bias``.
        name: of the LayerNorm.
        epsilon: is added to the variance.

    Clauses:
        ENC-1, ENC-2, ENC-12
    """
    return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon=epsilon)


def embed(
    config: BertConfig,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    token_type_ids: Int[torch.Tensor, "batch length"] | None = None,
    positions: Int[torch.Tensor, "batch length"] | None = None,
) -> Float[torch.Tensor, "batch length d_model"]:
    """Add the rows of token, position and token type, and normalize the sum.

    Args:
        config: of the model.
        weights: of the model.
        input_ids: in [0, vocab_size).
        token_type_ids: in [0, type_vocab_size); zeros if they are not given.
        positions: rows of the table of positions; from 0 on if they are not given.

    Clauses:
        ENC-1, ENC-6 to ENC-8

    Source:
        Devlin et al. 2019, figure 2
    """
    if token_type_ids is None:
        token_type_ids = torch.zeros_like(input_ids)
    if positions is None:
        positions = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
    tables = "bert.embeddings"
    rows = weights[f"{tables}.word_embeddings.weight"][input_ids]
    rows = rows + weights[f"{tables}.position_embeddings.weight"][positions]
    rows = rows + weights[f"{tables}.token_type_embeddings.weight"][token_type_ids]
    return norm(rows, weights, f"{tables}.LayerNorm", config.layer_norm_eps)


def self_attention(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Float[torch.Tensor, "batch length d_model"],
    visible: Bool[torch.Tensor, "batch 1 1 length"],
) -> Float[torch.Tensor, "batch length d_model"]:
    """Attend from every position to every real position, in heads.

    Args:
        config: of the model.
        weights: of the model.
        name: of the block's attention.
        x: the states.
        visible: true for real tokens.

    Clauses:
        ENC-3, ENC-4, ENC-11
    """
    heads = config.num_attention_heads

    def split(part: str) -> torch.Tensor:
        projected = linear(x, weights, f"{name}.self.{part}")
        parts: torch.Tensor = projected.unflatten(-1, (heads, -1))
        return parts.transpose(1, 2)

    scale = (config.hidden_size // heads) ** -0.5
    mixed = attention(split("query"), split("key"), split("value"), visible, scale=scale)
    return linear(mixed.transpose(1, 2).flatten(-2), weights, f"{name}.output.dense")


def encoder_block(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Float[torch.Tensor, "batch length d_model"],
    visible: Bool[torch.Tensor, "batch 1 1 length"],
    *,
    norm_first: bool = False,
) -> Float[torch.Tensor, "batch length d_model"]:
    r"""Add attention and feed-forward network to the states, with a LayerNorm after each sum.

    .. math::
        y = \mathrm{LN}_1(x + \mathrm{Attn}(x)), \qquad z = \mathrm{LN}_2(y + \mathrm{FFN}(y))

    Args:
        config: of the model.
        weights: of the model.
        name: of the block.
        x: the states.
        visible: true for real tokens.
        norm_first: whether each LayerNorm precedes its branch, as in GPT-2; not in BERT.

    Clauses:
        ENC-2, ENC-5

    Source:
        Vaswani et al. 2017, section 3.1
    """
    epsilon = config.layer_norm_eps

    def first(rows: torch.Tensor) -> torch.Tensor:
        return norm(rows, weights, f"{name}.attention.output.LayerNorm", epsilon)

    def second(rows: torch.Tensor) -> torch.Tensor:
        return norm(rows, weights, f"{name}.output.LayerNorm", epsilon)

    def attend(rows: torch.Tensor) -> torch.Tensor:
        return self_attention(config, weights, f"{name}.attention", rows, visible)

    def feed_forward(rows: torch.Tensor) -> torch.Tensor:
        inner = ACTIVATIONS[config.hidden_act](linear(rows, weights, f"{name}.intermediate.dense"))
        return linear(inner, weights, f"{name}.output.dense")

    if norm_first:
        x = x + attend(first(x))
        return x + feed_forward(second(x))
    x = first(x + attend(x))
    return second(x + feed_forward(x))


def pool(
    weights: Weights,
    states: Float[torch.Tensor, "batch length d_model"],
    slots: Int[torch.Tensor, " batch"] | None = None,
) -> Float[torch.Tensor, "batch d_model"]:
    """Return a vector for each text: tanh of a linear map of the first state.

    Args:
        weights: of the model.
        states: of the last block.
        slots: of the states that are read; by default the first of each text.

    Clauses:
        ENC-9, ENC-16
    """
    first = states[:, 0] if slots is None else states[torch.arange(len(states)), slots]
    return torch.tanh(linear(first, weights, "bert.pooler.dense"))


def masked_lm_logits(
    config: BertConfig,
    weights: Weights,
    states: Float[torch.Tensor, "batch length d_model"],
) -> Float[torch.Tensor, "batch length vocab"]:
    """Return the logits of each position: linear map, activation, LayerNorm, token table, bias.

    Args:
        config: of the model.
        weights: of the model.
        states: of the last block.

    Clauses:
        ENC-10
    """
    head = "cls.predictions"
    x = ACTIVATIONS[config.hidden_act](linear(states, weights, f"{head}.transform.dense"))
    x = norm(x, weights, f"{head}.transform.LayerNorm", config.layer_norm_eps)
    return x @ weights["bert.embeddings.word_embeddings.weight"].mT + weights[f"{head}.bias"]


@dataclass(frozen=True)
class Encoder:
    """A BERT.

    Attributes:
        config: its sizes.
        weights: its parameters, by Hugging Face's names.
        profile: its behaviour with padding before a token.
    """

    config: BertConfig
    weights: Weights
    profile: BertProfile = field(default_factory=BertProfile)

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        *,
        attention_mask: Int[torch.Tensor, "batch length"] | None = None,
        token_type_ids: Int[torch.Tensor, "batch length"] | None = None,
        output_hidden_states: bool = False,
        output_pooled: bool = False,
    ) -> Any:
        """Return the logits, and hidden states or pooled vectors if they are requested."""
        states = self.states(input_ids, attention_mask, token_type_ids)
        logits = masked_lm_logits(self.config, self.weights, states[-1])
        if output_hidden_states:
            return logits, tuple(states)
        if not output_pooled:
            return logits
        return logits, pool(self.weights, states[-1], self.pooled_slots(attention_mask))

    def pooled_slots(
        self, attention_mask: Int[torch.Tensor, "batch length"] | None
    ) -> Int[torch.Tensor, " batch"] | None:
        """Return the slot of each text's first real token; None if the first slot is declared."""
        if attention_mask is None or self.profile.pooler is Pooled.FIRST_SLOT:
            return None
        return attention_mask.bool().long().argmax(dim=1)

    def states(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        attention_mask: Int[torch.Tensor, "batch length"] | None = None,
        token_type_ids: Int[torch.Tensor, "batch length"] | None = None,
    ) -> list[torch.Tensor]:
        """Return the embeddings, and the result of each block."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        visible = attention_mask[:, None, None].bool()
        positions = token_positions(attention_mask, self.profile.positions)
        states = [embed(self.config, self.weights, input_ids, token_type_ids, positions)]
        for layer in range(self.config.num_hidden_layers):
            name = f"bert.encoder.layer.{layer}"
            states.append(encoder_block(self.config, self.weights, name, states[-1], visible))
        return states


def build(config: BertConfig, state_dict: Weights, profile: BertProfile | None = None) -> Encoder:
    """Build a BERT; a missing parameter is named when it is used.

    Args:
        config: the sizes.
        state_dict: parameters by Hugging Face's names; their dtype is the one to compute in.
        profile: its behaviour with padding before a token.
    """
    return Encoder(config, dict(state_dict), profile or BertProfile())
