"""The tokenizer: round trips, equality with Hugging Face's, and broken vocabularies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnspec.reference.tokenizer import Tokenizer, TokenizerError
from attnspec.reference.vocabulary import merge

END = "<|endoftext|>"
CORPUS = [
    "It's said that the ship wasn't here; they're late, we've waited, and I'll go if you'd stay.",
    "  indented\n\n\ttext,   with    spaces; 2024, 1999, 100 and the theatre of the others.\n",
    "naïve café, Ærøskøbing, Ελληνικά, русский язык, 日本語の日本, 한국어, हिन्दी, 😀😀 👩‍👩‍👧",
    "aaaa aaaaaaa abab ababab bababa the then there these other another mother",
]
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=60) | st.lists(
    st.sampled_from(["the", " ", "  ", "'s", "'re", "é", "日", "\n", "aaa", "7", END, "<|"]),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Train a vocabulary with Hugging Face's library, its special token first."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(CORPUS * 4, vocab_size=420, min_frequency=2, special_tokens=[END])
    folder = tmp_path_factory.mktemp("vocabulary")
    vocab, merges = trained.save_model(str(folder))
    return Path(vocab), Path(merges)


@pytest.fixture(scope="module")
def trained(files: tuple[Path, Path]) -> Tokenizer:
    """Load the trained vocabulary with our tokenizer."""
    return Tokenizer.from_files(*files)


@pytest.fixture(scope="module")
def peer(files: tuple[Path, Path]) -> tokenizers.ByteLevelBPETokenizer:
    """Load the same files with Hugging Face's tokenizer, which knows no special token."""
    return tokenizers.ByteLevelBPETokenizer(*map(str, files))


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    """Load the released vocabulary, or skip the test without it."""
    try:
        return Tokenizer.gpt2()
    except TokenizerError as error:
        pytest.skip(str(error))


@settings(deadline=None)
@given(text)
def test_text_comes_back(trained: Tokenizer, written: str) -> None:
    ids = trained.encode(written)
    assert trained.decode(ids) == written
    assert trained.decode_bytes(ids) == written.encode()
    assert all(0 <= token < trained.vocab_size for token in ids)
    assert 0 not in ids
    allowed = trained.encode(written, allowed_special=[END])
    assert trained.decode(allowed) == written
    assert allowed.count(0) == written.count(END)


@settings(deadline=None)
@given(text)
def test_a_trained_vocabulary_gives_hugging_faces_ids(
    trained: Tokenizer, peer: tokenizers.ByteLevelBPETokenizer, written: str
) -> None:
    assert trained.encode(written) == peer.encode(written).ids


def test_ids_need_not_follow_the_merges(files: tuple[Path, Path], tmp_path: Path) -> None:
    ids = json.loads(files[0].read_text())
    turned = tmp_path / "vocab.json"
    turned.write_text(json.dumps({token: 3 * (len(ids) - number) for token, number in ids.items()}))
    straight, other = (Tokenizer.from_files(vocab, files[1]) for vocab in (files[0], turned))
    for line in CORPUS:
        encoded = other.encode(line)
        assert encoded == [3 * (len(ids) - number) for number in straight.encode(line)]
        assert other.decode(encoded) == line
    assert other.vocab_size == 3 * len(ids) + 1
    with pytest.raises(ValueError, match=r"ids\[0\]: 4 is no token"):
        other.decode([4])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text)
def test_the_released_vocabulary_gives_text_back(gpt2: Tokenizer, written: str) -> None:
    assert gpt2.decode(gpt2.encode(written)) == written


def test_the_released_vocabulary_is_the_known_one(gpt2: Tokenizer) -> None:
    assert gpt2.vocab_size == 50257
    assert gpt2.special_tokens == {END}
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.encode(END, allowed_special={END}) == [50256]
    assert len(gpt2.encode(END)) == 7


def test_a_vocabulary_out_of_reach_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise ConnectionError(name)

    monkeypatch.setattr("tiktoken.get_encoding", unreachable)
    with pytest.raises(TokenizerError, match=r"TIKTOKEN_CACHE_DIR.*\(ConnectionError\)"):
        Tokenizer.gpt2()


@pytest.mark.parametrize(
    ("written", "place"), [("ab\ud800c", 2), ("\udfff", 0), ("\ud83d\ude00", 0)]
)
def test_lone_surrogates_are_refused(trained: Tokenizer, written: str, place: int) -> None:
    with pytest.raises(ValueError, match=f"position {place} is a lone surrogate"):
        trained.encode(written)


def test_bad_ids_and_special_tokens_are_refused(trained: Tokenizer) -> None:
    for bad in (-1, trained.vocab_size, 2**70):
        with pytest.raises(ValueError, match=rf"ids\[1\]: {bad} is no token"):
            trained.decode([1, bad])
    with pytest.raises(TypeError):
        trained.decode([1.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no special 'the'"):
        trained.encode("the", allowed_special=["the"])


def test_a_character_cut_in_two_is_replaced(trained: Tokenizer) -> None:
    ids = trained.encode("\U00010348")
    assert len(ids) > 1
    assert "\ufffd" in trained.decode(ids[:1])
    assert trained.decode(ids) == "\U00010348"


def test_merging_takes_the_best_pair_first_and_the_leftmost_of_equals() -> None:
    ranks = {b"bc": 0, b"ab": 1, b"aa": 2}
    assert merge(b"abc", ranks) == [b"a", b"bc"]
    assert merge(b"aaa", ranks) == [b"aa", b"a"]
    assert merge(b"x", ranks) == [b"x"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, lines: (ids | {"!": "1"}, lines), "vocab.json: the id of '!' must be a count"),
        (lambda ids, lines: (ids | {"!": ids["a"]}, lines), "share the id"),
        (lambda ids, lines: ({t: n for t, n in ids.items() if t != "a"}, lines), "holds no 'a'"),
        (lambda ids, lines: ([], lines), "must hold a JSON object"),
        (lambda ids, lines: (ids, [*lines, "a b c"]), "is no pair of tokens: 'a b c'"),
        (lambda ids, lines: (ids, [*lines, "a \x01"]), "is no pair of tokens"),
        (lambda ids, lines: (ids, [*lines, "q q"]), "vocab.json: holds no 'qq'"),
        (lambda ids, lines: (ids, [*lines, lines[1]]), "a second time"),
        (lambda ids, lines: (ids, ["q qq", *lines[1:]]), "line 1 can never apply"),
    ],
)
def test_a_broken_vocabulary_is_named(
    files: tuple[Path, Path],
    tmp_path: Path,
    change: Callable[[dict[str, int], list[str]], tuple[object, list[str]]],
    message: str,
) -> None:
    ids, lines = json.loads(files[0].read_text()), files[1].read_text().splitlines()
    changed, merges = change(ids, lines)
    (tmp_path / "vocab.json").write_text(json.dumps(changed))
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")


def test_missing_and_unreadable_files_are_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"nothing.json: cannot be read"):
        Tokenizer.from_files(tmp_path / "nothing.json", files[1])
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"vocab.json: is no JSON"):
        Tokenizer.from_files(tmp_path / "vocab.json", files[1])
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"merges.txt: cannot be read as text"):
        Tokenizer.from_files(files[0], tmp_path / "merges.txt")
