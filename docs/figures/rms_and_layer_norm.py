"""One row of six channels far from zero, by LayerNorm and by RMSNorm."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.rms_norm import rms_norm

row = torch.tensor([[2.0, 3.0, 1.0, 4.0, 2.5, 5.0]], dtype=torch.float64)
one, zero = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
rows = {
    "row": row,
    "LayerNorm": layer_norm(row, one, zero, epsilon=1e-5),
    "RMSNorm": rms_norm(row, one, epsilon=1e-5),
}

figure, parts = plt.subplots(1, 3, figsize=(3.8, 2.0), layout="constrained", width_ratios=(1, 1, 1))
for axes, (name, values) in zip(parts, rows.items(), strict=True):
    axes.bar(range(6), values[0], color="#1f4e79")
    axes.axhline(0, color="#999999", lw=0.8)
    axes.axhline(float(values.mean()), color="#d1495b", lw=1.2, ls="--")
    axes.set_title(name, fontsize=9)
    axes.set_xticks(range(6))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if name != "row":
        axes.set_ylim(-1.9, 1.9)
parts[1].set_xlabel("channel")
