"""Tokens that are characters, words, word pieces or unigrams, defined without a library."""

import math
import unicodedata
from collections.abc import Collection, Iterator, Sequence

from attnspec.conformance.text.byte_pair import WHITE_SPACE, BytePairTokenizer
from attnspec.spec import UNKNOWN, Scheme, Tokenizer, Vocabulary

CONTINUES = "##"
"""The mark of a word piece that does not begin a word."""
SPACE = "\u2581"
"""The character that stands for a space in the tokens of a unigram vocabulary."""
PENALTY = 10.0
"""The distance of an unknown character's score below the least score of a token."""


def is_punctuation(character: str) -> bool:
    """Return whether a character is a word by itself: Unicode's P*, and all marks of ASCII."""
    is_mark = character.isascii() and character.isprintable() and not character.isalnum()
    return (is_mark and character != " ") or unicodedata.category(character)[0] == "P"


def split_words(text: str) -> list[str]:
    """Cut text at white space, and before and after each punctuation mark."""
    words: list[str] = []
    begins = True
    for character in text:
        if character in WHITE_SPACE:
            begins = True
        elif is_punctuation(character) or begins:
            words.append(character)
            begins = is_punctuation(character)
        else:
            words[-1] += character
    return words


class CharacterTokenizer:
    """A tokenizer with one token for each character: `split`, look up; `join` reverses it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary."""
        self.ids = vocabulary.ids
        self.tokens = {number: token for token, number in self.ids.items()}

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return len(self.ids)

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Look up each token of the text; what is not in the vocabulary is unknown."""
        return [self.ids.get(token, self.ids[UNKNOWN]) for token in self.split(text)]

    def split(self, text: str) -> list[str]:
        """Divide text into tokens."""
        return list(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Join the tokens of ids.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        for number in ids:
            if number not in self.tokens:
                raise ValueError(f"id {number} is not in 0..{self.vocab_size - 1}")
        return self.join([self.tokens[number] for number in ids])

    def join(self, tokens: list[str]) -> str:
        """Join tokens to a text."""
        return "".join(tokens)


class WordTokenizer(CharacterTokenizer):
    """A tokenizer with one token for each word and each punctuation mark."""

    def split(self, text: str) -> list[str]:
        """Divide text into words."""
        return split_words(text)

    def join(self, tokens: list[str]) -> str:
        """Join words by single spaces."""
        return " ".join(tokens)


class WordPieceTokenizer(WordTokenizer):
    """A tokenizer with the longest known parts of each word for tokens."""

    def split(self, text: str) -> list[str]:
        """Divide the words of a text into pieces; a word that cannot be divided is unknown."""
        return [token for word in super().split(text) for token in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Take the longest token that begins the rest of the word, until nothing is left."""
        pieces: list[str] = []
        start = 0
        while start < len(word):
            mark = CONTINUES if start else ""
            ends = (end for end in self.ends(word, start) if mark + word[start:end] in self.ids)
            end = next(ends, None)
            if end is None:
                return [UNKNOWN]
            pieces.append(mark + word[start:end])
            start = end
        return pieces

    def ends(self, word: str, start: int) -> Iterator[int]:
        """Return the ends of a piece in the order in which they are tried, the longest first."""
        yield from range(len(word), start, -1)

    def join(self, tokens: list[str]) -> str:
        """Join words by single spaces, and pieces to words."""
        return super().join(tokens).replace(" " + CONTINUES, "")


class UnigramTokenizer(CharacterTokenizer):
    """A tokenizer whose tokens are, of all that spell the text, the most probable ones."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary and its scores."""
        super().__init__(vocabulary)
        known = (item for item in self.ids.items() if item[0] not in vocabulary.special_tokens)
        self.scores = {token: vocabulary.scores[number] for token, number in known}
        self.longest = max(map(len, self.scores))
        self.unknown = min(self.scores.values()) - PENALTY

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Look up each token; unknown characters that follow one another are one unknown token."""
        ids = super().encode(text)
        unknown = self.ids[UNKNOWN]
        return [
            number
            for place, number in enumerate(ids)
            if number != unknown or place == 0 or ids[place - 1] != unknown
        ]

    def spell(self, text: str) -> str:
        """Write a space before the text, and each space as a character that tokens may have."""
        return (" " + text).replace(" ", SPACE) if text else ""

    def score(self, token: str) -> float:
        """Return the log-probability of a token, or minus infinity if the vocabulary lacks it."""
        alone = self.unknown if len(token) == 1 else -math.inf
        return self.scores.get(token, alone)

    def split(self, text: str) -> list[str]:
        """Divide text into tokens."""
        return self.divide(self.spell(text))

    def divide(self, spelled: str) -> list[str]:
        """Return the tokens whose scores have the largest sum (Viterbi's algorithm)."""
        sums, starts = [0.0], [0]
        for end in range(1, len(spelled) + 1):
            scores = {
                start: sums[start] + self.score(spelled[start:end])
                for start in range(max(0, end - self.longest), end)
            }
            starts.append(max(scores, key=scores.__getitem__))
            sums.append(scores[starts[end]])
        tokens: list[str] = []
        end = len(spelled)
        while end > 0:
            tokens.append(spelled[starts[end] : end])
            end = starts[end]
        return tokens[::-1]

    def join(self, tokens: list[str]) -> str:
        """Join tokens, with spaces again, and without the one before the text."""
        return "".join(tokens).replace(SPACE, " ").removeprefix(" ")


def define(vocabulary: Vocabulary) -> Tokenizer:
    """Return the executable definition for a vocabulary of any scheme."""
    classes: dict[Scheme, type[CharacterTokenizer]] = {
        Scheme.CHARACTERS: CharacterTokenizer,
        Scheme.WORDS: WordTokenizer,
        Scheme.WORD_PIECES: WordPieceTokenizer,
        Scheme.UNIGRAM: UnigramTokenizer,
    }
    if vocabulary.scheme is Scheme.BYTE_PAIR:
        return BytePairTokenizer(vocabulary)
    return classes[vocabulary.scheme](vocabulary)
