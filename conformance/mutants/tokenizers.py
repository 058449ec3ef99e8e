"""Mutants of tokenization: the definition of byte-pair encoding with one step of encoding wrong."""

from collections.abc import Callable, Collection, Iterator, Sequence

from attnspec.conformance.byte_pair import BytePairTokenizer, run_end
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import END_OF_TEXT, TokenizerImplementation, Vocabulary


def tokenizer_mistake(
    id: str, title: str, *, kills: tuple[str, ...], source: str = ""
) -> Callable[[type[BytePairTokenizer]], type[BytePairTokenizer]]:
    """Plant the decorated class as a tokenizer."""

    def register(base: type[BytePairTokenizer]) -> type[BytePairTokenizer]:
        name = id.replace("-", "_")
        plant(
            id=id,
            title=title,
            subject=TokenizerImplementation(name=name, load=base),
            kills=kills,
            source=source,
        )
        return base

    return register


@tokenizer_mistake(
    "own-no-contractions",
    "the pattern does not know contractions",
    kills=("tokens-are-those-of-the-definition", "tiktoken-and-hugging-face-agree"),
)
class NoContractions(BytePairTokenizer):
    """Cuts `it's` into `it`, `'`, `s`."""

    def contractions(self) -> Sequence[str]:
        """None."""
        return ()


@tokenizer_mistake(
    "own-contractions-in-capitals",
    "contractions match in either case",
    kills=("tokens-are-those-of-the-definition",),
)
class CapitalContractions(BytePairTokenizer):
    """Cuts `IT'LL` before the apostrophe alone."""

    def contractions(self) -> Sequence[str]:
        """Every ending in both cases."""
        return (*super().contractions(), *(each.upper() for each in super().contractions()))


@tokenizer_mistake(
    "own-one-piece",
    "merges cross from word to word: the text is not cut into pieces",
    kills=(
        "pieces-are-encoded-apart",
        "tokens-are-those-of-the-definition",
        "tiktoken-and-hugging-face-agree",
    ),
)
class OnePiece(BytePairTokenizer):
    """Merges the whole text at once."""

    def pieces(self, text: str) -> Iterator[str]:
        """The text itself."""
        yield text


@tokenizer_mistake(
    "own-white-space-to-the-end",
    "a run of white space keeps the space that belongs to the next word",
    kills=("pieces-are-encoded-apart", "tokens-are-those-of-the-definition"),
)
class GreedySpace(BytePairTokenizer):
    """Cuts `a  b` into `a`, two spaces, `b`."""

    def piece_end(self, text: str, start: int) -> int:
        """The end of the whole run."""
        end = super().piece_end(text, start)
        return run_end(text, start) if text[start:end].isspace() else end


@tokenizer_mistake(
    "own-prefix-space",
    "a space is put before the text",
    kills=(
        "decoding-undoes-encoding",
        "tokens-are-those-of-the-definition",
        "without-merges-each-byte-is-one-id",
    ),
)
class PrefixSpace(BytePairTokenizer):
    """The option `add_prefix_space`, on."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode a longer text."""
        return super().encode(f" {text}", allowed_special=allowed_special)


@tokenizer_mistake(
    "own-text-stripped",
    "white space at both ends of the text is dropped",
    kills=("decoding-undoes-encoding", "without-merges-each-byte-is-one-id"),
)
class Stripped(BytePairTokenizer):
    """Cleans its input."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode a shorter text."""
        return super().encode(text.strip(), allowed_special=allowed_special)


