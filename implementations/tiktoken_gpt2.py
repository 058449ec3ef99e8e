"""OpenAI's tiktoken: the released encoding, or one made from a vocabulary's files."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attnspec.spec import TokenizerImplementation, Vocabulary

if TYPE_CHECKING:
    import tiktoken

GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The pattern of GPT-2's pieces of text (Radford et al. 2019, released code)."""


class TiktokenTokenizer:
    """A tiktoken `Encoding` that rejects lone surrogates, which the library silently replaces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Use tiktoken's own GPT-2, or number the tokens of another vocabulary."""
        import tiktoken

        self.encoding = (
            tiktoken.get_encoding("gpt2") if vocabulary.name == "gpt2" else _encoding(vocabulary)
        )

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self.encoding.n_vocab

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode; text that spells a special token is ordinary text unless the token is allowed.

        Raises:
            UnicodeEncodeError: (a `ValueError`) if the text holds a lone surrogate.
        """
        text.encode("utf-8")
        return self.encoding.encode(
            text, allowed_special=set(allowed_special), disallowed_special=()
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decode.

        Raises:
            ValueError: if an id is outside the vocabulary; tiktoken's own errors have three types.
        """
        try:
            return self.encoding.decode(ids)
        except (KeyError, OverflowError) as error:
            raise ValueError(f"ids outside the vocabulary in {list(ids)}: {error}") from error


def _encoding(vocabulary: Vocabulary) -> "tiktoken.Encoding":
    """Return an encoding whose merges follow the ids, as tiktoken requires."""
    import tiktoken

    return tiktoken.Encoding(
        vocabulary.name,
        pat_str=GPT2_PATTERN,
        mergeable_ranks={
            _spelled(token): number
            for token, number in vocabulary.ids.items()
            if token not in vocabulary.special_tokens
        },
        special_tokens={token: vocabulary.ids[token] for token in vocabulary.special_tokens},
    )


def _spelled(token: str) -> bytes:
    """Return the bytes of a token that is written in printable characters."""
    return bytes(_BYTES[character] for character in token)


_PRINTING = [byte for byte in range(256) if chr(byte).isprintable() and byte != 0x20]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTING]
_BYTES = {chr(byte): byte for byte in _PRINTING} | {
    chr(256 + n): byte for n, byte in enumerate(_HIDDEN)
}


def supports(vocabulary: Vocabulary) -> str | None:
    """Return the reason why a vocabulary is refused, or None if ids rise with merge ranks."""
    ids = vocabulary.ids
    ranked = [ids[left + right] for left, right in vocabulary.merges]
    return None if ranked == sorted(ranked) else "the ids do not rise with the ranks of the merges"


def unavailable() -> str | None:
    """Return the reason why this cannot run here, or None."""
    is_installed = importlib.util.find_spec("tiktoken")
    return None if is_installed else "tiktoken is not installed: pip install attnspec[gpt2]"


TOKENIZER = TokenizerImplementation(
    name="tiktoken_gpt2", load=TiktokenTokenizer, supports=supports, unavailable=unavailable
)
