"""The probabilities of the next word, read from the residual stream after each stage."""

import matplotlib.pyplot as plt
import torch
from drawing import cells
from toy_sentences import CONFIG, WORDS, encode, pretrained

from attnspec.reference.generation import next_token_probabilities
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.model import build

TEXT = ". the bird eats"
weights = {name: each.double() for name, each in pretrained().weights.items()}
_, states = build(CONFIG, weights)(torch.tensor([encode(TEXT)]), output_hidden_states=True)
gain, shift = weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]
rows = [layer_norm(x, gain, shift, epsilon=CONFIG.layer_norm_epsilon) for x in states[:-1]]
table = weights["transformer.wte.weight"]
shares = torch.stack(
    [next_token_probabilities(row[0, -1] @ table.T) for row in [*rows, states[-1]]]
)
shown = shares.amax(dim=0).topk(7).indices.sort().values

figure, axes = plt.subplots(figsize=(3.7, 2.1), layout="constrained")
names = ["embedding", *(f"block {layer}" for layer in range(CONFIG.n_layer))]
words = [WORDS[index] for index in shown]
cells(axes, shares[:, shown], rows=names, columns=words, form=".2f", limit=1, size=7.5)
axes.set_title(f"next word after “{TEXT.removeprefix('. ')}”", fontsize=9)
