"""Mutants of tokenization: the definition of byte-pair encoding with one wrong step."""

from collections.abc import Callable, Collection, Iterator, Sequence

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.text.byte_pair import BytePairTokenizer, run_end
from attnspec.spec import END_OF_TEXT, TokenizerImplementation, Vocabulary


def tokenizer_mistake(
    id: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[type[BytePairTokenizer]], type[BytePairTokenizer]]:
    """Register the decorated tokenizer class as a mutant."""

    def register(mutant: type[BytePairTokenizer]) -> type[BytePairTokenizer]:
        name = id.replace("-", "_")
        plant(
            id=id,
            title=title,
            subject=TokenizerImplementation(name=name, load=mutant),
            killed_by=killed_by,
            source=source,
        )
        return mutant

    return register


@tokenizer_mistake(
    "own-no-contractions",
    "the pattern does not know contractions",
    killed_by="tiktoken-and-hugging-face-agree",
)
class NoContractions(BytePairTokenizer):
    """A tokenizer that splits `it's` into `it`, `'`, `s`."""

    def contractions(self) -> Sequence[str]:
        """Return no contractions."""
        return ()


@tokenizer_mistake(
    "own-contractions-in-capitals",
    "contractions match in either case",
    killed_by="encoding-equals-the-definition",
)
class CapitalContractions(BytePairTokenizer):
    """A tokenizer that splits `IT'LL` before the apostrophe only."""

    def contractions(self) -> Sequence[str]:
        """Return every contraction in both cases."""
        return (*super().contractions(), *(ending.upper() for ending in super().contractions()))


@tokenizer_mistake(
    "own-one-piece",
    "merges cross from word to word: the text is not cut into pieces",
    killed_by="pieces-are-encoded-separately",
)
class OnePiece(BytePairTokenizer):
    """A tokenizer that merges the whole text at once."""

    def pieces(self, text: str) -> Iterator[str]:
        """Return the whole text as one piece."""
        yield text


@tokenizer_mistake(
    "own-white-space-to-the-end",
    "a run of white space keeps the space that belongs to the next word",
    killed_by="pieces-are-encoded-separately",
)
class GreedySpace(BytePairTokenizer):
    """A tokenizer that splits `a  b` into `a`, two spaces, `b`."""

    def piece_end(self, text: str, start: int) -> int:
        """Return the end of the whole run of white space."""
        end = super().piece_end(text, start)
        return run_end(text, start) if text[start:end].isspace() else end


@tokenizer_mistake(
    "own-prefix-space",
    "a space is put before the text",
    killed_by="decoding-undoes-encoding",
)
class PrefixSpace(BytePairTokenizer):
    """A tokenizer with the option `add_prefix_space`."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode the text with a space in front."""
        return super().encode(f" {text}", allowed_special=allowed_special)


@tokenizer_mistake(
    "own-text-stripped",
    "white space at both ends of the text is dropped",
    killed_by="decoding-undoes-encoding",
)
class Stripped(BytePairTokenizer):
    """A tokenizer that strips its input."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode the stripped text."""
        return super().encode(text.strip(), allowed_special=allowed_special)


