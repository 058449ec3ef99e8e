"""Saturation of the softmax: the gradient that reaches the scores, with the scale and without."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, RED

from attnspec.reference.attention import score_keys, softmax

KEYS, QUERIES = 64, 200
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
visible = torch.ones(QUERIES, KEYS, dtype=torch.bool)


def gradient(d_head: int, scale: float) -> float:
    """Return the mean gradient of the weights' inner product with random numbers."""
    draws = torch.Generator().manual_seed(d_head)
    query, key, towards = (
        torch.randn(*shape, dtype=torch.float64, generator=draws)
        for shape in ((QUERIES, d_head), (KEYS, d_head), (QUERIES, KEYS))
    )
    scores = score_keys(query, key, visible, scale=scale).requires_grad_()
    weights, _ = softmax(scores, visible)
    (result,) = torch.autograd.grad((weights * towards).sum(), scores)
    return result.norm(dim=-1).median().item()


figure, axes = plt.subplots(figsize=(3.7, 2.7), layout="constrained")
LOOKS = {
    "without the scale": (lambda d: 1.0, {"color": RED, "marker": "s", "ls": "--"}),
    "with the scale": (lambda d: d**-0.5, {"color": BLUE, "marker": "o"}),
}
for label, (scale, look) in LOOKS.items():
    sizes = [gradient(each, scale(each)) for each in WIDTHS]
    axes.plot(WIDTHS, sizes, ms=4, label=label, **look)
axes.set_xscale("log", base=2)
axes.set_xticks(WIDTHS[::2], [str(each) for each in WIDTHS[::2]])
axes.set_yscale("log")
axes.set_xlabel("channels of a head")
axes.set_ylabel("gradient at the scores (median)")
axes.legend(frameon=False, loc="lower left")
axes.spines[["top", "right"]].set_visible(False)
