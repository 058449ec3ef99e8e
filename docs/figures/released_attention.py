"""What "it" reads in four sentences, in the head of the released GPT-2 that reads nouns most."""

import matplotlib.pyplot as plt
from drawing import BLUE, RED
from pronouns import noun_head, readings
from released import folder

found = readings(folder() or "gpt2")
layer, head = noun_head(found)
figure, grid = plt.subplots(2, 2, figsize=(3.8, 4.6), sharex=True, layout="constrained")
for axes, reading in zip(grid.flat, found, strict=True):
    places = range(len(reading.tokens))
    colours = [RED if place in reading.noun else BLUE for place in places]
    axes.barh(places, reading.weights[layer, head].tolist(), color=colours)
    axes.set_yticks(places, [token.strip() for token in reading.tokens], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
figure.supxlabel(f"weight at the last token, layer {layer}, head {head}", fontsize=9)
