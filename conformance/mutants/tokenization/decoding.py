"""Mutants of tokenization: wrong decoding or token ids."""

from collections.abc import Sequence

from attnspec.conformance.mutants.tokenization.encoding import tokenizer_mistake
from attnspec.conformance.text.byte_pair import BytePairTokenizer
from attnspec.spec import Vocabulary


@tokenizer_mistake(
    "own-clean-up-spaces",
    "decoding drops the space before punctuation",
    killed_by="decoding-undoes-encoding",
)
class CleanUp(BytePairTokenizer):
    """A tokenizer that drops spaces before punctuation and merges double spaces when it decodes."""

    def read(self, data: bytes) -> str:
        """Read text and drop spaces before punctuation."""
        text = super().read(data)
        return text.replace(" .", ".").replace(" !", "!").replace("  ", " ")


@tokenizer_mistake(
    "own-decode-token-by-token",
    "each token is read as UTF-8 by itself, so that a character cut in two is lost",
    killed_by="single-byte-ids-decode-to-their-text",
)
class DecodeByToken(BytePairTokenizer):
    """A tokenizer that joins text instead of bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        """Read each token before joining."""
        return "".join(self.read(self.token_bytes(identifier)) for identifier in ids)


@tokenizer_mistake(
    "own-decode-drops-broken-bytes",
    "bytes that are no UTF-8 disappear",
    killed_by="bytes-are-joined-before-decoding",
)
class DropsBroken(BytePairTokenizer):
    """A tokenizer that decodes with `errors="ignore"`."""

    def read(self, data: bytes) -> str:
        """Read valid UTF-8 and drop the rest."""
        return data.decode("utf-8", errors="ignore")


@tokenizer_mistake(
    "own-decode-drops-unknown-ids",
    "an id outside the vocabulary decodes to nothing",
    killed_by="an-id-outside-the-vocabulary-is-refused",
)
class DropsUnknown(BytePairTokenizer):
    """A tokenizer that ignores unknown ids, like Hugging Face's by default."""

    def token_bytes(self, identifier: int) -> bytes:
        """Return no bytes for an unknown id."""
        return super().token_bytes(identifier) if identifier in self.tokens else b""


@tokenizer_mistake(
    "own-decode-negative-ids",
    "a negative id counts from the end of the vocabulary",
    killed_by="an-id-outside-the-vocabulary-is-refused",
)
class NegativeIds(BytePairTokenizer):
    """A tokenizer that looks ids up in a list."""

    def token_bytes(self, identifier: int) -> bytes:
        """Count negative ids from the end."""
        return super().token_bytes(identifier % self.vocab_size if identifier < 0 else identifier)


@tokenizer_mistake(
    "own-no-special-token",
    "the special token is missing: GPT-2 has 50 256 ids",
    killed_by="ids-lie-in-the-vocabulary",
)
class NoSpecial(BytePairTokenizer):
    """A tokenizer that counts bytes and merges only."""

    @property
    def vocab_size(self) -> int:
        """Return one too few."""
        return super().vocab_size - 1


@tokenizer_mistake(
    "own-ids-shifted",
    "ids are shifted by one to make room for padding",
    killed_by="without-merges-each-byte-is-one-id",
)
class Shifted(BytePairTokenizer):
    """A tokenizer that reserves the first id for padding."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Add one to every id."""
        super().__init__(vocabulary)
        self.ids = {token: identifier + 1 for token, identifier in self.ids.items()}
        self.tokens = {identifier: token for token, identifier in self.ids.items()}


@tokenizer_mistake(
    "own-bytes-beyond-the-vocabulary",
    "single bytes get ids of their own after all others",
    killed_by="ids-lie-in-the-vocabulary",
)
class BytesBeyond(BytePairTokenizer):
    """A tokenizer that round-trips texts, by ids for which an embedding table has no rows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Move the ids of single bytes to the end."""
        super().__init__(vocabulary)
        for byte, character in self.characters.items():
            self.ids[character] = self.vocab_size + byte
            self.tokens[self.vocab_size + byte] = character
