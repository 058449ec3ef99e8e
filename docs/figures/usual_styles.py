"""What the usual styles of testing catch and reject, beside the laws: from the stored matrix."""

from pathlib import Path

import matplotlib.pyplot as plt

from attnspec.conformance.kills import CORRECT
from attnspec.conformance.kills_report import ATTENTION, Matrix, styles

matrix = Matrix.read(Path("results/mutants.jsonl"))
wrong, right = matrix.of(ATTENTION), matrix.of(CORRECT)
judges = styles(matrix)

figure, axes = plt.subplots(figsize=(7, 0.5 + 0.55 * len(judges)))
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
    shares = [sum(map(judge, some)) / max(1, len(some)) for judge in judges.values()]
    places = [row + shift for row in range(len(judges))]
    axes.barh(places, shares, 0.34, label=label, **look)
    for share, place in zip(shares, places, strict=True):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{share:.0%}", (share, place), **beside)
axes.set_yticks(range(len(judges)), list(judges))
axes.invert_yaxis()
axes.set_xlim(0, 1.12)
axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, frameon=False)
figure.tight_layout()
