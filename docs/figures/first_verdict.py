"""The attention pattern of a kernel with a causal mask that is off by one, beside the right one."""

import matplotlib.pyplot as plt
import my_kernels
import torch

from attnspec.conformance.api import check_attention
from attnspec.conformance.report.record import Outcome
from attnspec.reference.implementation import scaled_dot_product_attention as reference

LENGTH = 6
LAW = "a-causal-row-attends-its-prefix"

(record,) = check_attention(
    my_kernels.attention, features=["causal"], dtypes=[torch.float32], laws=[LAW], effort="smoke"
)
assert record.outcome is Outcome.FAILED, "the figure shows a kernel that breaks this law"

torch.manual_seed(3)
query, key = torch.randn(2, 1, 1, LENGTH, 4).unbind()
identity = torch.eye(LENGTH)[None, None]
patterns = {
    "expected": reference(query, key, identity, is_causal=True)[0, 0],
    "got": my_kernels.attention(query, key, identity, is_causal=True)[0, 0],
}

figure, grid = plt.subplots(1, 2, figsize=(3.8, 2.4), layout="constrained")
for axes, (title, weights) in zip(grid, patterns.items(), strict=True):
    shown = weights.masked_fill(weights == 0, torch.nan)
    axes.set_facecolor("#e8eaed")
    drawn = axes.pcolormesh(shown, cmap="viridis_r", vmin=0, vmax=1, edgecolors="white", lw=0.8)
    for place in range(LENGTH):
        corner = place + 0.06, place + 0.06
        axes.add_patch(plt.Rectangle(corner, 0.88, 0.88, fill=False, ec="#d1495b", lw=1.6))
    axes.set_title(title)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xticks([0.5, LENGTH - 0.5], ["0", str(LENGTH - 1)])
    axes.set_yticks([0.5, LENGTH - 0.5], ["0", str(LENGTH - 1)])
    axes.set_xlabel("key")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
grid[0].set_ylabel("query")
figure.colorbar(drawn, ax=grid, label="attention weight", shrink=0.7, aspect=20)
