"""The shares that baselines and laws reject: from the stored matrix."""

from pathlib import Path

import matplotlib.pyplot as plt

from attnspec.conformance.evidence.mutation.kill_matrix import (
    ATTENTION,
    KillMatrix,
    testing_methods,
)
from attnspec.conformance.evidence.mutation.kills import CORRECT

matrix = KillMatrix.read(Path("results/mutants.jsonl"))
wrong, right = matrix.of(ATTENTION), matrix.of(CORRECT)
methods = testing_methods(matrix)

figure, axes = plt.subplots(figsize=(3.8, 0.7 + 0.62 * len(methods)), layout="constrained")
BARS = {
    "wrong ones rejected": (wrong, -0.05, {"color": "#2a78b5"}),
    "correct ones rejected": (
        right,
        0.23,
        {"color": "#d1495b", "hatch": "//", "edgecolor": "white"},
    ),
}
for label, (some, shift, look) in BARS.items():
    shares = [sum(map(rejects, some)) / max(1, len(some)) for rejects in methods.values()]
    places = [row + shift for row in range(len(methods))]
    axes.barh(places, shares, 0.26, label=label, **look)
    for share, place in zip(shares, places, strict=True):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "size": 8}
        axes.annotate(f"{share:.0%}", (share, place), **beside)
for row, method in enumerate(methods):
    # above its bars, since beside them it would take half of a phone's width
    axes.annotate(method, (0, row - 0.33), va="center", size=8.5)
axes.set_yticks([])
axes.set_ylim(len(methods) - 0.55, -0.6)
axes.set_xlim(0, 1.12)
axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
