"""The scores by which six tokens use eight experts, two each."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.experts import router

TOKENS, EXPERTS = 6, 8
numbers = torch.Generator().manual_seed(5)
tokens = torch.randn(TOKENS, 4, generator=numbers, dtype=torch.float64)
weight = torch.randn(EXPERTS, 4, generator=numbers, dtype=torch.float64)
scores, indices = router(tokens, weight, 2)
share = torch.zeros(TOKENS, EXPERTS, dtype=torch.float64).scatter(1, indices, scores)

figure, axes = plt.subplots(figsize=(3.7, 2.6), layout="constrained")
axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
for token, expert in share.nonzero().tolist():
    score = float(share[token, expert])
    colour = "white" if score > 0.6 else "black"
    axes.text(expert, token, f"{score:.2f}", ha="center", va="center", color=colour, fontsize=8)
axes.set_xticks(range(EXPERTS))
axes.set_yticks(range(TOKENS))
axes.set_xlabel("expert")
axes.set_ylabel("token")
axes.spines[:].set_visible(False)
