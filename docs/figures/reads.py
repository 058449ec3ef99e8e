"""Positions whose result changes if one token does: of a decoder, and of an encoder."""

import matplotlib.pyplot as plt
import torch
from drawing import cells

from attnspec.conformance.models.case import draw_parameters
from attnspec.conformance.operators.bert.case import BertCase
from attnspec.reference.encoder import build as build_encoder
from attnspec.reference.model import build as build_decoder
from attnspec.spec import GPT2Config

LENGTH = 6
ids = torch.tensor([[1, 4, 2, 6, 3, 5]])
case = BertCase(layers=1, heads=2, vocab=8, positions=LENGTH, length=LENGTH, seed=1)
config = GPT2Config(vocab_size=8, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2)
decoder = build_decoder(config, draw_parameters(config, seed=1, spread=0.3, dtype=torch.float64))
encoder = build_encoder(case.config, case.draw_parameters())

figure, axes = plt.subplots(1, 2, figsize=(3.7, 2.1), layout="constrained")
names = [str(place) for place in range(LENGTH)]
for place, (model, title) in enumerate(((decoder, "decoder: GPT-2"), (encoder, "encoder: BERT"))):
    moved = torch.zeros(LENGTH, LENGTH)
    for token in range(LENGTH):
        changed = ids.clone()
        changed[0, token] = 7
        moved[:, token] = ((model(changed) - model(ids))[0].abs().amax(-1) > 1e-9).float()
    cells(axes[place], moved, title=title, rows=names, columns=names, limit=1.6)
axes[0].set_ylabel("position that changes", fontsize=8)
figure.supxlabel("token that is changed", fontsize=8)