@tokenizer_mistake(
    "own-merges-from-the-left",
    "the leftmost pair is merged first, whatever its rank",
    kills=("tokens-are-those-of-the-definition", "tiktoken-and-hugging-face-agree"),
)
class LeftFirst(BytePairTokenizer):
    """Ignores ranks."""

    def choose(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """The first pair."""
        return pairs[0]


@tokenizer_mistake(
    "own-merges-worst-first",
    "the pair that the merges list last is merged first",
    kills=("tokens-are-those-of-the-definition",),
)
class WorstFirst(BytePairTokenizer):
    """Reads ranks upside down."""

    def choose(self, pairs: list[tuple[str, str]]) -> tuple[str, str]:
        """The pair of largest rank."""
        return max(pairs, key=self.ranks.__getitem__)


@tokenizer_mistake(
    "own-merges-cut-short",
    "the last merges are not read",
    kills=("tokens-are-those-of-the-definition", "tiktoken-and-hugging-face-agree"),
)
class MergesCutShort(BytePairTokenizer):
    """Reads too few lines."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Drop the last eighth of the merges: enough for a short text to show it."""
        super().__init__(vocabulary)
        self.ranks = {
            pair: rank for pair, rank in self.ranks.items() if rank < 7 * len(self.ranks) // 8
        }


@tokenizer_mistake(
    "own-byte-table-in-order",
    "byte b has id b, as if the bytes were numbered in their own order",
    kills=(
        "without-merges-each-byte-is-one-id",
        "text-can-be-spelled-in-bytes",
        "tokens-are-those-of-the-definition",
        "bytes-are-joined-before-they-are-read",
    ),
)
class BytesInOrder(BytePairTokenizer):
    """Swaps the ids of single bytes, in both directions, so that texts still go round."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Renumber the bytes."""
        super().__init__(vocabulary)
        for byte, character in self.characters.items():
            self.ids[character] = byte
            self.tokens[byte] = character


@tokenizer_mistake(
    "own-latin-1",
    "text is spelled in Latin-1, and what that lacks is lost",
    kills=(
        "decoding-undoes-encoding",
        "without-merges-each-byte-is-one-id",
        "tokens-are-those-of-the-definition",
    ),
)
class Latin1(BytePairTokenizer):
    """One byte per character."""

    def spell(self, piece: str) -> list[str]:
        """Question marks for all but 256 characters."""
        piece.encode("utf-8")
        return [self.characters[byte] for byte in piece.encode("latin-1", errors="replace")]


@tokenizer_mistake(
    "own-no-byte-fallback",
    "a character without a token of its own becomes the special token, for want of a better one",
    kills=(
        "decoding-undoes-encoding",
        "special-tokens-are-read-only-where-allowed",
        "without-merges-each-byte-is-one-id",
    ),
)
class Unknown(BytePairTokenizer):
    """Knows ASCII only."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Replace characters outside ASCII."""
        text.encode("utf-8")
        known = "".join(each if each.isascii() else END_OF_TEXT for each in text)
        return super().encode(known, allowed_special=allowed_special or {END_OF_TEXT})


@tokenizer_mistake(
    "own-special-tokens-always",
    "special tokens are read wherever a text spells them",
    kills=("special-tokens-are-read-only-where-allowed", "tokens-are-those-of-the-definition"),
)
class SpecialAlways(BytePairTokenizer):
    """Lets a user end the document."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Allow everything."""
        return super().encode(text, allowed_special=self.special_tokens)


@tokenizer_mistake(
    "own-special-tokens-never",
    "special tokens are text even where they are allowed",
    kills=("special-tokens-are-read-only-where-allowed", "tiktoken-and-hugging-face-agree"),
)
class SpecialNever(BytePairTokenizer):
    """Does not look at `allowed_special`."""

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Allow nothing."""
        return super().encode(text)


@tokenizer_mistake(
    "own-special-tokens-eat-space",
    "white space around a special token is dropped",
    kills=("special-tokens-are-read-only-where-allowed", "tiktoken-and-hugging-face-agree"),
)
class SpecialStrips(BytePairTokenizer):
    """The options `lstrip` and `rstrip` of an added token, on."""

    def parts(self, text: str, allowed_special: Collection[str]) -> Iterator[str]:
        """Parts without the white space at their ends."""
        for part in super().parts(text, allowed_special):
            yield part.strip() if allowed_special else part


@tokenizer_mistake(
    "own-surrogates-replaced",
    "a lone surrogate silently becomes U+FFFD",
    kills=("a-lone-surrogate-is-refused",),
)
class SurrogatesReplaced(BytePairTokenizer):
    """What tiktoken does on its own."""

    def spell(self, piece: str) -> list[str]:
        """Replace before spelling."""
        fixed = piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return super().spell(fixed)


@tokenizer_mistake(
    "own-surrogates-pass",
    "a lone surrogate is spelled in three bytes that are no UTF-8",
    kills=("a-lone-surrogate-is-refused",),
)
class SurrogatesPass(BytePairTokenizer):
    """Spells what UTF-8 forbids."""

    def spell(self, piece: str) -> list[str]:
        """Spell anything."""
        return [self.characters[byte] for byte in piece.encode("utf-8", "surrogatepass")]


@tokenizer_mistake(
    "own-surrogates-crash",
    "a lone surrogate raises a TypeError that speaks of something else",
    kills=("a-lone-surrogate-is-refused",),
)
class SurrogatesCrash(BytePairTokenizer):
    """What Hugging Face's tokenizer does on its own."""

    def spell(self, piece: str) -> list[str]:
        """Spell, or fail in another's words."""
        try:
            return super().spell(piece)
        except UnicodeEncodeError:
            raise TypeError("the input must be a string") from None
