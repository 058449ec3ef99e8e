"""The laws of TOK: the definition of byte-pair encoding, and the vocabularies of their cases."""

import itertools
import json
import unicodedata

import pytest

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.tokenization.words import _sum_of_scores
from attnspec.conformance.text.byte_pair import BytePairTokenizer, byte_characters, kind
from attnspec.conformance.text.tokenizer_cases import TextCase, definition
from attnspec.conformance.text.tokenizer_cases import tokenizer as tokenizer_of
from attnspec.conformance.text.vocabularies import GPT2_MISSING, of_scheme, train, vocabulary
from attnspec.conformance.text.words import (
    UnigramTokenizer,
    WordPieceTokenizer,
    define,
    split_words,
)
from attnspec.implementations import load_tokenizer
from attnspec.spec import END_OF_TEXT, UNKNOWN, Scheme, TokenizerImplementation, Vocabulary


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello world", ["Hello", " world"]),
        ("we'll they'd I'm", ["we", "'ll", " they", "'d", " I", "'m"]),
        ("IT'S", ["IT", "'", "S"]),
        ("a1b22", ["a", "1", "b", "22"]),
        ("x   y", ["x", "  ", " y"]),
        ("x \n\ty", ["x", " \n", "\t", "y"]),
        ("x  ", ["x", "  "]),
        (" !? ...", [" !?", " ..."]),
        ("''s", ["''", "s"]),
        ("\u00bd\u00b2\u0663", ["\u00bd\u00b2\u0663"]),
        ("e\u0301", ["e", "\u0301"]),
        ("a\u00a0b", ["a", "\u00a0", "b"]),
        ("a\x1fb", ["a", "\x1f", "b"]),
    ],
)
def test_pieces_are_those_of_the_rule(text: str, pieces: list[str]) -> None:
    assert list(definition("trained").pieces(text)) == pieces


@pytest.mark.slow
def test_white_space_is_that_of_unicode() -> None:
    differs = [chr(n) for n in range(0x110000) if chr(n).isspace() != (kind(chr(n)) == "space")]
    assert differs == ["\x1c", "\x1d", "\x1e", "\x1f"]
    assert unicodedata.category("\x1c") == "Cc"


def test_byte_characters_print_and_are_all_different() -> None:
    table = byte_characters()
    assert sorted(table) == list(range(256))
    assert len(set(table.values())) == 256
    assert all(character.isprintable() and character != " " for character in table.values())
    assert (table[0x20], table[0x0A], table[0x21]) == ("\u0120", "\u010a", "!")


def test_merges_follow_rank_not_place() -> None:
    small = train("small", "bc bc bc ab ab", 2)
    assert small.merges == [("b", "c"), ("a", "b")] or small.merges[0] == ("b", "c")
    tokenizer = BytePairTokenizer(small)
    assert tokenizer.merge(list("abc")) == ["a", "bc"]


@pytest.mark.parametrize("name", ["bytes", "trained", *(f"random-{n}" for n in range(40))])
def test_vocabularies_are_sound(name: str) -> None:
    trained = vocabulary(name)
    assert sorted(trained.ids.values()) == list(range(len(trained.ids)))
    assert len(trained.ids) == 256 + len(trained.merges) + 1
    assert trained.ids[END_OF_TEXT] == len(trained.ids) - 1
    assert not name.startswith("random") or len(trained.merges) >= 8
    tokenizer = definition(name)
    for left, right in trained.merges:
        assert tokenizer.merge(list(left + right)) == [left + right]


def test_the_released_vocabulary_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = pytest.importorskip("tiktoken.load")
    from attnspec.conformance.text import vocabularies

    requests: list[str] = []

    def offline(*given: str) -> bytes:
        requests.append(given[0])
        raise OSError("no network")

    monkeypatch.setattr(load, "read_file_cached", offline)
    vocabularies._fetched.cache_clear()
    vocabularies.vocabulary.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(NotClaimed, match="TIKTOKEN_CACHE_DIR"):
                vocabulary("gpt2")
    finally:
        vocabularies._fetched.cache_clear()
        vocabularies.vocabulary.cache_clear()
    assert len(requests) == 1
    assert GPT2_MISSING


