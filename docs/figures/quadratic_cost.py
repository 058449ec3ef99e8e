"""Multiplications of one block of the smallest released GPT-2, by length: linear and quadratic."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, RED

from attnspec.spec import GPT2Config

config = GPT2Config()
length = 2 ** torch.arange(5, 18)
maps = 12 * config.n_embd**2 * length
scores_and_mix = 2 * config.n_embd * length**2
crossing = 6 * config.n_embd

figure, axes = plt.subplots(figsize=(3.7, 2.9), layout="constrained")
axes.plot(length, maps, "o-", color=BLUE, ms=4, label="linear maps: 12 n d²")
axes.plot(length, scores_and_mix, "s--", color=RED, ms=4, label="scores and mix: 2 n² d")
axes.axvline(config.n_positions, color="#999999", lw=1, ls=":")
axes.annotate(
    "GPT-2's\nlongest text",
    (config.n_positions, 3e6),
    (4, 0),
    textcoords="offset points",
    fontsize=8,
)
axes.plot(crossing, 12 * config.n_embd**2 * crossing, "o", ms=11, mfc="none", color="#666666")
axes.annotate(
    f"equal at n = 6 d = {crossing}",
    (crossing, 12 * config.n_embd**2 * crossing),
    (8, -12),
    textcoords="offset points",
    fontsize=8,
)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(
    [2**5, 2**8, 2**11, 2**14, 2**17], ["32", "256", "2 048", "16 384", "131 072"], fontsize=8
)
axes.set_xlabel("tokens n")
axes.set_ylabel("multiplications in a block")
axes.legend(frameon=False, loc="upper left", fontsize=8)
axes.spines[["top", "right"]].set_visible(False)
