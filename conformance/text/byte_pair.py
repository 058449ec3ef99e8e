"""Byte-level byte-pair encoding as GPT-2 defines it, without a regular expression or a library.

Tokenizers are tested against this executable definition. It is slow: it visits every pair again
after each merge.
"""

import itertools
import unicodedata
from collections.abc import Collection, Iterator, Sequence

from attnspec.spec import Vocabulary

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
"""Endings that are separate pieces; in lower case and with the straight apostrophe only."""

WHITE_SPACE = frozenset(
    map(
        chr,
        (
            *(*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)),
            *(0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
        ),
    )
)
"""The characters with the Unicode property White_Space; `str.isspace` accepts four more."""


def kind(character: str) -> str:
    """Return the kind of a character: `letter`, `number`, `space` or `other`.

    Unicode assigns new characters with each version, and the result follows the version of this
    Python; laws that depend on it use only characters that Python knows.
    """
    if character in WHITE_SPACE:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def byte_characters() -> dict[int, str]:
    """Return the character of each byte in GPT-2's files: itself if it prints, else from U+0100."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printing]
    return {byte: chr(byte) for byte in printing} | {
        byte: chr(0x100 + n) for n, byte in enumerate(rest)
    }


class BytePairTokenizer:
    """A tokenizer with one method per step: `pieces`, `spell`, `merge`; `decode` reverses them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary."""
        self.ids = vocabulary.ids
        self.ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
        self.special_tokens = vocabulary.special_tokens
        self.characters = byte_characters()
        self.bytes_of = {character: byte for byte, character in self.characters.items()}
        self.tokens = {identifier: token for token, identifier in self.ids.items()}

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return len(self.ids)

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Split the text at allowed special tokens, then into pieces; spell and merge each."""
        ids: list[int] = []
        for part in self.parts(text, allowed_special):
            if part in self.special_tokens and part in allowed_special:
                ids.append(self.ids[part])
                continue
            for piece in self.pieces(part):
                ids += [self.ids[token] for token in self.merge(self.spell(piece))]
        return ids

    def parts(self, text: str, allowed_special: Collection[str]) -> Iterator[str]:
        """Split the text around each allowed special token, from left to right."""
        allowed = [token for token in self.special_tokens if token in allowed_special]
        start = position = 0
        while position < len(text):
            matches = (token for token in allowed if text.startswith(token, position))
            token = next(matches, None)
            if token is None:
                position += 1
                continue
            yield text[start:position]
            yield token
            start = position = position + len(token)
        yield text[start:]

    def pieces(self, text: str) -> Iterator[str]:
        """Split text into pieces that are encoded separately: no token crosses a boundary."""
        start = 0
        while start < len(text):
            end = self.piece_end(text, start)
            yield text[start:end]
            start = end

    def piece_end(self, text: str, start: int) -> int:
        """Return the end of the piece that begins at `start`."""
        for ending in self.contractions():
            if text.startswith(ending, start):
                return start + len(ending)
        first = start + (text[start] == " ")
        if first < len(text) and kind(text[first]) != "space":
            return run_end(text, first)
        end = run_end(text, start)
        # the last white space before a word belongs to the word
        return end - 1 if end < len(text) and end - start > 1 else end

    def contractions(self) -> Sequence[str]:
        """Return the endings that are separate pieces."""
        return CONTRACTIONS

    def spell(self, piece: str) -> list[str]:
        """Write a piece byte by byte.

        Raises:
            UnicodeEncodeError: (a `ValueError`) if it holds a lone surrogate, which has no bytes
                in UTF-8.
        """
        return [self.characters[byte] for byte in piece.encode("utf-8")]

    def merge(self, parts: list[str]) -> list[str]:
        """Join the pair of best rank, everywhere from left to right, until no pair has a rank."""
        while pairs := [pair for pair in itertools.pairwise(parts) if pair in self.ranks]:
            best = self.choose(pairs)
            merged: list[str] = []
            position = 0
            while position < len(parts):
                if tuple(parts[position : position + 2]) == best:
                    merged.append(best[0] + best[1])
                    position += 2
                else:
                    merged.append(parts[position])
                    position += 1
            parts = merged
        return parts

    def choose(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """Return the pair that the merges list first."""
        return min(pairs, key=self.ranks.__getitem__)

    def decode(self, ids: Sequence[int]) -> str:
        """Join the bytes of all ids, then read them as UTF-8.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        return self.read(b"".join(self.token_bytes(identifier) for identifier in ids))

    def token_bytes(self, identifier: int) -> bytes:
        """Return the bytes of one id.

        Raises:
            ValueError: if the id is outside the vocabulary.
        """
        if identifier not in self.tokens:
            raise ValueError(f"id {identifier} is not in 0..{self.vocab_size - 1}")
        token = self.tokens[identifier]
        if token in self.special_tokens:
            return token.encode("utf-8")
        return bytes(self.bytes_of[character] for character in token)

    def read(self, data: bytes) -> str:
        """Read bytes as UTF-8, each longest broken sequence as one U+FFFD."""
        return data.decode("utf-8", errors="replace")


def run_end(text: str, start: int) -> int:
    """Return the end of the run of characters of one kind that begins at `start`."""
    end = start
    while end < len(text) and kind(text[end]) == kind(text[start]):
        end += 1
    return end
