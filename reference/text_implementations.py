"""The reference as a tokenizer and a sampler: what it claims to the laws of text."""

import importlib.util
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int

from attnspec.reference.generation import generate, next_token_probabilities
from attnspec.spec import (
    NextLogits,
    SamplerImplementation,
    Sampling,
    TokenizerImplementation,
    Vocabulary,
)

if TYPE_CHECKING:
    from attnspec.reference.tokenizer import Tokenizer


def load(vocabulary: Vocabulary) -> "Tokenizer":
    """Load a vocabulary: the released one as a user does, any other from its two files."""
    # tiktoken is an extra, and the rest of the reference works without it.
    from attnspec.reference.tokenizer import Tokenizer

    if vocabulary.name == "gpt2":
        return Tokenizer.gpt2()
    with tempfile.TemporaryDirectory() as folder:
        vocab, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocab.write_text(vocabulary.vocab_json, encoding="utf-8")
        merges.write_text(vocabulary.merges_txt, encoding="utf-8", newline="\n")
        return Tokenizer.from_files(vocab, merges)


def tokenizer_unavailable() -> str | None:
    """Why the tokenizer cannot run here, or `None`."""
    found = importlib.util.find_spec("tiktoken")
    return None if found else "tiktoken is not installed: pip install attnspec[gpt2]"


@dataclass(frozen=True)
class _Scripted:
    """A model without a cache whose last logits come from a function of the ids so far."""

    next_logits: NextLogits
    config: SimpleNamespace

    def __call__(
        self, input_ids: Int[torch.Tensor, "1 length"]
    ) -> Float[torch.Tensor, "1 1 vocab"]:
        return self.next_logits(input_ids[0].tolist())[None, None]


def probabilities(
    logits: Float[torch.Tensor, " vocab"], sampling: Sampling
) -> Float[torch.Tensor, " vocab"]:
    """`next_token_probabilities` under the names of the contract."""
    return next_token_probabilities(
        logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
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
    """`generate`, from a function in place of a model, to its end."""
    drawn = sampling or Sampling()
    config = SimpleNamespace(n_positions=len(prompt) + max_new_tokens)
    return list(
        generate(
            _Scripted(next_logits, config),
            prompt,
            max_new_tokens=max_new_tokens,
            greedy=sampling is None,
            temperature=drawn.temperature,
            top_k=drawn.top_k,
            top_p=drawn.top_p,
            seed=seed,
            stop_tokens=stop_tokens,
            use_cache=False,
        )
    )


TOKENIZER = TokenizerImplementation(
    name="reference", load=load, unavailable=tokenizer_unavailable
)
"""The reference tokenizer and what it claims."""

SAMPLER = SamplerImplementation(
    name="reference", probabilities=probabilities, generate=continue_text
)
"""The reference's generation and what it claims."""
