"""The weight of the strongest of 64 keys, with the scale and without it."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.implementation import scaled_dot_product_attention as attention

KEYS, QUERIES = 64, 200
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
identity = torch.eye(KEYS, dtype=torch.float64)[None, None]


def weights(d_head: int, scale: float | None) -> torch.Tensor:
    """The weights of standard normal queries over standard normal keys."""
    torch.manual_seed(d_head)
    query = torch.randn(1, 1, QUERIES, d_head, dtype=torch.float64)
    key = torch.randn(1, 1, KEYS, d_head, dtype=torch.float64)
    return attention(query, key, identity, scale=scale)[0, 0]


figure, axes = plt.subplots(figsize=(3.7, 2.8), layout="constrained")
LOOKS = {
    "without the scale": (1.0, {"color": "#d1495b", "marker": "s", "ls": "--"}),
    "with the scale": (None, {"color": "#2a78b5", "marker": "o"}),
}
for label, (scale, look) in LOOKS.items():
    largest = [weights(each, scale).amax(dim=-1).mean().item() for each in WIDTHS]
    axes.plot(WIDTHS, largest, ms=5, **look)
    axes.annotate(label, (WIDTHS[-3], largest[-3]), (0, 9), textcoords="offset points", ha="center")
axes.axhline(1 / KEYS, color="#666666", lw=1, ls=":")
axes.annotate("all 64 keys alike", (1, 1 / KEYS), (0, 3), textcoords="offset points")
axes.set_xscale("log", base=2)
axes.set_xticks(WIDTHS[::2], [str(each) for each in WIDTHS[::2]])
axes.set_ylim(0, 1.08)
axes.set_xlabel("channels of a head")
axes.set_ylabel("mean of the largest weight")
axes.spines[["top", "right"]].set_visible(False)
