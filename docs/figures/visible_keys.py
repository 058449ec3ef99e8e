"""The keys that each query may read under four masks, and their weights, by the reference."""

from typing import Any

import matplotlib.pyplot as plt
import torch

from attnspec.reference.implementation import scaled_dot_product_attention as attention
from attnspec.reference.masks import visible_keys

LENGTH = 8
torch.manual_seed(3)
query, key = torch.randn(2, 1, 1, LENGTH, 4, dtype=torch.float64).unbind()
identity = torch.eye(LENGTH, dtype=torch.float64)[None, None]
document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
WAYS: dict[str, Any] = {
    "causal": {},
    "window (2, 0)": {"window": (2, 0)},
    "documents": {"attn_mask": document[:, None] == document},
    "padding": {"attn_mask": torch.arange(LENGTH)[None] >= 2},
}

figure, grid = plt.subplots(2, 2, figsize=(3.7, 4.5), layout="constrained")
for axes, (title, asked) in zip(grid.flat, WAYS.items(), strict=True):
    weights = attention(query, key, identity, is_causal=True, **asked)[0, 0]
    visible, _ = visible_keys(LENGTH, LENGTH, is_causal=True, **asked)
    shown = weights.masked_fill(~visible, torch.nan)
    axes.set_facecolor("#d9dde2")
    drawn = axes.pcolormesh(shown, cmap="Blues", vmin=0, vmax=1.25, edgecolors="white", lw=0.8)
    axes.set_title(title)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([0.5, LENGTH - 0.5], ["0", str(LENGTH - 1)])
    axes.set_yticks([0.5, LENGTH - 0.5], ["0", str(LENGTH - 1)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
grid[1, 0].set_xlabel("key")
grid[1, 1].set_xlabel("key")
grid[0, 0].set_ylabel("query")
grid[1, 0].set_ylabel("query")
bar = figure.colorbar(drawn, ax=grid, label="weight (grey: hidden)", location="bottom", aspect=40)
bar.ax.set_xlim(0, 1)
