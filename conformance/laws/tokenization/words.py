"""Laws of TOK: vocabularies of characters, words, word pieces and unigrams."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.tokenizer_cases import TextCase, tokenizer
from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.conformance.text.words import SPACE, UnigramTokenizer, define, split_words
from attnspec.spec import UNKNOWN, Scheme, TokenizerImplementation

_COST = 0.25  # a short text takes less time than a plain attention call

_TEXTS = (
    *("", "a", "the", "cat", "xyz", "é", " ", "a  b", "the cat sat", "The Cat"),
    *(
        "catsat",
        "thethe",
        "tokenizing",
        "theatres",
        "a,b",
        "l'été!",
        "the\ncat\tsat",
        "it (is)",
        "rain.\n\train",
    ),
    *("cat xylophone cat", "catx", "xcat", "2024 12 20", "[UNK]", "##s", "日本 cat", "a-b_c"),
    *("and the others gathered there, late", "\x1fa", "naïve ½", "cat" * 60),
)

_KNOWN = (
    *("", "a", "the", "cat", " ", "the cat sat", "the  cats", " it ", "the,cat", "the\ncat"),
    *("l'été!", "the (cat) sat.", '"it is late", they said', "tokens and\n\n tokenizers: text"),
    "there was rain; then the cats sat with the fathers, there.",
)
"""Texts without unknown tokens under each vocabulary."""

_FRAGMENTS = (
    *("the", "cat", "s", "on", "there", "token", "ization", "x", "Z", "é", "12", "0", "ß", "日"),
    *(" ", "  ", "\n", "\t", "\u00a0", "\u3000", ",", ".", "!", "(", ")", "'", '"', "#", "-", "_"),
)


def _pinned(texts: Sequence[str], *schemes: Scheme) -> list[TextCase]:
    return [TextCase(vocabulary=str(scheme), text=text) for text in texts for scheme in schemes]


def _texts(*schemes: Scheme) -> Callable[[object], st.SearchStrategy[TextCase]]:
    text = st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join)
    return lambda subject: st.builds(
        TextCase, vocabulary=st.sampled_from([str(scheme) for scheme in schemes]), text=text
    )


def _check_ids(subject: TokenizerImplementation, case: TextCase) -> None:
    judged = tokenizer(subject, case.vocabulary)
    definition = define(vocabulary(case.vocabulary))
    ids, expected = list(judged.encode(case.text)), list(definition.encode(case.text))
    if ids != expected:
        raise Violation(f"encode(text): expected {expected}, got {ids}")


@law(
    "TOK-11",
    pinned=_pinned(_TEXTS, Scheme.CHARACTERS),
    explore=_texts(Scheme.CHARACTERS),
    cost=_COST,
)
def law_each_character_is_one_id(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-11: with a vocabulary of characters, each character is one id, or unknown."""
    _check_ids(subject, case)


@law("TOK-12", pinned=_pinned(_TEXTS, Scheme.WORDS), explore=_texts(Scheme.WORDS), cost=_COST)
def law_each_word_is_one_id(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-12: with a vocabulary of words, each word and punctuation mark is one id, or unknown."""
    _check_ids(subject, case)


@law(
    "TOK-13",
    pinned=_pinned(_TEXTS, Scheme.WORD_PIECES),
    explore=_texts(Scheme.WORD_PIECES),
    cost=_COST,
)
def law_words_are_cut_into_the_longest_pieces(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-13: a word is cut into the longest known pieces from the left, or is unknown."""
    _check_ids(subject, case)


_RANDOM = 20  # unigram vocabularies with random scores: enough to disagree, few to load


def _unigram_texts(subject: object) -> st.SearchStrategy[TextCase]:
    random = st.builds(
        TextCase,
        vocabulary=st.integers(0, _RANDOM - 1).map("unigram-{}".format),
        text=st.text("abc x", max_size=20),
    )
    return st.one_of(random, _texts(Scheme.UNIGRAM)(subject))


def _sum_of_scores(definition: UnigramTokenizer, ids: Sequence[int], text: str) -> float | None:
    """Return the sum of the scores of ids that spell a text, or None if they do not spell it.

    An unknown token spells any characters that are no tokens; of several readings, the largest sum
    is taken. Scores are multiples of 2^-10, so that their sums are exact.
    """
    spelled = definition.spell(text)
    sums = {0: 0.0}
    for number in ids:
        token = definition.tokens.get(number, "")
        following: dict[int, float] = {}
        for start, before in sums.items():
            if token != UNKNOWN:
                if token and spelled.startswith(token, start):
                    following[start + len(token)] = before + definition.scores[token]
                continue
            for end in range(start + 1, len(spelled) + 1):
                if spelled[end - 1] in definition.scores:
                    break
                reading = before + (end - start) * definition.unknown
                following[end] = max(reading, following.get(end, reading))
        sums = following
    return sums.get(len(spelled))


@law(
    "TOK-15",
    pinned=(
        *_pinned(_TEXTS, Scheme.UNIGRAM),
        *(
            TextCase(vocabulary=f"unigram-{n}", text=text)
            for n in range(8)
            for text in ("abcabc", "abba abcb", "aaaaabbbbcccc", "axxb xc", "cabcabbacab bacab")
        ),
    ),
    explore=_unigram_texts,
    cost=_COST,
)
def law_unigram_tokens_have_the_largest_sum_of_scores(
    subject: TokenizerImplementation, case: TextCase
) -> None:
    """TOK-15: the tokens of a unigram vocabulary spell the text and are the most probable ones."""
    judged = tokenizer(subject, case.vocabulary)
    definition = UnigramTokenizer(vocabulary(case.vocabulary))
    ids, expected = list(judged.encode(case.text)), definition.encode(case.text)
    if ids == expected:
        return
    got, best = (_sum_of_scores(definition, each, case.text) for each in (ids, expected))
    if got is None:
        raise Violation(f"encode(text): expected {expected}, got {ids}, which spell another text")
    if got != best:
        raise Violation(
            f"encode(text): expected {expected}, whose scores sum to {best}, got {ids} with {got}"
        )


_SCHEMES = (Scheme.CHARACTERS, Scheme.WORDS, Scheme.WORD_PIECES, Scheme.UNIGRAM)


@law("TOK-14", pinned=_pinned(_KNOWN, *_SCHEMES), explore=_texts(*_SCHEMES), cost=_COST)
def law_known_text_comes_back(subject: TokenizerImplementation, case: TextCase) -> None:
    """TOK-14: text without unknown tokens comes back, of words with single spaces between them."""
    judged = tokenizer(subject, case.vocabulary)
    loaded = vocabulary(case.vocabulary)
    if loaded.ids[UNKNOWN] in define(loaded).encode(case.text):
        raise NotClaimed("the text has unknown tokens")
    if loaded.scheme is Scheme.UNIGRAM and SPACE in case.text:
        raise NotClaimed(f"the text has the character that stands for a space, {SPACE!a}")
    is_exact = loaded.scheme in (Scheme.CHARACTERS, Scheme.UNIGRAM)
    expected = case.text if is_exact else " ".join(split_words(case.text))
    ids = judged.encode(case.text)
    text = judged.decode(ids)
    if text != expected:
        raise Violation(f"decode(encode(text)): expected {expected!a}, got {text!a}")
    again = list(judged.encode(text))
    if again != list(ids):
        raise Violation(f"encode({text!a}): expected the ids {list(ids)} again, got {again}")
