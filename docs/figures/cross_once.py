"""Multiplications of one step of a decoder, with keys and values kept or computed again."""

from typing import Any

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, RED
from torch.utils.flop_counter import FlopCounterMode

from attnspec.conformance.mutants.encoder_decoder.mistakes import Recomputed
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase
from attnspec.reference.encoder_decoder import build

case = EncoderDecoderCase(d_model=32, encoder_heads=4, decoder_heads=4, decoder_inner=128)
weights = case.draw_parameters()
lengths = [8, 16, 32, 64, 128]


def operations(model: Any, length: int) -> float:
    """Return the operations of the second step, in thousands."""
    _, cache = model.step(torch.zeros(1, 1).long(), model.start(torch.zeros(1, length).long()))
    with FlopCounterMode(display=False) as counter:
        model.step(torch.zeros(1, 1).long(), cache)
    return counter.get_total_flops() / 1000


figure, axes = plt.subplots(figsize=(3.6, 2.2), layout="constrained")
for make, name, colour in ((Recomputed, "computed again", RED), (build, "kept", BLUE)):
    model = make(case.config, weights)
    axes.plot(lengths, [operations(model, length) for length in lengths], "o-", color=colour, ms=3)
    end = lengths[-1], operations(model, lengths[-1]) + 20
    axes.text(*end, name, color=colour, ha="right", va="bottom", fontsize=8)
axes.set_xlabel("tokens of the source", fontsize=8)
axes.set_ylabel("thousand operations of a step", fontsize=8)
axes.tick_params(labelsize=7)
axes.set_ylim(0)
axes.spines[["top", "right"]].set_visible(False)
