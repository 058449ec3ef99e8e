"""At which lengths three mutants of tiled kernels give a wrong result: tiles of 16 keys."""

import matplotlib.pyplot as plt
import torch

from attnspec.conformance import mutants
from attnspec.reference.implementation import scaled_dot_product_attention as reference

TILE, LONGEST = 16, 50
BUGS = {
    "TIL-01": "the empty places of the last tile count",
    "own-tile-partial": "a last tile of 2 to 15 keys is lost",
    "own-tile-sum": "the running sum is not put right",
}
torch.manual_seed(0)
query = torch.randn(1, 1, 4, 8, dtype=torch.float64)
key, value = torch.randn(2, 1, 1, LONGEST, 8, dtype=torch.float64).unbind()

figure, axes = plt.subplots(figsize=(3.7, 2.6), layout="constrained")
for edge in range(TILE, LONGEST + 1, TILE):
    axes.axvline(edge, color="#c4c9d0", lw=1.5, zorder=0)
for row, (identifier, title) in enumerate(BUGS.items()):
    attention = mutants.load()[identifier].subject.attention
    wrong, right = [], []
    for keys in range(1, LONGEST + 1):
        operands = query, key[:, :, :keys], value[:, :, :keys]
        error = (attention(*operands) - reference(*operands)).abs()
        (wrong if error.max() > 1e-9 else right).append(keys)
    axes.plot(wrong, [row] * len(wrong), "s", color="#d1495b", ms=3)
    axes.plot(right, [row] * len(right), "o", mfc="white", color="#2a78b5", ms=3)
    axes.annotate(title, (0.5, row - 0.27))
axes.plot([], [], "s", color="#d1495b", ms=3, label="wrong")
axes.plot([], [], "o", mfc="white", color="#2a78b5", ms=3, label="right")
axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
axes.set_ylim(len(BUGS) - 0.6, -0.65)
axes.set_yticks([])
axes.set_xlim(0, LONGEST + 1)
axes.set_xticks([1, *range(TILE, LONGEST + 1, TILE)])
axes.set_xlabel("number of keys; a line ends each tile")
axes.spines[["top", "right", "left"]].set_visible(False)
