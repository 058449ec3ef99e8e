"""GPT-2 from a text to the next token: its stages, their shapes and their parameters."""

import math

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, INK, RED, arrow, box, canvas

from attnspec.reference.parameters import parameter_shapes
from attnspec.spec import GPT2Config

config = GPT2Config()


def parameters(part: str) -> str:
    """Return how many parameters have a name with this part, in millions or thousands."""
    shapes = parameter_shapes(config).items()
    count = sum(math.prod(shape) for name, shape in shapes if part in name)
    return f"{count / 1e6:.1f} M" if count > 1e6 else f"{count / 1e3:.1f} k"


rows = f"n × {config.n_embd}"
STAGES = [
    ("text", INK, "", ""),
    ("tokens and ids", INK, "n ids", "1"),
    ("embeddings + positions", GREEN, rows, "2"),
    ("LayerNorm, attention", BLUE, rows, "3–7"),
    ("LayerNorm, MLP", RED, rows, "8"),
    ("LayerNorm", INK, rows, "9"),
    ("head: logits", GREEN, f"n × {config.vocab_size}", "10"),
    ("next token", INK, "1 id", "11"),
]
HAS = {
    "embeddings + positions": parameters(".wte.") + " + " + parameters(".wpe."),
    "LayerNorm, attention": parameters(".h.0.attn."),
    "LayerNorm, MLP": parameters(".h.0.mlp."),
    "head: logits": "embeddings\nagain",
}

figure, axes = plt.subplots(figsize=(3.7, 5.2), layout="constrained")
canvas(axes, 11, 16.5)
for place, (text, colour, shape, step) in enumerate(STAGES):
    y = 15.5 - 2 * place
    box(axes, (4, y), text, width=5.4, height=1.05, colour=colour)
    if place + 1 < len(STAGES):
        arrow(axes, (4, y - 0.53), (4, y - 1.47))
        axes.text(4.2, y - 1.0, shape, va="center", fontsize=8)
    if text in HAS:
        axes.text(7.0, y - 0.02, HAS[text].replace(" + ", "\n+ "), va="center", fontsize=8)
    axes.text(0.1, y, step, va="center", fontsize=8, color=BLUE, weight="bold")
axes.text(7.0, 15.5, "parameters", va="center", fontsize=8, style="italic")
axes.plot([0.9, 0.9, 8.9, 8.9, 0.9], [10.3, 6.72, 6.72, 10.3, 10.3], ls=":", color=INK, lw=1)
axes.text(9.0, 8.5, f"× {config.n_layer}", va="center", fontsize=11)
# The token is appended, and the model runs again.
axes.plot([4, 4, 10.6, 10.6], [0.97, 0.3, 0.3, 13.5], color=INK, lw=1.1)
arrow(axes, (10.6, 13.5), (6.75, 13.5))
axes.text(0.1, 0.45, "12", fontsize=8, color=BLUE, weight="bold")
axes.text(4.6, 0.45, "append it, and again", fontsize=8)
