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

figure, axes = plt.subplots(figsize=(7, 0.5 + 0.55 * len(methods)))
RED = {"color": "#d1495b", "hatch": "//", "edgecolor": "white"}
BARS = {
    "wrong ones rejected": (wrong, -0.18, {"color": "#2a78b5"}),
    "correct ones rejected": (
        right,
        0.18,
        {"color": "#d1495b", "hatch": "//", "edgecolor": "white"},
    ),
}
for label, (some, shift, look) in BARS.items():
    shares = [sum(map(rejects, some)) / max(1, len(some)) for rejects in methods.values()]
    places = [row + shift for row in range(len(methods))]
    axes.barh(places, shares, 0.34, label=label, **look)
    for share, place in zip(shares, places, strict=True):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{share:.0%}", (share, place), **beside)
axes.set_yticks(range(len(methods)), list(methods))
axes.invert_yaxis()
axes.set_xlim(0, 1.12)
axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, frameon=False)
figure.tight_layout()
