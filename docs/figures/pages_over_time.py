"""The owner of each page in each step, while four texts are generated through one pool."""

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, GREEN, GREY, INK, RED, canvas
from matplotlib.patches import Rectangle

from attnspec.reference.paged_generation import PagedCache, generate_together
from attnspec.reference.parameters import parameter_shapes
from attnspec.spec import GPT2Config

CONFIG = GPT2Config(vocab_size=23, n_positions=32, n_embd=8, n_layer=2, n_head=2)
PAGES, COLOURS = 5, (BLUE, RED, GREEN, INK)
source = torch.Generator().manual_seed(0)
weights = {
    name: torch.randn(shape, dtype=torch.float64, generator=source)
    for name, shape in parameter_shapes(CONFIG).items()
}
steps: list[dict[int, int]] = []


def keep(cache: PagedCache) -> None:
    """Keep the owner of each page."""
    steps.append({page: text for text, pages in cache.tables.items() for page in pages})


prompts = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17]]
generate_together(
    prompts, weights, CONFIG, max_new_tokens=5, page_size=4, pages=PAGES, on_step=keep
)

figure, axes = plt.subplots(figsize=(3.7, 1.9), layout="constrained")
canvas(axes, len(steps) + 1.6, PAGES + 1.2)
for column, owners in enumerate(steps):
    for page in range(PAGES):
        colour = COLOURS[owners[page]] if page in owners else GREY
        axes.add_patch(Rectangle((column + 1.5, PAGES - page - 0.1), 0.9, 0.8, color=colour, lw=0))
for page in range(PAGES):
    axes.text(1.35, PAGES - page + 0.3, f"page {page}", ha="right", va="center", fontsize=7)
axes.text(1.5 + len(steps) / 2, 0.35, "steps", ha="center", fontsize=8, color=INK)
