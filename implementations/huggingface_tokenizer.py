"""Hugging Face's GPT-2 tokenizer, made from a vocabulary's files."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import Any

from attnspec.spec import TokenizerImplementation, Vocabulary


class HuggingFaceTokenizer:
    """A `GPT2Tokenizer` that rejects unknown ids, which the library silently drops."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Load the vocabulary, with its special token as the end of a text."""
        from transformers import GPT2Tokenizer

        merges: Any = vocabulary.merges  # annotated as lines of text, but pairs are accepted
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
        """The number of ids."""
        return len(self.tokenizer)

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode; there is one special token, so either all are allowed or none is.

        Raises:
            UnicodeEncodeError: (a `ValueError`) if the text holds a lone surrogate; the library's
                own error does not name the cause.
        """
        text.encode("utf-8")
        ids: list[int] = self.tokenizer.encode(
            text, split_special_tokens=self.special not in allowed_special
        )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode, special tokens included.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        unknown = [identifier for identifier in ids if not 0 <= identifier < self.vocab_size]
        if unknown:
            raise ValueError(f"id {unknown[0]} is not in 0..{self.vocab_size - 1}")
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def unavailable() -> str | None:
    """Return the reason why this cannot run here, or None."""
    is_installed = importlib.util.find_spec("transformers")
    return None if is_installed else "transformers is not installed: pip install attnspec[gpt2]"


TOKENIZER = TokenizerImplementation(
    name="huggingface_tokenizer", load=HuggingFaceTokenizer, unavailable=unavailable
)
