"""Which key/value head each query head reads: multi-head, grouped-query, multi-query attention."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREEN, box, canvas

from attnspec.reference.heads import repeat_kv

HEADS = 8
WAYS = {"multi-head": 8, "grouped-query": 2, "multi-query": 1}

figure, axes = plt.subplots(figsize=(3.7, 3.3), layout="constrained")
canvas(axes, 12.6, 10.4)
for row, (name, kv_heads) in enumerate(WAYS.items()):
    top = 9.7 - 3.4 * row
    numbers = torch.arange(kv_heads).reshape(1, kv_heads, 1, 1)
    readers = repeat_kv(numbers, HEADS).flatten().tolist()
    width = HEADS / kv_heads
    for head, shared in enumerate(readers):
        place = (shared + 0.5) * width
        axes.plot([head + 0.5, place], [top - 0.42, top - 1.28], color="#999999", lw=1)
        box(axes, (head + 0.5, top), f"q{head}", width=0.8, height=0.8, colour=BLUE, size=8)
    for shared in range(kv_heads):
        middle = ((shared + 0.5) * width, top - 1.7)
        box(axes, middle, f"kv{shared}", width=0.85, height=0.8, colour=GREEN, size=8)
    axes.text(8.3, top, name, va="center", fontsize=9)
    count = "1 head" if kv_heads == 1 else f"{kv_heads} heads"
    axes.text(8.3, top - 1.0, f"{count} of k, v", va="center", fontsize=8)
    axes.text(8.3, top - 1.8, f"cache: {100 * kv_heads / HEADS:g} %", va="center", fontsize=8)
