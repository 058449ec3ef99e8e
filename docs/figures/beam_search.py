"""The tree of a beam search: the texts that one beam and two beams keep."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.beam_search import beam_search

TREE = {(): [0.0, 0.6, 0.4], (1,): [0.3, 0.35, 0.35], (2,): [1.0, 0.0, 0.0]}
LOOKS = {1: ("#d1495b", "one beam (greedy)"), 2: ("#2a78b5", "two beams")}


def best(beams: int) -> tuple[int, ...]:
    """The tokens of the best hypothesis."""

    def next_logits(ids: list[int]) -> torch.Tensor:
        return torch.tensor(TREE[tuple(ids[1:])], dtype=torch.float64).log()

    search = {"max_new_tokens": 2, "beams": beams, "length_penalty": 0.0}
    return beam_search(next_logits, [0], **search)[0].tokens


texts = [
    (*prefix, token)
    for prefix, row in TREE.items()
    for token, probability in enumerate(row)
    if probability > 0
]
leaves = sorted(text for text in texts if len(text) == 2)
height = {leaf: -float(place) for place, leaf in enumerate(leaves)}
for text in sorted(TREE, key=len, reverse=True):
    below = [height[each] for each in texts if each[:-1] == text]
    height[text] = sum(below) / len(below)
chosen = {beams: best(beams) for beams in LOOKS}

figure, axes = plt.subplots(figsize=(3.8, 3.2), layout="constrained")
for text in texts:
    total = 1.0
    for place, token in enumerate(text):
        total *= TREE[text[:place]][token]
    ways = [beams for beams, tokens in chosen.items() if tokens[: len(text)] == text]
    color = LOOKS[ways[0]][0] if ways else "#888888"
    ends = [height[text[:-1]], height[text]]
    axes.plot([len(text) - 1, len(text)], ends, color=color, lw=2.2 if ways else 1)
    axes.annotate(
        f"token {text[-1]}: {TREE[text[:-1]][text[-1]]:g}",
        (len(text) - 0.5, (ends[0] + ends[1]) / 2),
        # above a line that rises, below one that falls, and clear of both if it is level
        (18, 4) if ends[1] == ends[0] else (-12, 11 if ends[1] > ends[0] else -18),
        textcoords="offset points",
        ha="center",
    )
    if len(text) == 2:
        axes.annotate(
            f"p = {total:.2f}", (2, height[text]), (6, -3), textcoords="offset points", color=color
        )
for color, label in LOOKS.values():
    axes.plot([], [], color=color, lw=2.2, label=label)
axes.legend(frameon=False, loc="upper left")
axes.set_xlim(-0.1, 2.4)
axes.set_ylim(min(height.values()) - 0.4, 0.6)
axes.axis("off")
