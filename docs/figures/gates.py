"""The hidden number of a gated MLP for three values of up, beside GELU."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.activation import gelu_tanh, silu

gate = torch.linspace(-5, 5, 201, dtype=torch.float64)

figure, axes = plt.subplots(figsize=(3.7, 2.5), layout="constrained")
axes.axhline(0, color="#999999", lw=0.8)
axes.plot(gate, gelu_tanh(gate), color="#d1495b", lw=4, alpha=0.45, label="GPT-2: gelu")
for up, style in ((1.0, "-"), (0.4, "--"), (-0.6, ":")):
    label = f"silu(gate) · up, up = {up:g}".replace("-", "−")
    axes.plot(gate, silu(gate) * up, color="#1f4e79", ls=style, lw=1.5, label=label)
axes.legend(frameon=False, loc="upper left", fontsize=8)
axes.set_xlabel("gate")
axes.set_ylabel("hidden number")
axes.spines[["top", "right"]].set_visible(False)
