"""A BERT in overridable steps, in torch's own functions: what mistakes are derived from.

It shares no line with the reference.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional

from attnspec.spec.encoder import BertConfig, BertProfile

ACTS = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}
"""The activation functions by their names in a configuration."""


class Steps:
    """A correct BERT; every method is a step.

    Attributes:
        title: the mistake of a derived class, in words.
    """

    title: ClassVar[str] = ""

    def __init__(
        self,
        config: BertConfig,
        state_dict: Mapping[str, torch.Tensor],
        profile: BertProfile | None = None,
    ) -> None:
        """Keep the configuration, the parameters and the behaviour with padding before a token."""
        self.config, self.weights = config, state_dict
        self.profile = profile or BertProfile()

    def __call__(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        output_pooled: bool = False,
    ) -> Any:
        """Return the logits, and hidden states or pooled vectors if they are requested."""
        visible = self.visible(input_ids, attention_mask)
        real = self.real(input_ids, attention_mask)
        states = [self.embed(input_ids, token_type_ids, self.places(real))]
        for layer in range(self.config.num_hidden_layers):
            states.append(self.block(f"bert.encoder.layer.{layer}", states[-1], visible))
        logits = self.logits(states[-1])
        if output_hidden_states:
            return logits, tuple(states)
        return (logits, self.pooled(states[-1], real)) if output_pooled else logits

    def real(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return true for real tokens, (batch, length)."""
        return (torch.ones_like(ids) if mask is None else mask).bool()

    def visible(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return what each position reads, (batch, 1, length, length)."""
        return self.real(ids, mask)[:, None, None].expand(-1, 1, ids.shape[1], -1)

    def places(self, real: torch.Tensor) -> torch.Tensor:
        """Return the position of each token, (batch, length)."""
        if self.profile.positions == "slots":
            return torch.arange(real.shape[1]).repeat(len(real), 1)
        return (real.cumsum(1) - 1).clamp(min=0)

    def embed(
        self, ids: torch.Tensor, types: torch.Tensor | None, places: torch.Tensor
    ) -> torch.Tensor:
        """Return the embeddings."""
        types = torch.zeros_like(ids) if types is None else types
        tables = "bert.embeddings"
        rows = functional.embedding(ids, self.weights[f"{tables}.word_embeddings.weight"])
        rows = rows + self.positions(places)
        rows = rows + self.types(types)
        return self.norm(rows, f"{tables}.LayerNorm")

    def positions(self, places: torch.Tensor) -> torch.Tensor:
        """Return the rows of the positions."""
        table = self.weights["bert.embeddings.position_embeddings.weight"]
        return functional.embedding(places, table)

    def types(self, types: torch.Tensor) -> torch.Tensor:
        """Return the rows of the token types."""
        table = self.weights["bert.embeddings.token_type_embeddings.weight"]
        return functional.embedding(types, table)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return a LayerNorm."""
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], gain, bias, self.epsilon(name))

    def epsilon(self, name: str) -> float:
        """Return the epsilon of a LayerNorm."""
        return self.config.layer_norm_eps

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return a linear map."""
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation function."""
        result: torch.Tensor = ACTS[self.config.hidden_act](x)
        return result

    def block(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return the states after a block."""
        attended = self.attend(f"{name}.attention", x, visible)
        x = self.norm(x + attended, f"{name}.attention.output.LayerNorm")
        return self.norm(x + self.feed_forward(name, x), f"{name}.output.LayerNorm")

    def feed_forward(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward network."""
        inner = self.activate(self.linear(x, f"{name}.intermediate.dense"))
        return self.linear(inner, f"{name}.output.dense")

    def attend(self, name: str, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return the attention."""
        heads = self.config.num_attention_heads
        query, key, value = (
            self.split(self.linear(x, f"{name}.self.{part}"), heads)
            for part in ("query", "key", "value")
        )
        scores = (query @ key.mT) * self.scale(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        mixed = (weights @ value).transpose(1, 2).flatten(-2)
        return self.linear(mixed, f"{name}.output.dense")

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return the heads of a projection, (batch, heads, length, d_head)."""
        parts: torch.Tensor = x.unflatten(-1, (heads, -1))
        return parts.transpose(1, 2)

    def scale(self, d_head: int) -> float:
        """Return the scale of the scores."""
        return float(d_head**-0.5)

    def first(self, real: torch.Tensor) -> torch.Tensor:
        """Return the slot of each text that the pooler reads."""
        if self.profile.pooler == "first_slot":
            return torch.zeros(len(real), dtype=torch.long)
        return torch.tensor([row.nonzero()[0, 0] for row in real])

    def pooled(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return the pooled vectors."""
        first = x[torch.arange(len(x)), self.first(real)]
        return torch.tanh(self.linear(first, "bert.pooler.dense"))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.activate(self.linear(x, "cls.predictions.transform.dense"))
        x = self.norm(x, "cls.predictions.transform.LayerNorm")
        table = self.weights["bert.embeddings.word_embeddings.weight"]
        return functional.linear(x, table, self.weights["cls.predictions.bias"])
