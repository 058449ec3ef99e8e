"""Cases for tokenizers: a vocabulary by name, and a text or a list of ids."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed
from attnspec.conformance.text.byte_pair import BytePairTokenizer
from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.spec import END_OF_TEXT, Tokenizer, TokenizerImplementation


@dataclass(frozen=True, kw_only=True)
class TextCase:
    """A text to encode.

    Attributes:
        vocabulary: a name accepted by `attnspec.conformance.text.vocabularies.vocabulary`.
        text: any Python string.
    """

    vocabulary: str = "trained"
    text: str = ""

    def __str__(self) -> str:
        """Return the vocabulary and the text, with non-printing characters escaped."""
        return f"vocabulary={self.vocabulary} text={self.text!a}"


@dataclass(frozen=True, kw_only=True)
class IdsCase:
    """A list of ids to decode: `places` modulo the vocabulary's size, so that any list is valid."""

    vocabulary: str = "trained"
    places: tuple[int, ...] = ()

    @property
    def ids(self) -> list[int]:
        """The ids to decode."""
        size = definition(self.vocabulary).vocab_size
        return [place % size for place in self.places]

    def __str__(self) -> str:
        """Return the ids in full, or their places if the vocabulary is not available here."""
        try:
            return f"vocabulary={self.vocabulary} ids={self.ids}"
        except NotAvailable:
            return f"vocabulary={self.vocabulary} places={list(self.places)}"


@functools.lru_cache(maxsize=256)
def tokenizer(subject: TokenizerImplementation, name: str) -> Tokenizer:
    """Return the tokenizer under test for a vocabulary.

    Raises:
        NotAvailable: if this machine lacks the vocabulary.
        NotClaimed: if the subject refuses it.
    """
    loaded = vocabulary(name)
    if loaded.scheme not in subject.schemes:
        raise NotClaimed(f"scheme not claimed: {loaded.scheme}")
    reason = subject.supports(loaded)
    if reason is not None:
        raise NotClaimed(reason)
    return subject.load(loaded)


@functools.lru_cache(maxsize=256)
def definition(name: str) -> BytePairTokenizer:
    """Return the executable definition for a vocabulary."""
    return BytePairTokenizer(vocabulary(name))


FRAGMENTS = (
    *("the", " the", "other", "Theatre", " x", "I", "a", "e", "7", "2024", " 19"),
    *("\u00e9", "\u0434\u0430", "\u65e5\u672c", "\uac00\ub098", "\u0939\u093f", "\u05e9\u05dc"),
    *("\u0663", "\u00bd", "\u00b2", "\U0001f600", "e\u0301", "\u0301", "\u200d", "\u200b"),
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e6\U0001f1fa", "\U0010fffd", "\ufffd"),
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "\u2019s", "'", "''", " 's", "'l", "'sd"),
    *(" ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00a0", "\u2028", "\u3000", "\u0085"),
    *("\x1c", "\x1f", "\x00", "\ufeff", "\u0120", "\u010a"),
    *(".", "...", "!?", "--", "_", "\u2014", "<|", "|>", "<|endoftext", END_OF_TEXT),
)
"""Fragments that tokenizers often get wrong: contractions, white space, marks, joiners, bytes."""

PINNED_TEXTS = (
    *("", "a", "the other", "\n", " ", "   ", "a  b", "a \n b ", "it's", "we'll've", "\u00e9"),
    *("IT'S", "x'The", "'\u0434'd", "\x00", "e\u0301", "\U0001f469\u200d\U0001f467", "\ufffd"),
    *("a\r\nb\rc\n", "x1y22 \u00bd\u0663", "aaaaaaa ababab", "  the   theatre\u00a0gathers"),
    *("\u65e5\u672c\u8a9e", f"a{END_OF_TEXT}b", "...!? --", "\t\tif x:\n\t\t\ty", "\u0120the"),
    *("\x85\u2028\u3000x", "the father's brother, their mother"),
)
"""Texts to try first, smallest first."""

PINNED = tuple(
    TextCase(vocabulary=name, text=text)
    for text in PINNED_TEXTS
    for name in ("trained", "gpt2")
) + tuple(
    TextCase(vocabulary=f"random-{n}", text=text)
    for n in range(8)
    for text in ("abcabc", " abba abcb", "aaaaabbbbcccc", "cabcabbacab bacabcacbab")
)  # fmt: skip
"""Cases to try first on every law that takes a text."""

_RANDOM = 40  # vocabularies with random merges: enough to disagree on every order, few to load


def texts(*, known: bool = False) -> st.SearchStrategy[TextCase]:
    """Return a strategy of texts of Unicode scalar values with a vocabulary.

    Args:
        known: exclude code points that Python's Unicode version does not assign: their kind
            differs between versions.
    """
    characters = st.characters(exclude_categories=["Cs", "Cn"] if known else ["Cs"])
    fragments = st.lists(st.one_of(st.sampled_from(FRAGMENTS), characters), max_size=12)
    usual = st.builds(
        TextCase,
        vocabulary=st.sampled_from(["trained", "gpt2"]),
        text=st.one_of(st.text(characters, max_size=40), fragments.map("".join)),
    )
    merging = st.builds(
        TextCase,
        vocabulary=st.integers(0, _RANDOM - 1).map("random-{}".format),
        text=st.text("abc ", max_size=30),
    )
    return st.one_of(usual, usual, merging)


def exploring(*, known: bool = False) -> Callable[[object], st.SearchStrategy[TextCase]]:
    """Return the `explore` of a law that takes any text."""
    return lambda subject: texts(known=known)


def explore_ids(subject: object) -> st.SearchStrategy[IdsCase]:
    """Return a strategy of any ids: the `explore` of a law on decoding."""
    return st.builds(
        IdsCase,
        vocabulary=st.sampled_from(["trained", "gpt2", "bytes"]),
        places=st.lists(st.integers(0, 60_000), max_size=20).map(tuple),
    )
