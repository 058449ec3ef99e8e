"""The laws of tokenization: real tokenizers keep them, each mutant breaks those that it names."""

import unicodedata

import pytest

from attnspec.conformance import laws, mutants
from attnspec.conformance.byte_pair import BytePairTokenizer, byte_characters, kind
from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.record import Outcome
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.text_case import TextCase, definition
from attnspec.conformance.vocabularies import GPT2_MISSING, train, vocabulary
from attnspec.implementations import load_tokenizer, tokenizer_names
from attnspec.reference.text_implementations import TOKENIZER
from attnspec.spec import END_OF_TEXT, TokenizerImplementation

assert laws
assert mutants

LAWS = {name: law for name, law in registered().items() if law.judges is Judged.TOKENIZER}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, TokenizerImplementation)
}
SUBJECTS = {"reference": TOKENIZER} | {name: load_tokenizer(name) for name in tokenizer_names()}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_real_tokenizers_keep_the_laws(subject: str, law: str) -> None:
    record = check(LAWS[law], SUBJECTS[subject], Effort.SMOKE)
    if record.outcome in (Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE):
        pytest.skip(record.reason)
    assert record.outcome is Outcome.PASSED, record.message


@pytest.mark.parametrize(
    ("mutant", "law"), [(name, law) for name, each in MUTANTS.items() for law in each.kills]
)
def test_each_mutant_is_killed_by_each_law_that_it_names(mutant: str, law: str) -> None:
    record = check(LAWS[law], MUTANTS[mutant].subject, Effort.SMOKE)
    if record.outcome in (Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE):
        pytest.skip(record.reason)
    assert record.outcome is Outcome.FAILED, record


@pytest.mark.parametrize("law", LAWS)
def test_the_definition_keeps_the_laws_and_some_mutant_breaks_each(law: str) -> None:
    correct = TokenizerImplementation(name="definition", load=BytePairTokenizer)
    record = check(LAWS[law], correct, Effort.SMOKE)
    assert record.outcome in (Outcome.PASSED, Outcome.NOT_CLAIMED), record.message
    assert any(law in mutant.kills for mutant in MUTANTS.values())


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
    found = vocabulary(name)
    assert sorted(found.ids.values()) == list(range(len(found.ids)))
    assert len(found.ids) == 256 + len(found.merges) + 1
    assert found.ids[END_OF_TEXT] == len(found.ids) - 1
    assert not name.startswith("random") or len(found.merges) >= 8
    tokenizer = definition(name)
    for left, right in found.merges:
        assert tokenizer.merge(list(left + right)) == [left + right]


def test_the_released_vocabulary_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = pytest.importorskip("tiktoken.load")
    from attnspec.conformance import vocabularies

    asked: list[str] = []

    def offline(*given: str) -> bytes:
        asked.append(given[0])
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
    assert len(asked) == 1
    assert GPT2_MISSING


def test_what_the_libraries_do_on_their_own() -> None:
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


def test_a_case_prints_what_does_not_print() -> None:
    assert str(TextCase(text="\x00\u200d")) == "vocabulary=trained text='\\x00\\u200d'"
