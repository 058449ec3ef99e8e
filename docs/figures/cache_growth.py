"""The rows that each step of decoding computes, without a cache and with one, by the reference."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREEN, GREY
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from attnspec.conformance.models.case import draw_parameters
from attnspec.reference.model import build
from attnspec.spec import GPT2Config

STEPS = 8
config = GPT2Config(vocab_size=417, n_positions=16, n_embd=8, n_layer=2, n_head=2)
model = build(config, draw_parameters(config, seed=0, spread=0.3, dtype=torch.float64))
ids = torch.arange(STEPS)[None]
cache = model.empty_cache()
computed, stored = torch.zeros(STEPS, STEPS), torch.zeros(STEPS, STEPS)
for step in range(STEPS):
    computed[step, : model(ids[:, : step + 1]).shape[1]] = 1
    before = cache.length
    logits, cache = model(ids[:, step : step + 1], cache=cache)
    stored[step, :before] = 2
    stored[step, before : before + logits.shape[1]] = 1

figure, pair = plt.subplots(1, 2, figsize=(3.7, 2.4), layout="constrained")
colours = ListedColormap([GREY, BLUE, GREEN])
for axes, (name, rows) in zip(
    pair, {"no cache": computed, "KV cache": stored}.items(), strict=True
):
    axes.pcolormesh(rows, cmap=colours, vmin=0, vmax=2, edgecolors="white", lw=1)
    for row, column in (rows == 1).nonzero().tolist():
        axes.annotate("•", (column + 0.5, row + 0.5), color="white", ha="center", va="center")
    axes.set_title(f"{name}: {int((rows == 1).sum())} rows", fontsize=9)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([0.5, STEPS - 0.5], ["0", str(STEPS - 1)])
    axes.set_yticks([0.5, STEPS - 0.5], ["0", str(STEPS - 1)])
    axes.set_xlabel("position")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
pair[0].set_ylabel("step of decoding")
figure.legend(
    handles=[
        Patch(color=BLUE, label="• computed"),
        Patch(color=GREEN, label="read from the cache"),
    ],
    loc="outside lower center",
    ncols=2,
    frameon=False,
    fontsize=8,
)
