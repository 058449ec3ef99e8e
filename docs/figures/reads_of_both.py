"""Target positions whose logits change if a token of the source, or of the target, is replaced."""

import matplotlib.pyplot as plt
import torch
from drawing import cells

from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.reference.encoder_decoder import build

SOURCE, TARGET = 6, 5
case = EncoderDecoderCase(
    decoder_heads=2, encoder_heads=2, vocab=8, source=SOURCE, target=TARGET, seed=2
)
model = build(case.config, case.draw_parameters())
ids = {
    "input_ids": torch.tensor([[1, 4, 2, 6, 3, 5]]),
    "decoder_input_ids": torch.tensor([[0, 5, 1, 3, 2]]),
}
right = model(**ids)[0]

figure, axes = plt.subplots(1, 2, figsize=(3.7, 2.0), layout="constrained")
for place, (name, length, title) in enumerate(
    (("input_ids", SOURCE, "source"), ("decoder_input_ids", TARGET, "target"))
):
    moved = torch.zeros(TARGET, length)
    for token in range(length):
        changed = ids[name].clone()
        changed[0, token] = 7
        logits = model(**{**ids, name: changed})[0]
        moved[:, token] = ((logits - right).abs().amax(-1) > 1e-9).float()
    cells(
        axes[place],
        moved,
        title=title,
        rows=[str(row) for row in range(TARGET)],
        columns=[str(column) for column in range(length)],
        limit=1.6,
    )
axes[0].set_ylabel("target position that changes", fontsize=8)
figure.supxlabel("token that is changed", fontsize=8)
