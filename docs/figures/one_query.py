"""Queries, keys and values of three tokens by hand, and what the last query reads."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, INK, RED, cells

from attnspec.reference.implementation import scaled_dot_product_attention as attention

TOKENS = ["the", "cat", "eats"]
x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
maps = {
    "q": torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64),
    "k": torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64),
    "v": torch.tensor([[10.0], [20.0]], dtype=torch.float64),
}
q, k, v = (x @ each for each in maps.values())
identity = torch.eye(3, dtype=torch.float64)[None, None]
weights = attention(q[None, None, 2:], k[None, None], identity, scale=1.0)[0, 0, 0]
out = attention(q[None, None, 2:], k[None, None], v[None, None], scale=1.0).item()

figure = plt.figure(figsize=(3.7, 4.1), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=(2, 3))
top = above.subplots(1, 4, width_ratios=(2, 2, 2, 1))
for axes, (name, values) in zip(top, {"x": x, "q": q, "k": k, "v": v}.items(), strict=True):
    cells(
        axes,
        values,
        title={"x": "x", "v": "x W$_v$"}.get(name, f"{name} = x W$_{name}$"),
        rows=TOKENS if name == "x" else (),
        form=".0f",
        limit=float(values.max()) * 1.5,
    )
plane, bars = below.subplots(1, 2, width_ratios=(3, 2))
for (a, b), token, score in zip(k.tolist(), TOKENS, (k @ q[2]).tolist(), strict=True):
    plane.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "-|>", "color": BLUE})
    plane.text(a + 0.05, b + 0.05, f"k {token}:\nscore {score:.0f}", fontsize=8, color=BLUE)
a, b = q[2].tolist()
plane.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "-|>", "color": RED, "lw": 2})
plane.text(a + 0.05, b, "q eats", fontsize=8, color=RED)
plane.set_xlim(-0.1, 2)
plane.set_ylim(-0.1, 2.2)
plane.set_aspect("equal")
plane.set_xticks([0, 1, 2])
plane.set_yticks([0, 1, 2])
plane.spines[["top", "right"]].set_visible(False)
bars.barh(TOKENS, weights, color=BLUE)
for row, weight in enumerate(weights.tolist()):
    bars.annotate(
        f"{weight:.2f} · {v[row].item():.0f}",
        (0.02, row - 0.42),
        va="bottom",
        fontsize=8,
        color=INK,
    )
bars.invert_yaxis()
bars.set_xlim(0, 1)
bars.set_xticks([])
bars.set_yticks([0, 1, 2], TOKENS, fontsize=8)
bars.set_title("weight · v", fontsize=9)
bars.set_xlabel(f"sum: {out:.2f}", color=RED)
bars.spines[["top", "right", "bottom"]].set_visible(False)
