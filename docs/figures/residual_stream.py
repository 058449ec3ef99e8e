"""The length of the residual stream after each stage, LayerNorm before or after the sums."""

from functools import partial

import matplotlib.pyplot as plt
import torch

from attnspec.reference.activation import gelu_tanh
from attnspec.reference.embedding import embed
from attnspec.reference.heads import multi_head_attention
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.mlp import mlp

LAYERS, HEADS, WIDTH, LENGTH, VOCAB = 6, 4, 64, 32, 100
draws = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    """A linear map that keeps the length of a row about as it is."""
    return torch.randn(shape, generator=draws, dtype=torch.float64) * shape[0] ** -0.5


zeros = partial(torch.zeros, dtype=torch.float64)
attend = partial(scaled_dot_product_attention, is_causal=True)
layers = [
    (
        (drawn(WIDTH, 3 * WIDTH), zeros(3 * WIDTH), drawn(WIDTH, WIDTH), zeros(WIDTH)),
        (drawn(WIDTH, 4 * WIDTH), zeros(4 * WIDTH), drawn(4 * WIDTH, WIDTH), zeros(WIDTH)),
    )
    for _ in range(LAYERS)
]
normalize = partial(layer_norm, weight=zeros(WIDTH) + 1, bias=zeros(WIDTH), epsilon=1e-5)
ids = torch.randint(VOCAB, (1, LENGTH), generator=draws)
start = embed(ids, drawn(VOCAB, WIDTH), drawn(LENGTH, WIDTH))


def lengths(norm_first: bool) -> list[float]:
    """The mean Euclidean length of a row, after the embedding and each branch."""
    x, found = start, [start]
    for attention_weights, mlp_weights in layers:
        for branch in (
            lambda y, w=attention_weights: multi_head_attention(
                y, *w, heads=HEADS, attention=attend
            ),
            lambda y, w=mlp_weights: mlp(y, *w, activation=gelu_tanh),
        ):
            x = x + branch(normalize(x)) if norm_first else normalize(x + branch(x))
            found.append(x)
    return [each.norm(dim=-1).mean().item() for each in found]


figure, axes = plt.subplots(figsize=(3.7, 3.2), layout="constrained")
LOOKS = {
    "before each branch: GPT-2": (True, {"color": "#2a78b5", "marker": "o"}),
    "after each sum: 2017": (False, {"color": "#d1495b", "marker": "s", "ls": "--"}),
}
for label, (norm_first, look) in LOOKS.items():
    axes.plot(lengths(norm_first), ms=4, label=f"LayerNorm {label}", **look)
axes.set_xticks(
    range(2 * LAYERS + 1), ["emb", *(name for _ in layers for name in ("attn", "mlp"))], rotation=90
)
axes.set_ylim(0)
axes.set_ylabel("length of a row of the stream")
axes.legend(frameon=False, loc="upper left", fontsize=8)
axes.spines[["top", "right"]].set_visible(False)
