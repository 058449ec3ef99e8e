"""Running maximum, sum and output of one row, tile by tile, until they give the result."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREY, INK, RED

from attnspec.reference.online_softmax import absorb, empty, safe

TILE = 4
scores = torch.tensor([[0.4, -1.0, 0.9, 0.1, 2.1, 1.2, 0.3, 1.7, 0.2, 1.0, -0.4, 0.8, 3.4, 1.1]])
values = torch.tensor([[0.4], [1.6]]).repeat(7, 1)
running, states = empty(scores, values), []
for start in range(0, scores.shape[-1], TILE):
    running = absorb(running, scores[:, start : start + TILE], values[start : start + TILE])
    states.append([float(each) for each in (running.maximum, running.total, running.out)])
maxima, totals, outs = zip(*states, strict=True)
names = [f"tile {number}" for number in range(1, len(states) + 1)]

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(3.7, 3.6), layout="constrained", height_ratios=(1.2, 1)
)
places = torch.arange(scores.shape[-1])
top.bar(places, scores[0], color=GREY, width=0.7)
ends = [min(TILE * number, len(places)) for number in range(1, len(states) + 1)]
for number, (maximum, end) in enumerate(zip(maxima, ends, strict=True)):
    start = TILE * number
    label = "running maximum" if number == 0 else None
    top.plot([start - 0.5, end - 0.5], [maximum] * 2, color=RED, lw=2, label=label)
    top.axvline(end - 0.5, color=INK, lw=0.6, ls=":")
top.set_xticks([(TILE * n + end - 1) / 2 for n, end in enumerate(ends)], names, fontsize=8)
top.tick_params(axis="x", length=0)
top.set_ylabel("score", fontsize=9)
top.legend(frameon=False, fontsize=8, loc="upper left")

bottom.plot(names, totals, "o-", color=BLUE, ms=4, label="running sum")
bottom.plot(names, outs, "s-", color=RED, ms=4, label="running output")
shares = [out / total for out, total in zip(outs, totals, strict=True)]
bottom.plot(names, shares, "^--", color=INK, ms=4, label="output / sum")
bottom.axhline(float(safe(scores, values)[0]), color=INK, lw=0.6, ls=":")
bottom.tick_params(axis="x", labelsize=8)
bottom.legend(
    frameon=False,
    fontsize=7,
    ncols=3,
    columnspacing=0.8,
    handlelength=1.5,
    loc="lower center",
    bbox_to_anchor=(0.45, 1.0),
)
for axes in (top, bottom):
    axes.spines[["top", "right"]].set_visible(False)
