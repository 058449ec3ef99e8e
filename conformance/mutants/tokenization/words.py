"""Mutants of tokenizers of characters, words, word pieces and unigrams."""

import re
from collections.abc import Callable, Collection, Iterator

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.text.words import (
    CONTINUES,
    SPACE,
    CharacterTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from attnspec.spec import UNKNOWN, Scheme, TokenizerImplementation

SCHEMES = {
    UnigramTokenizer: Scheme.UNIGRAM,
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


@word_mistake(
    "own-unigram-longest",
    "the longest token is taken at each place, not the tokens of the largest sum",
    killed_by="unigram-tokens-have-the-largest-sum-of-scores",
)
class Longest(UnigramTokenizer):
    def split(self, text: str) -> list[str]:
        spelled, tokens = self.spell(text), list[str]()
        while spelled:
            lengths = range(min(self.longest, len(spelled)), 0, -1)
            length = next((n for n in lengths if spelled[:n] in self.scores), 1)
            tokens.append(spelled[:length])
            spelled = spelled[length:]
        return tokens


@word_mistake(
    "own-unigram-fewest",
    "the division into the fewest tokens is taken, whatever their scores",
    killed_by="unigram-tokens-have-the-largest-sum-of-scores",
)
class Fewest(UnigramTokenizer):
    def score(self, token: str) -> float:
        return -1.0 if token in self.scores else super().score(token)


@word_mistake(
    "own-unigram-mean-score",
    "scores are divided by the length of the token",
    killed_by="unigram-tokens-have-the-largest-sum-of-scores",
)
class MeanScore(UnigramTokenizer):
    def score(self, token: str) -> float:
        return super().score(token) / len(token)


@word_mistake(
    "own-unigram-unknown-free",
    "an unknown character has no penalty, so that it replaces tokens",
    killed_by="unigram-tokens-have-the-largest-sum-of-scores",
)
class UnknownFree(UnigramTokenizer):
    def score(self, token: str) -> float:
        return 0.0 if len(token) == 1 and token not in self.scores else super().score(token)


@word_mistake(
    "own-unigram-no-space-before",
    "no space is written before the text, so that its first word has other tokens",
    killed_by="unigram-tokens-have-the-largest-sum-of-scores",
)
class NoSpaceBefore(UnigramTokenizer):
    def spell(self, text: str) -> str:
        return text.replace(" ", SPACE)


@word_mistake(
    "own-unigram-spaces-joined",
    "spaces that follow one another become one",
    killed_by="known-text-comes-back",
)
class SpacesJoined(UnigramTokenizer):
    def spell(self, text: str) -> str:
        return super().spell(re.sub(" +", " ", text))


@word_mistake(
    "own-unigram-space-kept",
    "decoding keeps the space before the text",
    killed_by="known-text-comes-back",
)
class SpaceKept(UnigramTokenizer):
    def join(self, tokens: list[str]) -> str:
        return "".join(tokens).replace(SPACE, " ")
