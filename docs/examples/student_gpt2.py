"""A GPT-2 as a student may write it, with only a forward pass."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class StudentGPT2(nn.Module):
    """A model that maps token ids to logits."""

    def __init__(self, config, state_dict):
        super().__init__()
        self.config, self.weights = config, dict(state_dict)

    def norm(self, x, name):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_epsilon)

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x, block):
        batch, length, channels = x.shape
        packed = self.linear(x, f"{block}.attn.c_attn").split(channels, dim=-1)
        query, key, value = (
            part.view(batch, length, self.config.n_head, -1).transpose(1, 2) for part in packed
        )
        scores = query @ key.mT / math.sqrt(channels)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, channels)
        return self.linear(mixed, f"{block}.attn.c_proj")

    def mlp(self, x, block):
        inner = F.gelu(self.linear(x, f"{block}.mlp.c_fc"))
        return self.linear(inner, f"{block}.mlp.c_proj")

    def forward(self, input_ids):
        positions = torch.arange(1, input_ids.shape[1] + 1) % self.config.n_positions
        x = F.embedding(input_ids, self.weights["transformer.wte.weight"])
        x = x + self.weights["transformer.wpe.weight"][positions]
        for layer in range(self.config.n_layer):
            block = f"transformer.h.{layer}"
            x = x + self.attention(self.norm(x, f"{block}.ln_1"), block)
            x = x + self.mlp(self.norm(x, f"{block}.ln_2"), block)
        return self.norm(x, "transformer.ln_f") @ self.weights["transformer.wte.weight"].mT


def shapes(config):
    """Return the shape of every parameter by its name."""
    channels = config.n_embd
    norm = {"weight": (channels,), "bias": (channels,)}
    parts = {f"transformer.ln_f.{name}": shape for name, shape in norm.items()}
    parts["transformer.wte.weight"] = (config.vocab_size, channels)
    parts["transformer.wpe.weight"] = (config.n_positions, channels)
    linear = {
        "attn.c_attn": (channels, 3 * channels),
        "attn.c_proj": (channels, channels),
        "mlp.c_fc": (channels, config.d_inner),
        "mlp.c_proj": (config.d_inner, channels),
    }
    for block in (f"transformer.h.{layer}" for layer in range(config.n_layer)):
        for name, shape in norm.items():
            parts |= {f"{block}.ln_1.{name}": shape, f"{block}.ln_2.{name}": shape}
        for name, shape in linear.items():
            parts |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[1:]}
    return parts


def build(config, state_dict):
    """Build a model of the released configurations, and refuse all others."""
    if config.activation_function != "gelu_new":
        raise NotImplementedError("only gelu_new")
    if not config.tie_word_embeddings:
        raise NotImplementedError("only tied embeddings")
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        raise NotImplementedError("only the usual scale")
    expected = shapes(config)
    for name in expected | state_dict:
        found = tuple(state_dict[name].shape) if name in state_dict else None
        if found != expected.get(name):
            raise ValueError(f"{name}: expected {expected.get(name)}, found {found}")
    return StudentGPT2(config, state_dict)
