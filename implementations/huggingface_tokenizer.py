"""Hugging Face's GPT-2 tokenizer, made from a vocabulary's files."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import Any

from attnspec.spec import TokenizerImplementation, Vocabulary


class HuggingFaceTokenizer:
    """`GPT2Tokenizer`, which on its own drops ids that it does not know without a word."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Load the vocabulary; its special token is the one that ends a text."""
        from transformers import GPT2Tokenizer

        merges: Any = vocabulary.merges  # annotated as lines of text, but taken as pairs
        (self.special,) = vocabulary.special_tokens
        self.tokenizer = GPT2Tokenizer(
            vocab=vocabulary.ids,
            merges=merges,
            unk_token=self.special,
            bos_token=self.special,
            eos_token=self.special,
        )

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self.tokenizer)

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode; there is one special token, so that either all are allowed or none is.

        Raises:
            UnicodeEncodeError: (a `ValueError`) for a lone surrogate; the library's own error says
                that the text is no text.
        """
        text.encode("utf-8")
        ids: list[int] = self.tokenizer.encode(
            text, split_special_tokens=self.special not in allowed_special
        )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode, special tokens included.

        Raises:
            ValueError: for an id outside the vocabulary.
        """
        unknown = [each for each in ids if not 0 <= each < self.vocab_size]
        if unknown:
            raise ValueError(f"id {unknown[0]} is not in 0..{self.vocab_size - 1}")
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def unavailable() -> str | None:
    """Why this cannot run here, or `None`."""
    found = importlib.util.find_spec("transformers")
    return None if found else "transformers is not installed: pip install attnspec[gpt2]"


TOKENIZER = TokenizerImplementation(
    name="huggingface_tokenizer", load=HuggingFaceTokenizer, unavailable=unavailable
)
