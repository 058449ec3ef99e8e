"""The pages of a sequence and its fork, before and after both decode a token, by the engine."""

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, GREY, INK, RED, arrow, canvas
from matplotlib.patches import Rectangle

from attnspec.conformance.operators.paged.engine.player import Player
from attnspec.conformance.operators.paged.engine.serving import Add, Decode, Fork, Serving
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.reference.operator_implementations import PAGED

STEPS = (Add(6), Fork(0), Decode((0, 1)))
SIZE = 4
player = Player(PagedSubject(implementation=PAGED), Serving(steps=STEPS))
states = []
for step in STEPS:
    player.take(step, "a figure shows a wrong result")
    states.append([(list(each.pages), each.length) for each in player.sequences])
states = states[1:]
pages = list(dict.fromkeys(page for state in states for each, _ in state for page in each))

figure, places = plt.subplots(2, 1, figsize=(3.7, 3.9), layout="constrained")
for axes, state, title in zip(
    places, states, ("after the fork", "after both decode a token"), strict=True
):
    canvas(axes, 5 * len(pages), 6)
    axes.set_title(title, fontsize=9)
    middles = {page: 5 * place + 2.3 for place, page in enumerate(pages)}
    for page, middle in middles.items():
        for slot in range(SIZE):
            owners = tuple(
                number
                for number, (own, length) in enumerate(state)
                if page in own and own.index(page) * SIZE + slot < length
            )
            colour = {(0,): BLUE, (1,): RED, (0, 1): GREEN}.get(owners, GREY)
            axes.add_patch(Rectangle((middle - 2 + slot, 0.6), 0.9, 1, color=colour, lw=0))
        axes.text(middle, 0.05, f"page {page}", ha="center", fontsize=7, color=INK)
    for number, (own, _) in enumerate(state):
        x, colour = 5 * len(pages) * (0.25 + 0.5 * number), (BLUE, RED)[number]
        axes.text(x, 4.9, f"sequence {number}", ha="center", fontsize=8, color=colour)
        for page in own:
            arrow(axes, (x, 4.7), (middles[page] + 0.6 * number - 0.3, 1.75), colour=colour)
