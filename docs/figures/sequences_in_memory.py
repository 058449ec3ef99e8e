"""Three sequences in a padded batch, in a pack and in pages, by the reference."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREEN, GREY, RED
from matplotlib.colors import ListedColormap

from attnspec.reference.packed import pack
from attnspec.reference.paged import write_pages

LENGTHS, PAGE_SIZE = (5, 2, 7), 4
TABLE = torch.tensor([[2, 0], [4, -1], [1, 3]])
# the token of a sequence is its number and its place: 1.0 to 1.4, 2.0 and 2.1, 3.0 to 3.6
tokens = [(1 + b + torch.arange(n) / 10).view(n, 1, 1) for b, n in enumerate(LENGTHS)]
padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)[..., 0, 0]
packed, offsets, _ = pack(tokens)
pool = torch.zeros(6, PAGE_SIZE, 1, 1)
for row, sequence in zip(TABLE, tokens, strict=True):
    write_pages(pool, row, 0, sequence)

forms = {
    f"padded: {padded.numel()} slots": (padded, "sequence"),
    f"packed: {len(packed)} slots, offsets {', '.join(map(str, offsets.tolist()))}": (
        packed[None, :, 0, 0],
        "",
    ),
    f"paged: {int((TABLE >= 0).sum()) * PAGE_SIZE} slots of {pool[..., 0, 0].numel()}": (
        pool[..., 0, 0].T,
        "slot",
    ),
}
figure, places = plt.subplots(
    3, 1, figsize=(3.7, 4.6), layout="constrained", height_ratios=[3, 1, 4]
)
colours = ListedColormap([GREY, BLUE, RED, GREEN])
for axes, (title, (slots, name)) in zip(places, forms.items(), strict=True):
    axes.pcolormesh(slots.floor(), cmap=colours, vmin=0, vmax=3, edgecolors="white", lw=1)
    for row, column in slots.nonzero().tolist():
        place = round(float(slots[row, column]) % 1 * 10)
        axes.text(
            column + 0.5, row + 0.5, str(place), ha="center", va="center", color="white", fontsize=8
        )
    axes.set_title(title, fontsize=9)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(name, fontsize=8)
    axes.spines[:].set_visible(False)
places[2].set_xticks([n + 0.5 for n in range(6)], [f"page {n}" for n in range(6)], fontsize=7)
places[2].tick_params(length=0)
