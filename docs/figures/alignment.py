"""Three new queries behind a cache of five keys, under both ways to place the diagonal."""

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

from attnspec.reference.masks import causal
from attnspec.spec import CausalAlignment

QUERIES, KEYS = 3, 8

figure, grid = plt.subplots(2, 1, figsize=(4.6, 3.9), layout="constrained")
for axes, alignment in zip(grid, CausalAlignment, strict=True):
    visible = causal(QUERIES, KEYS, alignment)
    colours = ListedColormap(["#e8eaed", "#2a78b5"])
    axes.pcolormesh(visible.int(), cmap=colours, vmin=0, vmax=1, edgecolors="white", lw=1)
    for place in visible.nonzero().tolist():
        axes.annotate(
            "•", (place[1] + 0.5, place[0] + 0.5), color="white", ha="center", va="center"
        )
    axes.axvline(KEYS - QUERIES, color="#d1495b", lw=2)
    axes.set_title(f"{alignment}: keys read {visible.sum(dim=1).tolist()}")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([n + 0.5 for n in range(KEYS)], [str(n) for n in range(KEYS)])
    axes.set_yticks([n + 0.5 for n in range(QUERIES)], [str(n + KEYS - QUERIES) for n in range(3)])
    axes.set_ylabel("place of query")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
grid[1].set_xlabel("key: cached left of the line, new right of it")
