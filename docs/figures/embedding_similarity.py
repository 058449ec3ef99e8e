"""Cosines between the embeddings of words, after a tiny GPT-2 has been trained on sentences."""

import matplotlib.pyplot as plt
import torch
from drawing import cells
from toy_sentences import ADJECTIVES, FOODS, PLACES, WORDS, pretrained

words = [*FOODS, *FOODS.values(), "eats", "likes", "sees", "hears", *ADJECTIVES, *PLACES]
table = pretrained().weights["transformer.wte.weight"]
rows = (table - table.mean(dim=0))[[WORDS.index(word) for word in words]]
rows = torch.nn.functional.normalize(rows, dim=-1)

figure, axes = plt.subplots(figsize=(3.7, 3.75), layout="constrained")
cells(axes, rows @ rows.T, rows=words, columns=words, signed=True, limit=1)
figure.colorbar(
    axes.collections[0], ax=axes, label="cosine", shrink=0.55, aspect=25, location="bottom"
).set_ticks([-1, 0, 1])
