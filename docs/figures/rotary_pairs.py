"""Two pairs of one key at positions 0 to 7, which turn by 1 and by 0.1 radian each time."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.rotary import frequencies, rotary

POSITIONS = torch.arange(8)
key = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64).repeat(1, 1, len(POSITIONS), 1)
turned = rotary(key, POSITIONS[None], base=100.0)[0, 0]
theta = frequencies(4, base=100.0)

figure, pairs = plt.subplots(1, 2, figsize=(3.7, 2.2), layout="constrained")
for pair, axes in enumerate(pairs):
    for position, row in zip(POSITIONS.tolist(), turned, strict=True):
        x, y = float(row[pair]), float(row[pair + 2])
        colour = plt.get_cmap("Blues")(0.35 + 0.6 * position / 7)
        axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": colour})
        if pair == 1 and 0 < position < 7:
            continue  # the numbers would lie on each other
        axes.text(1.17 * x, 1.17 * y, str(position), ha="center", va="center", fontsize=8)
    axes.set_title(f"pair {pair}: θ = {float(theta[pair]):g}", fontsize=9)
    axes.set_xlim(-1.35, 1.35)
    axes.set_ylim(-1.35, 1.35)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
