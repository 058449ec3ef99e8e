"""Letters that two trained networks repeat, by length; and the attention of one while it writes."""

import matplotlib.pyplot as plt
import torch
from copy_task import LONGEST, accuracy, alignment
from drawing import BLUE, RED, cells

lengths = [2, 4, 6, 8, 10, 12, 16, 20]
figure, (upper, lower) = plt.subplots(
    2, 1, figsize=(3.7, 5.2), layout="constrained", height_ratios=(1, 1.1)
)
for has_attention, colour, label in (
    (True, BLUE, "attention over all states"),
    (False, RED, "last state alone"),
):
    shares = [accuracy(length, has_attention=has_attention) for length in lengths]
    upper.plot(lengths, shares, "o-", color=colour, ms=4, label=label)
upper.axvspan(LONGEST, lengths[-1], color="#eef0f3", zorder=0)
upper.text(LONGEST + 0.3, 0.03, "longer than\nin training", fontsize=8)
upper.set_xticks(lengths, [str(each) for each in lengths], fontsize=8)
upper.set_ylim(0, 1.03)
upper.set_xlabel("letters of the text")
upper.set_ylabel("share repeated")
upper.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.98))
upper.spines[["top", "right"]].set_visible(False)

text = torch.tensor([[3, 1, 4, 1, 5, 2, 6, 5]])
names = ["abcdefgh"[letter] for letter in text[0]]
cells(
    lower,
    alignment(text)[0],
    title="letter written (down), read (across)",
    rows=names,
    columns=names,
)
