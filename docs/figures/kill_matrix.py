"""Which chapter's laws kill which chapter's mutants of attention: from the stored matrix."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attnspec.conformance import laws, mutants
from attnspec.conformance.evidence.mutation.kill_matrix import ATTENTION, KillMatrix

family = {law.name: law.clauses[0].partition("-")[0] for law in laws.load().values()}
catalogue = mutants.load()
columns: dict[str, list[set[str]]] = {}
for each in KillMatrix.read(Path("results/mutants.jsonl")).of(ATTENTION):
    if each.mutant in catalogue:
        own = family[catalogue[each.mutant].killed_by]
        columns.setdefault(own, []).append({family.get(name, "") for name in each.pinned})

order = [name for name in dict.fromkeys(family.values()) if name in columns]


def share(row: str, column: str) -> float:
    """The share of a chapter's mutants that laws of another chapter kill."""
    return sum(row in killers for killers in columns[column]) / len(columns[column])


shares = np.array([[share(row, column) for column in order] for row in order])

figure, axes = plt.subplots(figsize=(3.8, 4.2), layout="constrained")
axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.2, aspect="auto")
for (row, column), killed in np.ndenumerate(shares):
    if killed:
        look = {"ha": "center", "va": "center", "color": "white" if killed > 0.6 else "#1c2733"}
        axes.annotate(f"{100 * killed:.0f}", (column, row), size=8, **look)
axes.set_yticks(range(len(order)), order)
axes.set_xticks(range(len(order)), [f"{name}\n{len(columns[name])}" for name in order])
axes.xaxis.tick_top()
axes.xaxis.set_label_position("top")
axes.set_xlabel("mutants, by the chapter of the law\nthat each names; and how many")
axes.set_ylabel("laws, by the chapter of their clause")
axes.tick_params(length=0, labelsize=8)
axes.spines[:].set_visible(False)
