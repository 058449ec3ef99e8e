"""A GPT-2 of two layers that learns one task: at a word that occurred before, predict the next.

A text is 5 to 8 different words in random order, and then again some of them in the same order,
from a random one on. Only attention can solve it: every text has its own order.
"""

import functools
import math
from dataclasses import dataclass

import torch

from attnspec.conformance.models.case import draw_parameters
from attnspec.reference.model import build
from attnspec.spec import GPT2Config

WORDS = [
    *("ant", "bear", "cat", "dog", "eel", "fox", "goat", "hen", "ibis", "jay"),
    *("kid", "lamb", "mole", "newt", "owl", "pig", "quail", "rat", "seal", "toad"),
]
LENGTH, WIDTH = 16, 32
STEPS, BATCH = 500, 64


@dataclass(frozen=True)
class Trained:
    """A model after training.

    Attributes:
        config: its sizes.
        weights: its parameters.
        losses: the loss of each step, over the words that can be predicted.
    """

    config: GPT2Config
    weights: dict[str, torch.Tensor]
    losses: list[float]


def texts(count: int, draws: torch.Generator) -> torch.Tensor:
    """Return texts of 16 words, (count, length)."""
    order = torch.rand(count, len(WORDS), generator=draws).argsort(dim=-1)
    new = torch.randint(5, 9, (count, 1), generator=draws)
    first = (torch.rand(count, 1, generator=draws) * (new - 2)).long()
    place = torch.arange(LENGTH).expand(count, LENGTH)
    again = first + (place - new) % (new - first)
    return order.gather(1, torch.where(place < new, place, again))


def seen_before(ids: torch.Tensor) -> torch.Tensor:
    """Mark the words that occurred before in their text, all but the last word."""
    equal = ids[:, :, None] == ids[:, None]
    return equal.tril(-1).any(dim=-1)[:, :-1]


def first_parameters(config: GPT2Config) -> dict[str, torch.Tensor]:
    """Draw parameters from which training is quick.

    Positions begin as sines, and the maps of queries and keys begin equal, so that attention begins
    by reading equal rows. Training changes all of them.
    """
    weights = draw_parameters(config, seed=0, spread=0.1, embedding_spread=0.5, dtype=torch.float32)
    angles = torch.arange(LENGTH)[:, None] * torch.exp(
        torch.arange(0, WIDTH, 2) * (-math.log(50) / WIDTH)
    )
    weights["transformer.wpe.weight"] = torch.cat([angles.sin(), angles.cos()], dim=-1)
    for layer in range(config.n_layer):
        projection = weights[f"transformer.h.{layer}.attn.c_attn.weight"]
        projection[:, :WIDTH] *= 1.2
        projection[:, WIDTH : 2 * WIDTH] = projection[:, :WIDTH]
    return {name: weight.requires_grad_() for name, weight in weights.items()}


@functools.cache
def trained(layers: int = 2) -> Trained:
    """Train a model, once in a process: five seconds of one core."""
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=layers,
        n_head=2,
        n_inner=WIDTH,
    )
    # A second thread gains nothing at this size.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    weights = first_parameters(config)
    model = build(config, weights, attention=torch.nn.functional.scaled_dot_product_attention)
    optimizer = torch.optim.Adam(weights.values(), lr=0.005, betas=(0.9, 0.98))
    losses = []
    for _ in range(STEPS):
        ids = texts(BATCH, draws)
        surprises = torch.nn.functional.cross_entropy(
            model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
        )
        loss = surprises[seen_before(ids)].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return Trained(config, {name: weight.detach() for name, weight in weights.items()}, losses)