@tokenizer_mistake(
    "own-merges-from-the-left",
    "the leftmost pair is merged first, whatever its rank",
    killed_by="encoding-equals-the-definition",
)
class LeftFirst(BytePairTokenizer):
    """A tokenizer that ignores ranks."""

    def choose(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """Return the first pair."""
        return pairs[0]


@tokenizer_mistake(
    "own-merges-worst-first",
    "the pair that the merges list last is merged first",
    killed_by="encoding-equals-the-definition",
)
class WorstFirst(BytePairTokenizer):
    """A tokenizer that reverses ranks."""

    def choose(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """Return the pair of the largest rank."""
        return max(pairs, key=self.ranks.__getitem__)


@tokenizer_mistake(
    "own-merges-cut-short",
    "the last merges are not read",
    killed_by="encoding-equals-the-definition",
)
class MergesCutShort(BytePairTokenizer):
    """A tokenizer that reads too few merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Drop the last eighth of the merges, enough to change the ids of a short text."""
        super().__init__(vocabulary)
        self.ranks = {
            pair: rank for pair, rank in self.ranks.items() if rank < 7 * len(self.ranks) // 8
        }


@tokenizer_mistake(
    "own-byte-table-in-order",
    "byte b has id b, as if the bytes were numbered in their own order",
    killed_by="without-merges-each-byte-is-one-id",
)
class BytesInOrder(BytePairTokenizer):
    """A tokenizer that swaps ids of single bytes in both directions: texts still round-trip."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Renumber the bytes."""
        super().__init__(vocabulary)
        for byte, character in self.characters.items():
            self.ids[character] = byte
            self.tokens[byte] = character


@tokenizer_mistake(
    "own-latin-1",
    "text is spelled in Latin-1, and what that lacks is lost",
    killed_by="decoding-undoes-encoding",
)
class Latin1(BytePairTokenizer):
    """A tokenizer with one byte per character."""

    def spell(self, piece: str) -> list[str]:
        """Spell all but 256 characters as question marks."""
        piece.encode("utf-8")
        return [self.characters[byte] for byte in piece.encode("latin-1", errors="replace")]


@tokenizer_mistake(
    "own-no-byte-fallback",
    "a character without a token becomes the special token",
    killed_by="decoding-undoes-encoding",
)
class Unknown(BytePairTokenizer):
    """A tokenizer that knows ASCII only."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Replace characters outside ASCII."""
        text.encode("utf-8")
        known = "".join(letter if letter.isascii() else END_OF_TEXT for letter in text)
        return super().encode(known, allowed_special=allowed_special or {END_OF_TEXT})


@tokenizer_mistake(
    "own-special-tokens-always",
    "special tokens are read wherever a text spells them",
    killed_by="special-tokens-are-read-only-where-allowed",
)
class SpecialAlways(BytePairTokenizer):
    """A tokenizer by which a user's text can end the document."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Allow every special token."""
        return super().encode(text, allowed_special=self.special_tokens)


@tokenizer_mistake(
    "own-special-tokens-never",
    "special tokens are text even where they are allowed",
    killed_by="special-tokens-are-read-only-where-allowed",
)
class SpecialNever(BytePairTokenizer):
    """A tokenizer that ignores `allowed_special`."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Allow no special token."""
        return super().encode(text)


@tokenizer_mistake(
    "own-special-tokens-eat-space",
    "white space around a special token is dropped",
    killed_by="special-tokens-are-read-only-where-allowed",
)
class SpecialStrips(BytePairTokenizer):
    """A tokenizer with the options `lstrip` and `rstrip` of an added token."""

    def parts(self, text: str, allowed_special: Collection[str]) -> Iterator[str]:
        """Return the parts without white space at their ends."""
        for part in super().parts(text, allowed_special):
            yield part.strip() if allowed_special else part


@tokenizer_mistake(
    "own-surrogates-replaced",
    "a lone surrogate silently becomes U+FFFD",
    killed_by="a-lone-surrogate-is-refused",
)
class SurrogatesReplaced(BytePairTokenizer):
    """A tokenizer that replaces surrogates, like tiktoken by default."""

    def spell(self, piece: str) -> list[str]:
        """Replace surrogates before spelling."""
        fixed = piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return super().spell(fixed)


@tokenizer_mistake(
    "own-surrogates-pass",
    "a lone surrogate is spelled in three bytes that are no UTF-8",
    killed_by="a-lone-surrogate-is-refused",
)
class SurrogatesPass(BytePairTokenizer):
    """A tokenizer that spells surrogates, which UTF-8 forbids."""

    def spell(self, piece: str) -> list[str]:
        """Spell with surrogates allowed."""
        return [self.characters[byte] for byte in piece.encode("utf-8", "surrogatepass")]


@tokenizer_mistake(
    "own-surrogates-crash",
    "a lone surrogate raises a TypeError that speaks of something else",
    killed_by="a-lone-surrogate-is-refused",
)
class SurrogatesCrash(BytePairTokenizer):
    """A tokenizer that raises a TypeError, like Hugging Face's by default."""

    def spell(self, piece: str) -> list[str]:
        """Spell, or raise an unrelated error."""
        try:
            return super().spell(piece)
        except UnicodeEncodeError:
            raise TypeError("the input must be a string") from None
