"""Which law kills which mutant of attention, by pinned cases alone: from the stored matrix."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import attnspec.conformance.laws  # noqa: F401  (importing registers them)
from attnspec.conformance.kills_report import ATTENTION, Matrix
from attnspec.conformance.law import registered

matrix = Matrix.read(Path("results/mutants.jsonl"))
laws = matrix.laws[ATTENTION]
family = {law.name: law.clauses[0].partition("-")[0] for law in registered().values()}
place = {name: number for number, name in enumerate(laws)}
mutants = sorted(
    matrix.of(ATTENTION), key=lambda each: (place.get(each.first, 999), -len(each.pinned))
)
dots = np.zeros((len(laws), len(mutants)))
for column, each in enumerate(mutants):
    for name in each.silent:
        dots[place[name], column] = 0.5
    for name in each.pinned:
        dots[place[name], column] = 1

figure, axes = plt.subplots(figsize=(7, 6))
colours = ListedColormap(["#f2f4f7", "#d5dbe3", "#1f4e79"])
axes.imshow(dots, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=1)
edges = [n for n in range(len(laws)) if n == 0 or family.get(laws[n]) != family.get(laws[n - 1])]
axes.set_yticks(edges, [family.get(laws[n], "") for n in edges])
axes.set_ylabel("laws, by the chapter of their clause")
axes.set_xlabel("planted bugs, by the law that sees them first")
axes.spines[:].set_visible(False)
figure.tight_layout()
