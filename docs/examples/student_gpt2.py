"""A GPT-2 as a student may write it, with a forward pass and nothing else."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class StudentGPT2(nn.Module):
    """From token ids to logits."""

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
            each.view(batch, length, self.config.n_head, -1).transpose(1, 2) for each in packed
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


def build(config, state_dict):
    """Take what the released checkpoints need, and refuse the rest."""
    if config.activation_function != "gelu_new":
        raise NotImplementedError("only gelu_new")
    if not config.tie_word_embeddings:
        raise NotImplementedError("only tied embeddings")
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        raise NotImplementedError("only the usual scale")
    return StudentGPT2(config, state_dict)
