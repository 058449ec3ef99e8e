"""A Transformer of 2017 as a student may write it."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class StudentTransformer(nn.Module):
    """A model that maps the token ids of a source and a target to logits of next tokens."""

    def __init__(self, config, state_dict):
        super().__init__()
        self.config, self.weights = config, dict(state_dict)

    def norm(self, x, name):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_eps)

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def positions(self, length):
        width = self.config.d_model
        rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(length)[:, None] * rates
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)

    def embed(self, ids):
        x = self.weights["model.shared.weight"][ids]
        return x + self.positions(ids.shape[1]).to(x.dtype)

    def attention(self, x, memory, hidden, name):
        heads = self.config.encoder_attention_heads
        query, key, value = (
            self.linear(rows, f"{name}.{part}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, rows in (("q", x), ("k", memory), ("v", memory))
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.linear((weights @ value).transpose(1, 2).flatten(-2), f"{name}.out_proj")

    def feed_forward(self, x, name):
        act = {"relu": F.relu, "gelu": F.gelu}.get(
            self.config.activation_function, lambda y: F.gelu(y, approximate="tanh")
        )
        inner = self.linear(act(self.linear(x, f"{name}.fc1")), f"{name}.fc2")
        return self.norm(x + inner, f"{name}.final_layer_norm")

    def encode(self, ids, padding):
        states = [self.embed(ids)]
        for layer in range(self.config.encoder_layers):
            name, x = f"model.encoder.layers.{layer}", states[-1]
            read = self.attention(x, x, padding, f"{name}.self_attn")
            x = self.norm(x + read, f"{name}.self_attn_layer_norm")
            states.append(self.feed_forward(x, name))
        return states

    def decode(self, ids, memory):
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        nothing = torch.zeros(1, dtype=torch.bool)
        states = [self.embed(ids)]
        for layer in range(self.config.decoder_layers):
            name, x = f"model.decoder.layers.{layer}", states[-1]
            read = self.attention(x, x, later, f"{name}.self_attn")
            x = self.norm(x + read, f"{name}.self_attn_layer_norm")
            read = self.attention(x, memory, nothing, f"{name}.encoder_attn")
            x = self.norm(x + read, f"{name}.encoder_attn_layer_norm")
            states.append(self.feed_forward(x, name))
        return states

    def forward(
        self, input_ids, decoder_input_ids, attention_mask=None, output_hidden_states=False
    ):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        padding = attention_mask[:, None, None] == 0
        encoded = self.encode(input_ids, padding)
        decoded = self.decode(decoder_input_ids, encoded[-1])
        logits = decoded[-1] @ self.weights["model.shared.weight"].mT
        logits = logits + self.weights["final_logits_bias"]
        return (logits, tuple(encoded), tuple(decoded)) if output_hidden_states else logits


def build(config, state_dict):
    """Return the model of a configuration and its parameters."""
    return StudentTransformer(config, state_dict)
