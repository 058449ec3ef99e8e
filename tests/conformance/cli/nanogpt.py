"""A GPT-2 in the style of nanoGPT, as its users have it, and a `build` that adapts it."""

import math
import os
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.nn import functional as F

TRIAL = os.environ.get("NANOGPT_TRIAL", "")
"""The mistake that is tried, or an empty string."""

EPSILON = 1e-6 if TRIAL == "epsilon" else 1e-5
DIAGONAL = {"mask": 1, "own_key_hidden": -1}.get(TRIAL, 0)
DROPOUT = 0.1 if TRIAL == "dropout" else 0.0


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        size = config.block_size
        visible = torch.tril(torch.ones(size, size), DIAGONAL)
        self.register_buffer("bias", visible.view(1, 1, size, size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=EPSILON)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=EPSILON)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": nn.LayerNorm(config.n_embd, eps=EPSILON),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def hidden(self, idx):
        _, t = idx.size()
        assert t <= self.config.block_size, "a sequence longer than the positions"
        pos = torch.arange(t)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        return self.transformer.ln_f(x)

    def forward(self, idx, targets=None):
        x = self.hidden(idx)
        if targets is not None:
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return self.lm_head(x[:, [-1], :]), None


def original(config, state_dict):
    """Build nanoGPT's model as it is, which returns the last position and a loss."""
    if config.activation_function != "gelu_new" or config.n_inner not in (None, 4 * config.n_embd):
        raise NotImplementedError("gelu_new and an MLP of 4 n_embd only")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
        raise NotImplementedError("scores are scaled by 1/sqrt(d_head)")
    if config.layer_norm_epsilon != 1e-5 or not config.tie_word_embeddings:
        raise NotImplementedError("epsilon 1e-5 and a tied head only")
    sizes = SimpleNamespace(
        block_size=config.n_positions,
        vocab_size=config.vocab_size,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        dropout=DROPOUT,
    )
    model = GPT(sizes).to(state_dict["transformer.wte.weight"].dtype)
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    copied = {
        name: tensor.t() if name.endswith(linear) else tensor for name, tensor in state_dict.items()
    }
    own = {name for name in model.state_dict() if not name.endswith(".attn.bias")}
    if set(copied) != own - {"lm_head.weight"}:
        raise KeyError(f"not the parameters: {set(copied) ^ (own - {'lm_head.weight'})}")
    model.load_state_dict(copied, strict=False)
    return model


def build(config, state_dict):
    """Build nanoGPT's model with the logits of all positions."""
    model = original(config, state_dict)
    if TRIAL != "dropout":
        model.eval()
    return lambda input_ids: model.lm_head(model.hidden(input_ids))
