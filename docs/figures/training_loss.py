"""The loss in pretraining, and in fine-tuning on a small text with and without pretraining."""

import math

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, RED
from toy_sentences import WORDS, fine_tuned, pretrained

figure, (left, right) = plt.subplots(
    1, 2, figsize=(3.8, 2.6), sharey=True, layout="constrained", width_ratios=(5, 4)
)
left.axhline(math.log(len(WORDS)), color="#999999", lw=1, ls=":")
left.annotate(
    "ln 25",
    (300, math.log(len(WORDS))),
    (0, -11),
    textcoords="offset points",
    ha="right",
    fontsize=8,
)
left.plot(pretrained().losses, color=BLUE, lw=1.2)
left.set_title("pretraining", fontsize=9)
right.plot(fine_tuned(from_scratch=True).losses, color=RED, ls="--", label="from scratch")
right.plot(fine_tuned().losses, color=GREEN, label="pretrained")
right.set_title("fine-tuning", fontsize=9)
right.legend(frameon=False, fontsize=8)
left.set_ylim(0)
left.set_ylabel("loss")
for axes in (left, right):
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
