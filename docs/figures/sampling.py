"""The probabilities of the next word under temperature, top-k and top-p."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREY
from toy_sentences import CONFIG, WORDS, encode, pretrained

from attnspec.reference.generation import next_token_probabilities
from attnspec.reference.model import build

TEXT = ". the"
logits = build(CONFIG, pretrained().weights)(torch.tensor([encode(TEXT)]))[0, -1].double()
shown = logits.topk(8).indices
WAYS = {
    "the model": {},
    "temperature 0.3": {"temperature": 0.3},
    "temperature 3": {"temperature": 3.0},
    "top-k 3": {"top_k": 3},
    "top-p 0.7": {"top_p": 0.7},
}
figure, grid = plt.subplots(len(WAYS), 1, figsize=(3.7, 4.3), sharex=True, layout="constrained")
for axes, (name, settings) in zip(grid, WAYS.items(), strict=True):
    shares = next_token_probabilities(logits, **settings)[shown].tolist()
    axes.bar(range(len(shown)), shares, color=BLUE)
    for place, share in enumerate(shares):
        text = f"{share:.2f}" if share else "0"
        axes.annotate(
            text, (place, share), (0, 2), textcoords="offset points", ha="center", fontsize=7.5
        )
    axes.set_title(name, fontsize=9, loc="left", pad=3)
    axes.set_ylim(0, max(shares) * 1.35)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
grid[-1].set_xticks(range(len(shown)), [WORDS[index] for index in shown], rotation=40)
