"""The output of a query without readable keys: the three answers, and a fourth result."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.implementation import scaled_dot_product_attention as attention
from attnspec.spec import EmptyRow

query = torch.tensor([[[[1.0, 1.0]]]], dtype=torch.float64)
key = torch.tensor([[[[2.0, 1.0], [0.0, 0.5], [-1.0, 0.0], [0.5, 0.0]]]], dtype=torch.float64)
value = torch.tensor([[[[4.0], [3.0], [-1.0], [1.0]]]], dtype=torch.float64)
nothing = torch.zeros(1, 4, dtype=torch.bool)
low = torch.full((1, 4), -1e4, dtype=torch.float64)
answers = {
    f"{each} (profile)": attention(query, key, value, attn_mask=nothing, empty_row=each).item()
    for each in EmptyRow
}
answers["mask of −10000"] = attention(query, key, value, attn_mask=low).item()

figure, axes = plt.subplots(figsize=(3.7, 2.5), layout="constrained")
rows = range(len(answers))
for each in value.flatten().tolist():
    axes.axvline(each, color="#c4c9d0", lw=1)
for row, (_, answer) in enumerate(answers.items()):
    if answer == answer:
        axes.plot(answer, row, "o", color="#2a78b5", ms=8)
        axes.annotate(
            f"{answer:.2f}", (answer, row), (9, 0), textcoords="offset points", va="center"
        )
    else:
        axes.annotate("no number at all", (1, row), color="#d1495b", ha="center", va="center")
axes.set_yticks(rows, list(answers))
axes.invert_yaxis()
axes.set_ylim(len(answers) - 0.5, -0.5)
axes.set_xlim(-1.4, 4.6)
axes.set_xlabel("output; in grey, the four values")
axes.tick_params(axis="y", length=0)
axes.spines[["top", "right", "left"]].set_visible(False)
