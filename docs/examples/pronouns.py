"""The head of a GPT-2 that reads the noun to which the pronoun "it" refers."""

from dataclasses import dataclass
from pathlib import Path

import torch
from attention_patterns import attention_patterns

from attnspec.reference.tokenizer import Tokenizer
from attnspec.reference.weights import load

SENTENCES = {
    "The animal did not cross the street because it": "animal",
    "Anna did not buy the car because it": "car",
    "The children swam in the lake because it": "lake",
    "He opened the letter as soon as it": "letter",
}
"""Texts that end with "it", and the noun to which it refers."""


@dataclass(frozen=True)
class Reading:
    """The attention at the last token of a text.

    Attributes:
        tokens: the tokens as text.
        noun: the places of the noun's tokens.
        weights: of the last query, (layers, heads, keys).
    """

    tokens: list[str]
    noun: list[int]
    weights: torch.Tensor


def readings(folder: str) -> list[Reading]:
    """Return the attention of a checkpoint at the end of each sentence."""
    config, parameters = load(folder, dtype=torch.float32)
    vocabulary = [Path(folder, name) for name in ("vocab.json", "merges.txt")]
    own = all(path.is_file() for path in vocabulary)
    tokenizer = Tokenizer.from_files(*vocabulary) if own else Tokenizer.gpt2()
    found = []
    for text, noun in SENTENCES.items():
        ids = tokenizer.encode(text)
        tokens = [tokenizer.decode([token]) for token in ids]
        ends = torch.tensor([len(token) for token in tokens]).cumsum(0).tolist()
        start, end = text.index(noun), text.index(noun) + len(noun)
        places = [
            place
            for place, (token, last) in enumerate(zip(tokens, ends, strict=True))
            if last - len(token) < end and start < last
        ]
        patterns = attention_patterns(config, parameters, ids)
        found.append(Reading(tokens, places, patterns[:, :, -1]))
    return found


def noun_head(found: list[Reading]) -> tuple[int, int]:
    """Return the layer and head whose weights of the nouns have the largest mean."""
    shares = [reading.weights[:, :, reading.noun].sum(dim=-1) for reading in found]
    layer, head = divmod(int(torch.stack(shares).mean(dim=0).argmax()), shares[0].shape[1])
    return layer, head
