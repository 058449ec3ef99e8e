"""The tokenizer: text to token ids and back, by tiktoken's byte-pair encoding."""

from collections.abc import Collection, Iterable, Sequence
from operator import index
from os import PathLike
from pathlib import Path

import tiktoken

from attnspec.reference.vocabulary import (
    PATTERN,
    ParsedVocabulary,
    TokenizerError,
    read_vocabulary,
)

__all__ = ["Tokenizer", "TokenizerError"]


class Tokenizer:
    """A byte-level byte-pair encoding with its vocabulary.

    Clauses:
        TOK-1

    Source:
        Radford et al. 2019, section 2.2
    """

    def __init__(self, encoding: tiktoken.Encoding, ids: Sequence[int] | None = None) -> None:
        """Wrap an encoding of tiktoken's.

        Args:
            encoding: cuts text into pieces and merges their bytes.
            ids: the id of each of its ranks; None if they are equal.
        """
        self._encoding = encoding
        self._id_of: Sequence[int] = range(encoding.n_vocab) if ids is None else ids
        self._rank_of = {number: rank for rank, number in enumerate(self._id_of)}

    @classmethod
    def gpt2(cls) -> "Tokenizer":
        """Load the vocabulary that every released GPT-2 was trained with.

        Returns:
            A tokenizer of 50 257 ids.

        Raises:
            TokenizerError: if it is neither in tiktoken's cache nor can be downloaded.
        """
        try:
            return cls(tiktoken.get_encoding("gpt2"))
        except Exception as error:  # whatever the HTTP library raises
            raise TokenizerError(
                "gpt2: the vocabulary is not in tiktoken's cache (TIKTOKEN_CACHE_DIR names its "
                f"folder), and cannot be downloaded ({type(error).__name__})"
            ) from error

    @classmethod
    def from_files(cls, vocab: str | PathLike[str], merges: str | PathLike[str]) -> "Tokenizer":
        """Load a vocabulary from the two files beside a checkpoint.

        Args:
            vocab: `vocab.json`: an id per token. A token that is no byte and no merge is special.
            merges: `merges.txt`: pairs of tokens, the first to be merged first.

        Returns:
            A tokenizer with the ids of `vocab`.

        Raises:
            TokenizerError: if a file or an entry cannot be used; it names both.
        """
        return cls.from_vocabulary(read_vocabulary(Path(vocab), Path(merges)))

    @classmethod
    def from_vocabulary(cls, vocabulary: ParsedVocabulary) -> "Tokenizer":
        """Create a tokenizer from a parsed vocabulary.

        Args:
            vocabulary: its ids need not follow the order of the merges; tiktoken's ranks must.

        Returns:
            A tokenizer with the ids of `vocabulary`.
        """
        tokens, special = vocabulary.tokens, vocabulary.special
        encoding = tiktoken.Encoding(
            "from files",
            pat_str=PATTERN,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={token: len(tokens) + place for place, token in enumerate(special)},
        )
        return cls(encoding, [*tokens.values(), *special.values()])

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that a token table must have."""
        return max(self._id_of) + 1

    @property
    def special_tokens(self) -> frozenset[str]:
        """Tokens that `encode` gives only if they are allowed."""
        return frozenset(self._encoding.special_tokens_set)

    def encode(self, text: str, *, allowed_special: Collection[str] = ()) -> list[int]:
        """Cut text into tokens.

        Args:
            text: Unicode scalar values.
            allowed_special: special tokens to recognize; any other is ordinary text.

        Returns:
            Ids from which `decode` gives the text back.

        Raises:
            ValueError: for a lone surrogate, whose place it names, or an unknown special token.

        Clauses:
            TOK-1, TOK-4, TOK-5
        """
        allowed = {allowed_special} if isinstance(allowed_special, str) else set(allowed_special)
        unknown = sorted(allowed - self.special_tokens)
        if unknown:
            raise ValueError(f"allowed_special: this vocabulary has no special {unknown[0]!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text: the character at position {error.start} is a lone surrogate "
                f"(U+{ord(text[error.start]):04X}), which no UTF-8 can hold"
            ) from error
        try:
            ranks = self._encoding.encode(text, allowed_special=allowed, disallowed_special=())
        except ValueError as error:  # a run of a million spaces exhausts the regular expression
            raise ValueError(f"text: tiktoken cannot cut it into pieces: {error}") from error
        return [self._id_of[rank] for rank in ranks]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn tokens into text.

        Args:
            ids: token ids of this vocabulary.

        Returns:
            The text; U+FFFD for bytes that are no UTF-8, as of a character cut in two.

        Raises:
            TypeError: for an id that is no integer.
            ValueError: for an id that this vocabulary does not have.

        Clauses:
            TOK-1, TOK-8, TOK-9
        """
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Turn tokens into the bytes of their text.

        Args:
            ids: token ids of this vocabulary.

        Returns:
            UTF-8, unless a character is cut in two.

        Raises:
            TypeError: for an id that is no integer.
            ValueError: for an id that this vocabulary does not have.
        """
        ranks = []
        for place, number in enumerate(ids):
            rank = self._rank_of.get(index(number))
            if rank is None:
                raise ValueError(
                    f"ids[{place}]: {number} is no token of this vocabulary, whose ids lie in "
                    f"[0, {self.vocab_size})"
                )
            ranks.append(rank)
        return self._encoding.decode_bytes(ranks)
