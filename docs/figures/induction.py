"""The attention of a trained model of two layers on a text whose words come again."""

import matplotlib.pyplot as plt
import torch
from attention_patterns import attention_patterns
from drawing import RED, cells
from repeated_words import WORDS, trained

TEXT = ["cat", "owl", "fox", "hen", "rat", "goat", "owl", "fox", "hen", "rat", "goat", "owl"]
model = trained()
ids = [WORDS.index(word) for word in TEXT]
patterns = attention_patterns(model.config, model.weights, ids)
visible = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()

figure, grid = plt.subplots(2, 2, figsize=(3.8, 4.3), layout="constrained")
for layer, row in enumerate(grid):
    for head, axes in enumerate(row):
        cells(
            axes,
            patterns[layer, head],
            title=f"layer {layer}, head {head}",
            rows=TEXT if head == 0 else (),
            columns=TEXT if layer == 0 else (),
            limit=1,
            visible=visible,
            size=7.5,
        )
        # The word after the earlier occurrence of the same word.
        for query, word in enumerate(ids if layer else []):
            for key in range(1, query + 1):
                if ids[key - 1] == word:
                    axes.add_patch(plt.Rectangle((key, query), 1, 1, fc="none", ec=RED, lw=1.2))
