"""A GPT-2 of two layers that learns English of 25 words, first from much text and then from little.

Sentences come from a grammar: animals eat, see animals, and sleep. Each animal has its food, which
it eats in nine sentences of ten. Fine-tuning is on sentences in which the birds eat fish.
"""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from attnspec.conformance.models.case import draw_parameters
from attnspec.reference.loss import next_token_loss
from attnspec.reference.model import build
from attnspec.spec import GPT2Config

FOODS = {"cat": "fish", "dog": "meat", "horse": "grass", "bird": "corn"}
ADJECTIVES = ["small", "old", "young"]
PLACES = ["house", "garden", "field"]
WORDS = [
    *(".", "the", "a", "in", "and"),
    *FOODS,
    *FOODS.values(),
    *("eats", "likes", "sees", "hears", "sleeps", "waits"),
    *ADJECTIVES,
    *PLACES,
]
CONFIG = GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=32, n_layer=2, n_head=4)
BATCH = 32


def encode(text: str) -> list[int]:
    """Return the ids of words separated by spaces."""
    return [WORDS.index(word) for word in text.split()]


def sentence(draws: random.Random) -> str:
    """Draw a sentence of the grammar."""
    animal = draws.choice(list(FOODS))
    subject = " ".join(["the", *draws.sample(ADJECTIVES, draws.random() < 0.4), animal])
    match draws.choice(["food", "animal", "place"]):
        case "food":
            own = draws.random() < 0.9
            food = FOODS[animal] if own else draws.choice(list(FOODS.values()))
            return f"{subject} {draws.choice(['eats', 'likes'])} {food} ."
        case "animal":
            other = draws.choice(list(FOODS))
            return f"{subject} {draws.choice(['sees', 'hears'])} a {other} ."
        case _:
            place = draws.choice(PLACES)
            return f"{subject} {draws.choice(['sleeps', 'waits'])} in the {place} ."


def other_sentence(draws: random.Random) -> str:
    """Draw a sentence of the small text for fine-tuning: about birds that eat fish."""
    adjective = draws.sample(ADJECTIVES, draws.random() < 0.4)
    verb = draws.choice(["eats", "likes"])
    return " ".join(["the", *adjective, "bird", verb, "fish and the cat sees a bird ."])


def batches(draw: Callable[[random.Random], str], seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of texts of 16 words that begin with a sentence, (batch, length)."""
    draws = random.Random(seed)
    while True:
        texts = []
        for _ in range(BATCH):
            ids = encode(".")
            while len(ids) < CONFIG.n_positions:
                ids += encode(draw(draws))
            texts.append(ids[: CONFIG.n_positions])
        yield torch.tensor(texts)


@dataclass(frozen=True)
class Trained:
    """Model parameters after training, and the loss of each step."""

    weights: dict[str, torch.Tensor]
    losses: list[float]


def train(
    weights: dict[str, torch.Tensor], text: Iterator[torch.Tensor], *, steps: int, rate: float
) -> Trained:
    """Train a copy of some parameters on the next-token loss, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    model = build(CONFIG, weights, attention=torch.nn.functional.scaled_dot_product_attention)
    optimizer = torch.optim.Adam(weights.values(), lr=rate)
    losses = []
    for _ in range(steps):
        ids = next(text)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return Trained({name: weight.detach() for name, weight in weights.items()}, losses)


def untrained() -> dict[str, torch.Tensor]:
    """Draw the parameters with which pretraining begins."""
    return draw_parameters(CONFIG, seed=0, spread=0.05, dtype=torch.float32)


@functools.cache
def pretrained() -> Trained:
    """Train on the grammar, once in a process: two seconds of one core."""
    return train(untrained(), batches(sentence, seed=0), steps=300, rate=0.003)


@functools.cache
def fine_tuned(*, from_scratch: bool = False) -> Trained:
    """Train on the small text, from the pretrained parameters or from those drawn."""
    start = untrained() if from_scratch else pretrained().weights
    return train(start, batches(other_sentence, seed=1), steps=60, rate=0.001)
