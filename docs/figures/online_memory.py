"""Numbers held at once, and exponentials, with all scores and with those of a tile: measured."""

import matplotlib.pyplot as plt
import torch
from count_memory import Counting
from drawing import BLUE, RED

from attnspec.reference.online_softmax import safe, tiled_attention

WIDTH, TILE = 16, 16
lengths = [64, 128, 256, 512, 1024]
counts: dict[str, list[Counting]] = {"all": [], "tile": []}
for length in lengths:
    query, key, value = torch.zeros(3, length, WIDTH)
    with Counting() as whole:
        safe(query @ key.mT, value)
    with Counting() as tiles:
        tiled_attention(query, key, value, scale=1.0, tile=TILE)
    counts["all"].append(whole)
    counts["tile"].append(tiles)

figure, (upper, lower) = plt.subplots(2, 1, figsize=(3.7, 4.4), layout="constrained")
for axes, name, title in (
    (upper, "held", "numbers held at once"),
    (lower, "exponentials", "exponentials"),
):
    whole, tiles = ([getattr(each, name) for each in counts[way]] for way in ("all", "tile"))
    axes.plot(lengths, whole, "s--", color=RED, ms=4, label="all scores")
    axes.plot(lengths, tiles, "o-", color=BLUE, ms=4, label=f"tiles of {TILE}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(each) for each in lengths], fontsize=8)
    axes.set_xlabel("queries and keys n")
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
upper.annotate(
    f"{counts['all'][-1].held / lengths[-1] ** 2:.0f} n²", (lengths[-2], 1.2e6), ha="right"
)
upper.annotate(f"{counts['tile'][-1].held / lengths[-1]:.0f} n", (lengths[-2], 2.8e4), ha="center")
lower.legend(frameon=False, fontsize=8)
