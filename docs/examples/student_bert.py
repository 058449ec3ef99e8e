"""A BERT as a student may write it."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class StudentBERT(nn.Module):
    """A model that maps token ids to logits of hidden tokens."""

    def __init__(self, config, state_dict):
        super().__init__()
        self.config, self.weights = config, dict(state_dict)

    def norm(self, x, name):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def activation(self, x):
        if self.config.hidden_act == "gelu_new":
            return F.gelu(x, approximate="tanh")
        return {"gelu": F.gelu, "relu": F.relu}[self.config.hidden_act](x)

    def embed(self, input_ids, token_type_ids):
        tables = "bert.embeddings"
        x = self.weights[f"{tables}.word_embeddings.weight"][input_ids]
        x = x + self.weights[f"{tables}.position_embeddings.weight"][: input_ids.shape[1]]
        x = x + self.weights[f"{tables}.token_type_embeddings.weight"][0]
        return self.norm(x, f"{tables}.LayerNorm")

    def attention(self, x, hidden, name):
        batch, length, channels = x.shape
        query, key, value = (
            self.linear(x, f"{name}.self.{part}")
            .view(batch, length, self.config.num_attention_heads, -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.mT / math.sqrt(channels)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, channels)
        return self.linear(mixed, f"{name}.output.dense")

    def block(self, x, hidden, name):
        attended = self.attention(x, hidden, f"{name}.attention")
        x = self.norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = self.activation(self.linear(x, f"{name}.intermediate.dense"))
        return self.norm(x + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def head(self, x):
        x = self.activation(self.linear(x, "cls.predictions.transform.dense"))
        table = self.weights["bert.embeddings.word_embeddings.weight"]
        return F.linear(x, table, self.weights["cls.predictions.bias"])

    def forward(
        self, input_ids, attention_mask=None, token_type_ids=None, output_hidden_states=False
    ):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        hidden = attention_mask[:, None, None] == 0
        states = [self.embed(input_ids, token_type_ids)]
        for layer in range(self.config.num_hidden_layers):
            states.append(self.block(states[-1], hidden, f"bert.encoder.layer.{layer}"))
        logits = self.head(states[-1])
        return (logits, tuple(states)) if output_hidden_states else logits


def build(config, state_dict):
    """Return the model of a configuration and its parameters."""
    return StudentBERT(config, state_dict)
