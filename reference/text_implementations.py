"""The reference as an implementation of a tokenizer and of a sampler."""

import importlib.util
from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float

from attnspec.reference.beam_search import beam_search
from attnspec.reference.generation import next_token_probabilities, sample
from attnspec.spec import (
    Beams,
    Hypothesis,
    NextLogits,
    SamplerFeature,
    SamplerImplementation,
    Sampling,
    TokenizerImplementation,
    Vocabulary,
)

if TYPE_CHECKING:
    from attnspec.reference.tokenizer import Tokenizer


@cache
def load(vocabulary: Vocabulary) -> "Tokenizer":
    """Load a vocabulary: the released one by name, any other from the content of its files."""
    # tiktoken is an extra, and the rest of the reference works without it.
    from attnspec.reference.tokenizer import Tokenizer
    from attnspec.reference.vocabulary import parse_vocabulary

    if vocabulary.name == "gpt2":
        return Tokenizer.gpt2()
    return Tokenizer.from_vocabulary(parse_vocabulary(vocabulary.vocab_json, vocabulary.merges_txt))


def tokenizer_unavailable() -> str | None:
    """Return the reason why the tokenizer cannot run here, or `None`."""
    spec = importlib.util.find_spec("tiktoken")
    return None if spec else "tiktoken is not installed: pip install attnspec[gpt2]"


def probabilities(
    logits: Float[torch.Tensor, " vocab"], sampling: Sampling
) -> Float[torch.Tensor, " vocab"]:
    """Compute `next_token_probabilities` with the contract's settings."""
    return next_token_probabilities(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )


def continue_text(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    stop_tokens: Collection[int] = frozenset(),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[int]:
    """Return all tokens of `sample` at once."""
    settings = sampling or Sampling()
    return list(
        sample(
            next_logits,
            prompt,
            max_new_tokens=max_new_tokens,
            greedy=sampling is None,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seed=seed,
            stop_tokens=stop_tokens,
        )
    )


def search_beams(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    beams: Beams,
    stop_tokens: Collection[int] = frozenset(),
) -> list[Hypothesis]:
    """Call `beam_search` with the contract's settings."""
    return beam_search(
        next_logits,
        prompt,
        max_new_tokens=max_new_tokens,
        beams=beams.beams,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        stop_tokens=stop_tokens,
    )


TOKENIZER = TokenizerImplementation(name="reference", load=load, unavailable=tokenizer_unavailable)
"""The reference tokenizer and its claims."""

SAMPLER = SamplerImplementation(
    name="reference",
    probabilities=probabilities,
    generate=continue_text,
    features=frozenset(SamplerFeature),
    beam_search=search_beams,
)
"""The reference's generation and its claims."""
