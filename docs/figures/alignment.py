"""Three new queries after a cache of five keys, under both causal alignments."""

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

from attnspec.reference.masks import causal
from attnspec.spec import CausalAlignment

QUERIES, KEYS = 3, 8
POSITION = {
    CausalAlignment.UPPER_LEFT: "query 0 is at key 0",
    CausalAlignment.LOWER_RIGHT: "the last query is at the last key",
}

figure, grid = plt.subplots(2, 1, figsize=(3.8, 3.2), layout="constrained")
for axes, alignment in zip(grid, CausalAlignment, strict=True):
    visible = causal(QUERIES, KEYS, alignment)
    colours = ListedColormap(["#d9dde2", "#2a78b5"])
    axes.pcolormesh(visible.int(), cmap=colours, vmin=0, vmax=1, edgecolors="white", lw=1)
    for row, column in visible.nonzero().tolist():
        axes.annotate("•", (column + 0.5, row + 0.5), color="white", ha="center", va="center")
    for row, count in enumerate(visible.sum(dim=1).tolist()):
        reads = f"reads {count} key" + "s" * (count > 1)
        axes.text(KEYS + 0.2, row + 0.5, reads, va="center")
    axes.axvline(KEYS - QUERIES, color="#d1495b", lw=2)
    axes.set_title(f"{alignment}: {POSITION[alignment]}", fontsize=8)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([n + 0.5 for n in range(KEYS)], [str(n) for n in range(KEYS)])
    axes.set_yticks([n + 0.5 for n in range(QUERIES)], [f"query {n}" for n in range(QUERIES)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
grid[1].set_xlabel("key: cached left of the line, new right of it")
