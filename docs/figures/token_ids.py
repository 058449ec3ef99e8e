"""A text cut into pieces, merged to tokens and replaced by ids: by the tokenizer of the pages."""

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, INK, arrow, box, canvas

from attnspec.conformance.text.byte_pair import BytePairTokenizer
from attnspec.conformance.text.vocabularies import vocabulary

tokenizer = BytePairTokenizer(vocabulary("trained"))
TEXT = "the cat is here"

figure, axes = plt.subplots(figsize=(3.7, 2.3), layout="constrained")
canvas(axes, len(TEXT) + 1.6, 7.4)
names = {6.6: "pieces", 4.6: "bytes", 2.6: "tokens", 0.7: "ids"}
for y, name in names.items():
    axes.text(len(TEXT) + 1.7, y, name, ha="right", va="center", fontsize=8, style="italic")
x = 0.0
for piece in tokenizer.pieces(TEXT):
    box(axes, (x + len(piece) / 2, 6.6), "", width=len(piece) - 0.15, height=1.1, colour=INK)
    start = x
    for token in tokenizer.encode(piece):
        shown = tokenizer.decode([token])
        middle = x + len(shown) / 2
        size = {"width": len(shown) - 0.15, "height": 1.1}
        box(axes, (middle, 2.6), "", colour=BLUE, **size)
        axes.text(middle, 0.7, str(token), ha="center", va="center", fontsize=8, color=GREEN)
        for place, letter in enumerate(shown):
            for y in (6.6, 4.6, 2.6):
                mark = letter if letter != " " else "" if y == 6.6 else "Ġ"
                axes.text(x + place + 0.5, y, mark, ha="center", va="center", fontsize=9)
        arrow(axes, (middle, 2.0), (middle, 1.15))
        x += len(shown)
    for y in (6.0, 4.1):
        arrow(axes, ((start + x) / 2, y), ((start + x) / 2, y - 0.85))
