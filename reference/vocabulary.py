"""Vocabulary files: `vocab.json` and `merges.txt`, as GPT-2 and Hugging Face write them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Matches the pieces of a text; bytes merge inside a piece only (Radford et al. 2019, code)."""


class TokenizerError(ValueError):
    """A vocabulary is missing or cannot be used. The message names the file and the entry."""


@dataclass(frozen=True, kw_only=True)
class ParsedVocabulary:
    """The tokens of a vocabulary, parsed from its two files.

    Attributes:
        tokens: an id per byte sequence: the 256 bytes, then the merges, the first to be made first.
        special: an id per special token.
    """

    tokens: Mapping[bytes, int]
    special: Mapping[str, int]


def read_vocabulary(vocab: Path, merges: Path) -> ParsedVocabulary:
    """Read the two files, and check that they fit together.

    Args:
        vocab: JSON, an id per token, each byte spelled as one printable character.
        merges: two tokens a line; a first line that starts with ``#version`` is skipped.

    Returns:
        The vocabulary.

    Raises:
        TokenizerError: if a file or an entry cannot be used; it names both.
    """
    texts = []
    for path in (vocab, merges):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path}: cannot be read as text: {error}") from error
    return parse_vocabulary(*texts, names=(str(vocab), str(merges)))


def parse_vocabulary(
    vocab: str, merges: str, *, names: tuple[str, str] = ("vocab.json", "merges.txt")
) -> ParsedVocabulary:
    """Parse the content of the two files.

    Args:
        vocab: the text of `vocab.json`, as in `read_vocabulary`.
        merges: the text of `merges.txt`, as in `read_vocabulary`.
        names: names of the two files, for messages.

    Returns:
        The vocabulary.

    Raises:
        TokenizerError: if a file or an entry cannot be used; it names both.
    """
    ids = _parse_ids(vocab, names[0])
    byte_of = {character: byte for byte, character in _printable().items()}
    tokens: dict[bytes, int] = {}
    spelled: set[str] = set()

    def add(token: bytes, spelling: str) -> None:
        if spelling not in ids:
            raise TokenizerError(f"{names[0]}: holds no {spelling!r} ({token!r})")
        tokens[token] = ids[spelling]
        spelled.add(spelling)

    for byte, character in _printable().items():
        add(bytes([byte]), character)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(merges.split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts) or not byte_of.keys() >= set("".join(parts)):
            raise TokenizerError(f"{names[1]}: line {number} is no pair of tokens: {line!r}")
        left, right = (bytes(byte_of[character] for character in part) for part in parts)
        if left + right in tokens:
            raise TokenizerError(
                f"{names[1]}: line {number} makes {''.join(parts)!r} a second time"
            )
        if merge(left + right, ranks) != [left, right]:
            raise TokenizerError(
                f"{names[1]}: line {number} can never apply, for the lines before it merge "
                f"{''.join(parts)!r} in another way"
            )
        add(left + right, "".join(parts))
        ranks[left + right] = number
    special = {token: number for token, number in ids.items() if token not in spelled}
    return ParsedVocabulary(tokens=tokens, special=special)


def merge(piece: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Merge neighbours, the pair of lowest rank first and the leftmost of equals.

    Args:
        piece: bytes, at least one.
        ranks: the rank of every token that a merge may make; the lowest merges first.

    Returns:
        Tokens of which no two neighbours can be merged.

    Source:
        Sennrich et al. 2016, section 3.2
    """
    parts = [piece[at : at + 1] for at in range(len(piece))]
    while True:
        candidates = [
            (ranks[parts[at] + parts[at + 1]], at)
            for at in range(len(parts) - 1)
            if parts[at] + parts[at + 1] in ranks
        ]
        if not candidates:
            return parts
        _, at = min(candidates)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def _printable() -> dict[int, str]:
    """Spell each byte as a character: itself where Latin-1 prints it, else one from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(itself)]
    return {byte: chr(byte) for byte in itself} | {
        byte: chr(0x100 + place) for place, byte in enumerate(others)
    }


def _parse_ids(vocab: str, name: str) -> dict[str, int]:
    try:
        ids = json.loads(vocab)
    except ValueError as error:
        raise TokenizerError(f"{name}: is no JSON: {error}") from error
    if not isinstance(ids, dict):
        raise TokenizerError(f"{name}: must hold a JSON object, got {type(ids).__name__}")
    taken: dict[int, str] = {}
    for token, number in ids.items():
        if type(number) is not int or number < 0:
            raise TokenizerError(f"{name}: the id of {token!r} must be a count, got {number!r}")
        if number in taken:
            raise TokenizerError(f"{name}: {token!r} and {taken[number]!r} share the id {number}")
        taken[number] = token
    return ids
