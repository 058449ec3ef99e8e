"""The parameters of the smallest released GPT-2 by part, from the shapes of its checkpoint."""

import math

import matplotlib.pyplot as plt
from drawing import BLUE

from attnspec.reference.parameters import parameter_shapes
from attnspec.spec import GPT2Config

PARTS = {
    "token embeddings": ".wte.",
    "positions": ".wpe.",
    "attention": ".attn.",
    "MLP": ".mlp.",
    "LayerNorm": ".ln_",
}
shapes = parameter_shapes(GPT2Config())
counts = {
    part: sum(math.prod(shape) for name, shape in shapes.items() if mark in name)
    for part, mark in PARTS.items()
}
total = sum(math.prod(shape) for shape in shapes.values())
assert sum(counts.values()) == total

figure, axes = plt.subplots(figsize=(3.7, 2), layout="constrained")
axes.barh(list(counts), list(counts.values()), color=BLUE)
for row, count in enumerate(counts.values()):
    text = f"{count:,} = {count / total:.1%}".replace(",", " ")
    axes.annotate(text, (count, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
axes.invert_yaxis()
axes.set_xlim(0, 1.1e8)
axes.set_xticks([])
axes.tick_params(length=0)
axes.set_xlabel(f"{total:,} parameters".replace(",", " "))
axes.spines[["top", "right", "bottom"]].set_visible(False)
