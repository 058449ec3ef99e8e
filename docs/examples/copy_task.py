"""Two recurrent networks learn to repeat a text: through one vector, and with attention.

The encoder reads a text of random letters. The decoder writes it again, letter by letter, from the
encoder's last state alone, or from a mean of all its states that additive attention takes anew for
each letter.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attnspec.reference.additive_attention import additive_attention

LETTERS, WIDTH, EMBEDDED = 8, 32, 16
LONGEST, STEPS, BATCH = 12, 600, 32
START = LETTERS
"""The token before the first letter that is written."""

Weights = Mapping[str, torch.Tensor]


def gru_step(x: torch.Tensor, state: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
    """Return the next state of a gated recurrent unit, on weights like those of `torch.nn.GRU`."""
    from_input = x @ weights[f"{name}.weight_ih"].mT + weights[f"{name}.bias_ih"]
    from_state = state @ weights[f"{name}.weight_hh"].mT + weights[f"{name}.bias_hh"]
    reset_x, update_x, new_x = from_input.chunk(3, dim=-1)
    reset_h, update_h, new_h = from_state.chunk(3, dim=-1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return update * state + (1 - update) * new


def encode(texts: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Return the state after each letter, (batch, length, WIDTH)."""
    states = [texts.new_zeros(len(texts), WIDTH, dtype=weights["embedding"].dtype)]
    for letters in texts.T:
        states.append(gru_step(weights["embedding"][letters], states[-1], weights, "encoder"))
    return torch.stack(states[1:], dim=1)


@dataclass(frozen=True)
class Written:
    """What a decoder writes.

    Attributes:
        logits: of each letter, (batch, length, LETTERS).
        contexts: the vector that it read before each letter, (batch, length, WIDTH).
    """

    logits: torch.Tensor
    contexts: torch.Tensor

    @property
    def letters(self) -> torch.Tensor:
        """The letter with the largest logit at each place."""
        return self.logits.argmax(dim=-1)


def write(
    texts: torch.Tensor,
    weights: Weights,
    *,
    has_attention: bool,
    is_given: bool = False,
    values: torch.Tensor | None = None,
) -> Written:
    """Write a text again.

    Args:
        texts: (batch, length).
        weights: of both networks.
        has_attention: whether the decoder reads all states, or the last one.
        is_given: whether each step is told the right letter before it (teacher forcing); it reads
            what it wrote itself otherwise.
        values: what is averaged instead of the states; one-hot vectors show the weights.
    """
    states = encode(texts, weights)
    state, last = states[:, -1], torch.full((len(texts),), START)
    logits, contexts = [], []
    for place in range(texts.shape[1]):
        context = shown = states[:, -1]
        if has_attention:
            names = ("attention.query", "attention.key", "attention.score")
            network = [weights[name] for name in names]
            query = state[:, None]
            bias = weights["attention.bias"]
            context = additive_attention(query, states, states, *network, bias=bias)[:, 0]
            if values is not None:
                shown = additive_attention(query, states, values, *network, bias=bias)[:, 0]
        read = torch.cat([weights["embedding"][last], context], dim=-1)
        state = gru_step(read, state, weights, "decoder")
        # without attention the context is the same at every step
        logits.append(torch.cat([state, context], dim=-1) @ weights["output"].mT)
        contexts.append(context if values is None else shown)
        last = texts[:, place] if is_given else logits[-1].argmax(dim=-1)
    return Written(torch.stack(logits, dim=1), torch.stack(contexts, dim=1))


def first_weights() -> dict[str, torch.Tensor]:
    """Draw weights like those with which torch's layers begin."""
    draws = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return (2 * torch.rand(*shape, generator=draws) - 1) * WIDTH**-0.5

    weights = {"embedding": torch.randn(LETTERS + 1, EMBEDDED, generator=draws)}
    for name, width in (("encoder", EMBEDDED), ("decoder", EMBEDDED + WIDTH)):
        weights[f"{name}.weight_ih"] = uniform(3 * WIDTH, width)
        weights[f"{name}.weight_hh"] = uniform(3 * WIDTH, WIDTH)
        weights[f"{name}.bias_ih"] = uniform(3 * WIDTH)
        weights[f"{name}.bias_hh"] = uniform(3 * WIDTH)
    weights["attention.query"] = uniform(WIDTH, WIDTH)
    weights["attention.key"] = uniform(WIDTH, WIDTH)
    weights["attention.bias"] = uniform(WIDTH)
    weights["attention.score"] = torch.randn(WIDTH, generator=draws) * WIDTH**-0.5
    weights["output"] = uniform(LETTERS, 2 * WIDTH)
    return {name: weight.requires_grad_() for name, weight in weights.items()}


@functools.cache
@torch.enable_grad()
def trained(*, has_attention: bool) -> dict[str, torch.Tensor]:
    """Train on texts of up to 12 letters, once in a process: ten to twenty seconds of one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    weights = first_weights()
    optimizer = torch.optim.Adam(weights.values(), lr=0.005)
    for _ in range(STEPS):
        length = int(torch.randint(1, LONGEST + 1, (), generator=draws))
        texts = torch.randint(0, LETTERS, (BATCH, length), generator=draws)
        logits = write(texts, weights, has_attention=has_attention, is_given=True).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), texts.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return {name: weight.detach() for name, weight in weights.items()}


@torch.no_grad()
def accuracy(length: int, *, has_attention: bool) -> float:
    """Return the share of letters that are repeated, of 256 new texts of a length."""
    texts = torch.randint(0, LETTERS, (256, length), generator=torch.Generator().manual_seed(1))
    written = write(texts, trained(has_attention=has_attention), has_attention=has_attention)
    return float((written.letters == texts).double().mean())


@torch.no_grad()
def alignment(texts: torch.Tensor) -> torch.Tensor:
    """Return the attention weights of each written letter, (batch, written, read)."""
    places = torch.eye(texts.shape[1]).expand(len(texts), -1, -1)
    weights = trained(has_attention=True)
    return write(texts, weights, has_attention=True, values=places).contexts
