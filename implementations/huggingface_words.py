"""Hugging Face's tokenizers library: characters, words, word pieces and unigrams."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attnspec.spec import Scheme, TokenizerImplementation, Vocabulary

if TYPE_CHECKING:
    import tokenizers

LONGEST_WORD = 1_000_000
"""The library calls a longer word unknown; by default one of more than 100 characters."""
SPACE = "\u2581"
"""The character that stands for a space in the tokens of a unigram vocabulary."""


class HuggingFaceWords:
    """A `tokenizers.Tokenizer` that rejects unknown ids, which the library silently drops."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Put together the model, the pre-tokenizer and the decoder of a scheme."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers

        (unknown,) = vocabulary.special_tokens
        if vocabulary.scheme is Scheme.UNIGRAM:
            self.tokenizer = unigram(vocabulary)
            return
        if vocabulary.scheme is Scheme.WORD_PIECES:
            model: models.Model = models.WordPiece(
                vocab=vocabulary.ids, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD
            )
        else:
            model = models.WordLevel(vocab=vocabulary.ids, unk_token=unknown)
        self.tokenizer = tokenizers.Tokenizer(model)
        if vocabulary.scheme is Scheme.CHARACTERS:
            every = tokenizers.Regex(r"[\s\S]")
            self.tokenizer.pre_tokenizer = pre_tokenizers.Split(every, behavior="isolated")
            self.tokenizer.decoder = decoders.Fuse()
        else:
            self.tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        if vocabulary.scheme is Scheme.WORD_PIECES:
            # by default it also drops spaces before punctuation
            self.tokenizer.decoder = decoders.WordPiece(cleanup=False)

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str, *, allowed_special: Collection[str] = frozenset()) -> list[int]:
        """Encode; no text spells a special token.

        Raises:
            UnicodeEncodeError: (a `ValueError`) if the text holds a lone surrogate.
        """
        text.encode("utf-8")
        return self.tokenizer.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode, the unknown token included.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        outside = [number for number in ids if not 0 <= number < self.vocab_size]
        if outside:
            raise ValueError(f"id {outside[0]} is not in 0..{self.vocab_size - 1}")
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


def unigram(vocabulary: Vocabulary) -> "tokenizers.Tokenizer":
    """Return the library's tokenizer of a unigram vocabulary, with SentencePiece's spaces."""
    import tokenizers
    from tokenizers import decoders, models, normalizers

    (unknown,) = vocabulary.special_tokens
    # the library finds the unknown token in a text that spells it; no normalized text has a space
    names = (token if token != unknown else f"{unknown} " for token in vocabulary.ids)
    scored = list(zip(names, vocabulary.scores, strict=True))
    made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=vocabulary.ids[unknown]))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def unavailable() -> str | None:
    """Return the reason why this cannot run here, or None."""
    is_installed = importlib.util.find_spec("tokenizers")
    return None if is_installed else "tokenizers is not installed: pip install attnspec[gpt2]"


TOKENIZER = TokenizerImplementation(
    name="huggingface_words",
    load=HuggingFaceWords,
    schemes=frozenset(Scheme) - {Scheme.BYTE_PAIR},
    unavailable=unavailable,
)
