"""The turn of the first pair at positions 246 to 274, with exact and with bfloat16 positions."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.rotary import frequencies, rotary, turn

positions = torch.arange(246, 275)
ones = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(1, 1, len(positions), 1)
rounded = positions.to(torch.bfloat16).long()
merged = rotary(ones, rounded[None])[0, 0, :, 0]
between = torch.linspace(246, 274, 281, dtype=torch.float64)
exact = turn(ones[0, 0, :1].expand(len(between), 2), between[:, None] * frequencies(2))[:, 0]

figure, axes = plt.subplots(figsize=(3.7, 2.3), layout="constrained")
axes.axvline(256, color="#c4c9d0", lw=1.5, zorder=0)
axes.plot(between, exact, color="#2a78b5", lw=1.5, label="exact positions")
axes.plot(positions, merged, "o", color="#d1495b", ms=3.5, label="positions in bfloat16")
axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
axes.set_xlabel("position")
axes.set_ylabel("cosine of the turn")
axes.set_ylim(-1.15, 1.15)
axes.spines[["top", "right"]].set_visible(False)
