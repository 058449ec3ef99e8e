"""Attention as two products of matrices: the numbers of the page's example."""

import matplotlib.pyplot as plt
import torch
from drawing import cells

from attnspec.reference.attention import mix_values, score_keys, softmax

torch.manual_seed(0)
q = torch.randn(1, 1, 3, 4, dtype=torch.float64)[0, 0]
k = torch.randn(1, 1, 5, 4, dtype=torch.float64)[0, 0]
v = torch.randn(1, 1, 5, 2, dtype=torch.float64)[0, 0]
visible = torch.ones(3, 5, dtype=torch.bool)
scores = score_keys(q, k, visible, scale=0.5)
weights, _ = softmax(scores, visible)
out = mix_values(weights, v, visible)

figure = plt.figure(figsize=(3.7, 3.5), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=(5, 5.6))
for part, columns, signs in (
    (above, {"Q": q, "Kᵀ": k.T, "scores s Q Kᵀ": scores}, "·="),
    (below, {"weights": weights, "V": v, "O": out}, "·="),
):
    widths = [values.shape[1] for values in columns.values()]
    for axes, (name, values), sign in zip(
        part.subplots(1, 3, width_ratios=widths), columns.items(), f"{signs} ", strict=True
    ):
        height, width = values.shape
        signed = name != "weights"
        small = name in ("weights", "O")
        cells(
            axes,
            values,
            title=f"{name}\n{height} × {width}",
            signed=signed,
            form=".1f" if small else "",
            size=7.5,
        )
        axes.text(width + 0.35, height / 2, sign, va="center", fontsize=13)
        if name == "weights":
            axes.set_xlabel("softmax of each row:\nsum 1", fontsize=8)
