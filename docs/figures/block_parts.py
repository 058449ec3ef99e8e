"""A block as two branches that add to the residual stream, and the places of dropout."""

import matplotlib.pyplot as plt
import torch
from branches import stream_parts
from drawing import BLUE, GREEN, GREY, INK, RED, arrow, box, canvas
from toy_sentences import CONFIG, encode, pretrained

ids = torch.tensor([encode(". the old cat eats fish")])
embedding, position, attention, mlp = list(
    stream_parts(CONFIG, pretrained().weights, ids).values()
)[:4]
x = embedding + position
LENGTHS = {
    (2.0, 14.7): x,
    (7.1, 8.42): attention,
    (2.6, 7.6): x + attention,
    (7.1, 1.52): mlp,
    (2.0, 0.0): x + attention + mlp,
}
"""Rows of the residual stream and of the two branches, by their places in the figure."""

figure, axes = plt.subplots(figsize=(3.7, 4.6), layout="constrained")
canvas(axes, 10, 15.2)
axes.plot([1.5, 1.5], [14.3, 0.9], color=INK, lw=5, solid_capstyle="butt", alpha=0.25)
arrow(axes, (1.5, 1.2), (1.5, 0.5))
axes.text(1.5, 14.7, "x", ha="center", va="center", weight="bold")
axes.text(1.5, 0.0, "y", ha="center", va="center", weight="bold")
axes.text(0.75, 7.7, "residual stream", rotation=90, ha="center", va="center", fontsize=8)
BRANCHES = {
    13.6: [("LayerNorm 1", INK), ("attention", BLUE), ("linear map", BLUE)],
    6.7: [("LayerNorm 2", INK), ("linear map, GELU", RED), ("linear map", RED)],
}
READS = {13.6: "reads other positions", 6.7: "each position by itself"}
for top, parts in BRANCHES.items():
    arrow(axes, (1.5, top), (3.1, top))
    for place, (name, colour) in enumerate(parts):
        y = top - 1.7 * place
        box(axes, (5.2, y), name, width=4.2, height=1.0, colour=colour)
        arrow(axes, (5.2, y - 0.5), (5.2, y - 1.2))
    axes.add_patch(plt.Rectangle((3.6, top - 5.6), 3.2, 0.85, fc=GREY, ec="none"))
    axes.text(5.2, top - 5.18, "dropout", ha="center", va="center", fontsize=8)
    arrow(axes, (3.6, top - 5.18), (1.95, top - 5.18))
    circle = plt.Circle((1.5, top - 5.18), 0.42, fc="white", ec=INK, lw=1.3, zorder=3)
    axes.add_patch(circle)
    axes.text(1.5, top - 5.2, "+", ha="center", va="center", fontsize=11, zorder=4)
    axes.text(7.5, top - 1.7, READS[top].replace(" ", "\n", 1), va="center", fontsize=8)
axes.text(7.5, 13.6 - 2.9, "dropout of\nits weights", va="center", fontsize=8, color="#666666")
axes.text(2.1, 13.6 - 6.0, "h", va="center", weight="bold")
for (left, y), rows in LENGTHS.items():
    text = f"length {rows.norm(dim=-1).mean():.2f}"
    axes.text(left, y, text, va="center", fontsize=8, color=GREEN)
