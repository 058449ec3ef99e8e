"""The packed projection of seven tokens, cut into heads, and the pattern of each head."""

import matplotlib.pyplot as plt
import torch
from drawing import INK, RED, cells

from attnspec.conformance.models.case import draw_parameters
from attnspec.reference.heads import project_heads
from attnspec.reference.implementation import scaled_dot_product_attention as attention
from attnspec.reference.linear import linear
from attnspec.reference.masks import causal
from attnspec.spec import GPT2Config

config = GPT2Config(vocab_size=417, n_positions=16, n_embd=8, n_layer=2, n_head=2)
parameters = draw_parameters(config, seed=0, spread=0.3, dtype=torch.float64)
x = torch.randn(1, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
weight, bias = (parameters[f"transformer.h.0.attn.c_attn.{name}"] for name in ("weight", "bias"))
packed = linear(x, weight, bias)[0]
query, key, _ = project_heads(x, weight, bias, heads=2)
identity = torch.eye(7, dtype=torch.float64).expand(1, 2, 7, 7)
patterns = attention(query, key, identity, is_causal=True)[0]

figure = plt.figure(figsize=(3.7, 3.5), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=(4, 5))
axes = above.subplots()
cells(axes, packed, signed=True, limit=2.5)
for column in range(4, 24, 4):
    axes.axvline(column, color=INK if column % 8 == 0 else RED, lw=2.2 if column % 8 == 0 else 1.2)
axes.set_title("x W + b: 7 × 24", fontsize=9)
middles = [2 + 4 * part for part in range(6)]
axes.set_xticks(middles, [f"{part}\nhead {head}" for part in "qkv" for head in (0, 1)], fontsize=8)
axes.xaxis.tick_bottom()
axes.tick_params(length=0)
for head, place in enumerate(below.subplots(1, 2)):
    title = f"weights of head {head}"
    cells(place, patterns[head], title=title, limit=1, visible=causal(7, 7), form=".1f", size=6.5)