def test_the_libraries_behave_as_the_notes_say() -> None:
    """The notes of TOK-5 and TOK-9 stay true, or must be changed."""
    tiktoken = pytest.importorskip("tiktoken")
    pytest.importorskip("transformers")
    theirs = load_tokenizer("huggingface_tokenizer").load(vocabulary("bytes")).tokenizer
    ours = load_tokenizer("tiktoken_gpt2").load(vocabulary("bytes")).encoding
    assert isinstance(ours, tiktoken.Encoding)
    assert ours.decode(ours.encode("a\ud800")) == "a\ufffd"
    assert ours.decode(ours.encode("\ud83d\ude00")) == "\U0001f600"
    with pytest.raises(TypeError):
        theirs.encode("a\ud800")
    assert theirs.decode([71, 5000]) == "h"
    with pytest.raises(KeyError):
        ours.decode([5000])
    with pytest.raises(OverflowError):
        ours.decode([-1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n\u3000", []),
        ("the cat", ["the", "cat"]),
        ("it's--late", ["it", "'", "s", "-", "-", "late"]),
        ("a_b+c$", ["a", "_", "b", "+", "c", "$"]),
        ("x\u00a0y\x1fz", ["x", "y\x1fz"]),
        ("\u00bfque? \u20ac5", ["\u00bf", "que", "?", "\u20ac5"]),
    ],
)
def test_words_are_those_of_the_rule(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("scheme", [s for s in Scheme if s is not Scheme.BYTE_PAIR])
def test_vocabularies_of_other_schemes_are_sound(scheme: Scheme) -> None:
    made = vocabulary(str(scheme))
    assert made.scheme is scheme
    assert sorted(made.ids.values()) == list(range(len(made.ids)))
    assert made.ids[UNKNOWN] == 0
    assert made.merges == []
    tokenizer = define(made)
    with pytest.raises(ValueError, match="is not in 0"):
        tokenizer.decode([tokenizer.vocab_size])


def test_every_word_of_the_training_text_is_made_of_known_pieces() -> None:
    text = "lower lowest low new newer"
    made = of_scheme(Scheme.WORD_PIECES, text, 8)
    tokenizer = WordPieceTokenizer(made)
    assert UNKNOWN not in tokenizer.split(text)
    assert tokenizer.split("low") == ["low"]
    assert tokenizer.split("slow") == [UNKNOWN]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_division_of_the_largest_sum_is_found() -> None:
    for number in range(20):
        made = vocabulary(f"unigram-{number}")
        tokenizer = UnigramTokenizer(made)
        for spelled in ("abcab", "ccbax", "\u2581ab\u2581b"):
            divisions = [
                [spelled[start:end] for start, end in itertools.pairwise((0, *cuts, len(spelled)))]
                for count in range(len(spelled))
                for cuts in itertools.combinations(range(1, len(spelled)), count)
            ]
            sums = [sum(map(tokenizer.score, division)) for division in divisions]
            assert sum(map(tokenizer.score, tokenizer.divide(spelled))) == max(sums)


def test_equal_sums_may_be_divided_in_any_way() -> None:
    ids = {UNKNOWN: 0, "\u2581a": 1, "b": 2, "\u2581": 3, "ab": 4, "a": 5}
    made = Vocabulary(
        name="ties",
        vocab_json=json.dumps(ids),
        special_tokens=(UNKNOWN,),
        scheme=Scheme.UNIGRAM,
        scores=(0.0, -1.0, -2.0, -1.0, -2.0, -4.0),
    )
    tokenizer = UnigramTokenizer(made)
    sums = [_sum_of_scores(tokenizer, each, "ab") for each in ([1, 2], [3, 4], [3, 5, 2])]
    assert sums == [-3.0, -3.0, -7.0]
    assert tokenizer.encode("ab") in ([1, 2], [3, 4])
    assert _sum_of_scores(tokenizer, [1, 0], "axyz") == -1.0 - 3 * 14.0
    assert _sum_of_scores(tokenizer, [1], "ab") is None


def test_the_library_divides_by_the_same_rule() -> None:
    pytest.importorskip("tokenizers")
    for number in range(20):
        made = vocabulary(f"unigram-{number}")
        theirs, ours = load_tokenizer("huggingface_words").load(made), UnigramTokenizer(made)
        for text in ("abcab cab", "xx a  b", "[UNK]", " cabbac\n"):
            ids = list(theirs.encode(text))
            assert _sum_of_scores(ours, ids, text) == _sum_of_scores(ours, ours.encode(text), text)
            if UNKNOWN not in ours.split(text) and 0 not in ids:
                assert theirs.decode(ids) == text


def test_the_law_of_known_text_has_known_text() -> None:
    law = laws.load()["known-text-comes-back"]
    for case in law.pinned:
        made = vocabulary(case.vocabulary)
        assert made.ids[UNKNOWN] not in define(made).encode(case.text), str(case)


def test_a_scheme_that_is_not_claimed_is_not_tried() -> None:
    subject = TokenizerImplementation(name="pairs", load=BytePairTokenizer)
    with pytest.raises(NotClaimed, match="scheme not claimed: words"):
        tokenizer_of(subject, "words")
    words = TokenizerImplementation(name="words", load=define, schemes=frozenset({Scheme.WORDS}))
    with pytest.raises(NotClaimed, match="scheme not claimed: byte_pair"):
        tokenizer_of(words, "trained")


def test_a_case_escapes_unprintable_characters() -> None:
    assert str(TextCase(text="\x00\u200d")) == "vocabulary=trained text='\\x00\\u200d'"
