"""The loss of models of one and two layers while they learn that words come again."""

import math

import matplotlib.pyplot as plt
from drawing import BLUE, RED
from repeated_words import WORDS, trained

figure, axes = plt.subplots(figsize=(3.7, 2.4), layout="constrained")
axes.axhline(math.log(len(WORDS)), color="#999999", lw=1, ls=":")
axes.annotate(
    "all words alike: ln 20",
    (20, math.log(len(WORDS))),
    (14, 4),
    textcoords="offset points",
    fontsize=8,
)
for layers, look in ((1, {"color": RED, "ls": "--"}), (2, {"color": BLUE})):
    losses = trained(layers).losses
    means = [sum(losses[at : at + 10]) / 10 for at in range(0, len(losses), 10)]
    axes.plot(range(5, len(losses), 10), means, **look)
    name, place = ("one layer", (420, 2.35)) if layers == 1 else ("two layers", (380, 1.3))
    axes.text(*place, name, color=look["color"], fontsize=8)
axes.set_ylim(0, 3.8)
axes.set_xlabel("training step")
axes.set_ylabel("loss")
axes.spines[["top", "right"]].set_visible(False)
