"""Scores, the causal mask, attention weights: the numbers of the page's example."""

import matplotlib.pyplot as plt
import torch
from drawing import cells

from attnspec.reference.attention import score_keys, softmax
from attnspec.reference.masks import causal

torch.manual_seed(0)
q, k, _ = torch.randn(3, 1, 1, 4, 4, dtype=torch.float64).unbind()
visible = causal(4, 4)
scores = score_keys(q, k, visible, scale=0.5)[0, 0]
weights, _ = softmax(scores, visible)

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(3.7, 1.9), layout="constrained")
names = ["0", "1", "2", "3"]
look = {"form": ".1f", "size": 6.5, "columns": names}
cells(left, scores, title="scores", signed=True, rows=names, **look)
cells(middle, scores, title="grey: −∞", signed=True, visible=visible, **look)
cells(right, weights, title="weights", limit=1, visible=visible, **look)
left.set_ylabel("query")
left.set_xlabel("key")
