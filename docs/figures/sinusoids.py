"""Sinusoidal positions as a picture, and a shift as a turn of two pairs of channels."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, RED

from attnspec.reference.encoder_decoder import sinusoids

WIDTH, SHIFT = 32, 4
table = sinusoids(torch.arange(48), WIDTH)

figure, axes = plt.subplots(1, 2, figsize=(3.7, 2.2), layout="constrained", width_ratios=(1.25, 1))
axes[0].imshow(table.numpy(), cmap="RdBu", vmin=-1.2, vmax=1.2, aspect="auto")
axes[0].set_title("positions", fontsize=9)
axes[0].set_xlabel("channel", fontsize=8)
axes[0].set_ylabel("position", fontsize=8)
axes[0].tick_params(labelsize=7)

turn = torch.linspace(0, 2 * torch.pi, 200)
axes[1].plot(turn.cos(), turn.sin(), color="#d9dde2", lw=1)
axes[1].plot(2 * turn.cos(), 2 * turn.sin(), color="#d9dde2", lw=1)
for pair, radius in ((2, 1), (4, 2)):
    for first, colour in ((1, BLUE), (9, RED)):
        sine, cosine = table[[first, first + SHIFT], 2 * pair : 2 * pair + 2].T * radius
        axes[1].annotate(
            "",
            (float(cosine[1]), float(sine[1])),
            (float(cosine[0]), float(sine[0])),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0},
        )
        for place, x, y in zip((first, first + SHIFT), cosine.tolist(), sine.tolist(), strict=True):
            axes[1].plot(x, y, "o", color=colour, ms=3)
            axes[1].text(x * 1.22, y * 1.22, str(place), ha="center", va="center", fontsize=7)
axes[1].set_aspect("equal")
axes[1].set_xlim(-2.7, 2.7)
axes[1].set_ylim(-2.7, 2.7)
axes[1].axis("off")
axes[1].set_title("two pairs, shift of 4", fontsize=9)
