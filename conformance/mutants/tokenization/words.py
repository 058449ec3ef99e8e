"""Mutants of tokenizers of characters, words and word pieces."""

from collections.abc import Callable, Collection, Iterator

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.text.words import (
    CONTINUES,
    CharacterTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from attnspec.spec import UNKNOWN, Scheme, TokenizerImplementation

SCHEMES = {
    WordPieceTokenizer: Scheme.WORD_PIECES,
    WordTokenizer: Scheme.WORDS,
    CharacterTokenizer: Scheme.CHARACTERS,
}


def word_mistake(
    id: str, title: str, *, killed_by: str
) -> Callable[[type[CharacterTokenizer]], type[CharacterTokenizer]]:
    """Register the decorated tokenizer class as a mutant of the scheme of its base."""

    def register(mutant: type[CharacterTokenizer]) -> type[CharacterTokenizer]:
        scheme = next(SCHEMES[base] for base in SCHEMES if issubclass(mutant, base))
        plant(
            id=id,
            title=title,
            subject=TokenizerImplementation(
                name=id.replace("-", "_"), load=mutant, schemes=frozenset({scheme})
            ),
            killed_by=killed_by,
        )
        return mutant

    return register


@word_mistake(
    "own-characters-unknown-dropped",
    "a character that the vocabulary lacks has no id",
    killed_by="each-character-is-one-id",
)
class UnknownDropped(CharacterTokenizer):
    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        return [self.ids[token] for token in self.split(text) if token in self.ids]


@word_mistake(
    "own-characters-are-bytes",
    "text is divided into bytes, not into characters",
    killed_by="each-character-is-one-id",
)
class Bytes(CharacterTokenizer):
    def split(self, text: str) -> list[str]:
        return [chr(byte) for byte in text.encode()]


@word_mistake(
    "own-characters-joined-by-spaces",
    "decoding puts a space between two characters",
    killed_by="known-text-comes-back",
)
class JoinedBySpaces(CharacterTokenizer):
    def join(self, tokens: list[str]) -> str:
        return " ".join(tokens)


@word_mistake(
    "own-words-with-punctuation",
    "words are cut at white space alone, so that a comma belongs to its word",
    killed_by="each-word-is-one-id",
)
class WithPunctuation(WordTokenizer):
    def split(self, text: str) -> list[str]:
        return text.split()


@word_mistake(
    "own-words-line-ends-dropped",
    "tabs and line ends are dropped, so that the words beside them become one",
    killed_by="each-word-is-one-id",
)
class LineEndsDropped(WordTokenizer):
    def split(self, text: str) -> list[str]:
        return super().split(text.replace("\n", "").replace("\t", ""))


@word_mistake(
    "own-words-lower-case",
    "words are looked up in lower case",
    killed_by="each-word-is-one-id",
)
class LowerCase(WordTokenizer):
    def split(self, text: str) -> list[str]:
        return super().split(text.lower())


@word_mistake(
    "own-words-joined",
    "decoding puts no space between two words",
    killed_by="known-text-comes-back",
)
class Joined(WordTokenizer):
    def join(self, tokens: list[str]) -> str:
        return "".join(tokens)


@word_mistake(
    "own-word-pieces-shortest",
    "the shortest known piece is taken, not the longest",
    killed_by="words-are-cut-into-the-longest-pieces",
)
class Shortest(WordPieceTokenizer):
    def ends(self, word: str, start: int) -> Iterator[int]:
        yield from range(start + 1, len(word) + 1)


@word_mistake(
    "own-word-pieces-rest-unknown",
    "only the rest of a word is unknown, after the pieces that were found",
    killed_by="words-are-cut-into-the-longest-pieces",
)
class RestUnknown(WordPieceTokenizer):
    def pieces(self, word: str) -> list[str]:
        for length in range(len(word), 0, -1):
            pieces = super().pieces(word[:length])
            if pieces != [UNKNOWN]:
                return pieces if length == len(word) else [*pieces, UNKNOWN]
        return [UNKNOWN]


@word_mistake(
    "own-word-pieces-long-words-unknown",
    "a word of more than 100 characters is unknown",
    killed_by="words-are-cut-into-the-longest-pieces",
)
class LongUnknown(WordPieceTokenizer):
    def pieces(self, word: str) -> list[str]:
        return super().pieces(word) if len(word) <= 100 else [UNKNOWN]


@word_mistake(
    "own-word-pieces-apart",
    "decoding leaves the marks of pieces inside words",
    killed_by="known-text-comes-back",
)
class Apart(WordPieceTokenizer):
    def join(self, tokens: list[str]) -> str:
        return " ".join(token.removeprefix(CONTINUES) for token in tokens)
