"""Mutants of tokenization: decoding and the numbers of tokens gone wrong."""

from collections.abc import Sequence

from attnspec.conformance.byte_pair import BytePairTokenizer
from attnspec.conformance.mutants.tokenizers import tokenizer_mistake
from attnspec.spec import Vocabulary


@tokenizer_mistake(
    "own-clean-up-spaces",
    "decoding drops the space before punctuation",
    kills=("decoding-undoes-encoding",),
)
class CleanUp(BytePairTokenizer):
    """Makes decoded text look better than what was encoded."""

    def read(self, data: bytes) -> str:
        """Text with its punctuation moved."""
        text = super().read(data)
        return text.replace(" .", ".").replace(" !", "!").replace("  ", " ")


@tokenizer_mistake(
    "own-decode-token-by-token",
    "each token is read as UTF-8 by itself, so that a character cut in two is lost",
    kills=(
        "decoding-undoes-encoding",
        "text-can-be-spelled-in-bytes",
        "bytes-are-joined-before-they-are-read",
    ),
)
class DecodeByToken(BytePairTokenizer):
    """Joins text instead of bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        """Read before joining."""
        return "".join(self.read(self.token_bytes(identifier)) for identifier in ids)


@tokenizer_mistake(
    "own-decode-drops-broken-bytes",
    "bytes that are no UTF-8 disappear",
    kills=("bytes-are-joined-before-they-are-read",),
)
class DropsBroken(BytePairTokenizer):
    """Decodes with `errors="ignore"`."""

    def read(self, data: bytes) -> str:
        """Read what can be read."""
        return data.decode("utf-8", errors="ignore")


@tokenizer_mistake(
    "own-decode-drops-unknown-ids",
    "an id outside the vocabulary decodes to nothing",
    kills=("an-id-outside-the-vocabulary-is-refused",),
)
class DropsUnknown(BytePairTokenizer):
    """What Hugging Face's tokenizer does on its own."""

    def token_bytes(self, identifier: int) -> bytes:
        """Nothing for what is unknown."""
        return super().token_bytes(identifier) if identifier in self.tokens else b""


@tokenizer_mistake(
    "own-decode-negative-ids",
    "a negative id counts from the end of the vocabulary",
    kills=("an-id-outside-the-vocabulary-is-refused",),
)
class NegativeIds(BytePairTokenizer):
    """Looks ids up in a list."""

    def token_bytes(self, identifier: int) -> bytes:
        """Index from the end."""
        return super().token_bytes(identifier % self.vocab_size if identifier < 0 else identifier)


@tokenizer_mistake(
    "own-no-special-token",
    "the special token is missing: GPT-2 has 50 256 ids",
    kills=("gpt2-has-50257-ids", "ids-lie-in-the-vocabulary"),
)
class NoSpecial(BytePairTokenizer):
    """Counts bytes and merges only."""

    @property
    def vocab_size(self) -> int:
        """One too few."""
        return super().vocab_size - 1


@tokenizer_mistake(
    "own-ids-shifted",
    "ids are shifted by one to make room for padding",
    kills=("without-merges-each-byte-is-one-id", "tokens-are-those-of-the-definition"),
)
class Shifted(BytePairTokenizer):
    """Encodes and decodes with an id for padding in front."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Renumber everything."""
        super().__init__(vocabulary)
        self.ids = {token: identifier + 1 for token, identifier in self.ids.items()}
        self.tokens = {identifier: token for token, identifier in self.ids.items()}


@tokenizer_mistake(
    "own-bytes-beyond-the-vocabulary",
    "single bytes get ids of their own after all others",
    kills=("ids-lie-in-the-vocabulary", "without-merges-each-byte-is-one-id"),
)
class BytesBeyond(BytePairTokenizer):
    """Texts still go round, but a table of embeddings has no rows for them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Move the bytes to the end."""
        super().__init__(vocabulary)
        for byte, character in self.characters.items():
            self.ids[character] = self.vocab_size + byte
            self.tokens[self.vocab_size + byte] = character
