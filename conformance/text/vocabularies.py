"""Vocabularies to test tokenizers on: the released one, one trained here, and random ones."""

import contextlib
import functools
import itertools
import json
import math
import random
import re
import socket
from collections import Counter
from collections.abc import Iterator

from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.text.byte_pair import BytePairTokenizer, byte_characters
from attnspec.conformance.text.words import CONTINUES, SPACE, UnigramTokenizer, split_words
from attnspec.spec import END_OF_TEXT, UNKNOWN, Scheme, Vocabulary

GPT2_MISSING = (
    "the GPT-2 vocabulary is not in tiktoken's cache and cannot be downloaded: connect to the "
    "network once, or set TIKTOKEN_CACHE_DIR to a folder that holds it"
)

_FILES = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_PATIENCE = 10.0  # seconds without a response after which a download counts as failed

_CORPUS = """\
It's said that the cat isn't here; they're late, we've waited, I'll go and he'd stay. I'm sure.
The theatre there gathers the others: their mother, their father, the brother. Then 2024, 1999, 100.
   indented text\n\n\twith tabs,  two spaces   and three; "quoted" (bracketed) -- dash ... dotted!?
naïve café, Ærø, Übergröße, Dvořák, Ελληνικά και ελληνική γλώσσα, русский язык и русская речь,
日本語の日本の日々, 한국어 한국, हिन्दी हिन्दी, עברית, العربية, 😀😀 👩‍👩‍👧 👩‍👧 e\u0301 ½ ²² ٣٤
aaaa aaaaaaa aaa abab ababab bababa the the the the the he he he in in on on
"""
_MERGES = 160

_WORDS = """\
the cat sat on the mat, and the other cats sat with the cat. the fathers gathered there; then they
were late: "it is late", they said. there was rain (much rain), and the theatre was there!
tokens, tokenizers and tokenization: a token is a part of a text. l'été, naïve? 12 and 2024.
"""


@functools.cache
def vocabulary(name: str) -> Vocabulary:
    """Return a vocabulary by name.

    Args:
        name: `gpt2`; `trained`, by byte-pair training on a fixed text; `bytes`, without any merge;
            `random-N`, with random merges over few letters, where the order of merges matters most;
            `characters`, `words`, `word_pieces`, `unigram`, of another scheme, from a fixed text;
            `unigram-N`, with random scores over few letters, where sums of scores matter most.

    Raises:
        NotAvailable: if the files of `gpt2` are not in tiktoken's cache and cannot be downloaded.
    """
    if name == "gpt2":
        return Vocabulary(
            name=name, vocab_json=_file("encoder.json"), merges_txt=_file("vocab.bpe")
        )
    if name == "bytes":
        return _assemble(name, [])
    if name == "trained":
        return train(name, _CORPUS, _MERGES)
    if name in set(Scheme):
        return of_scheme(Scheme(name), _WORDS, 60)
    if name.startswith("unigram-"):
        return _random_unigram(name, random.Random(name))
    return _random(name, random.Random(name))


def of_scheme(scheme: Scheme, corpus: str, size: int) -> Vocabulary:
    """Make a vocabulary of characters, words, word pieces or unigrams from a text.

    Args:
        scheme: one of these four.
        corpus: the text.
        size: the largest number of words, the most frequent ones first, or of pieces or unigrams
            that are longer than a character; ignored for characters, all of which are taken.
    """
    if scheme is Scheme.UNIGRAM:
        return _with_scores(str(scheme), _unigrams(corpus, size))
    tokens: list[str]
    if scheme is Scheme.CHARACTERS:
        tokens = sorted(set(corpus))
    elif scheme is Scheme.WORDS:
        counts = Counter(split_words(corpus))
        tokens = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    else:
        tokens = _word_pieces(Counter(split_words(corpus)), size)
    return Vocabulary(
        name=str(scheme),
        vocab_json=json.dumps({token: number for number, token in enumerate([UNKNOWN, *tokens])}),
        special_tokens=(UNKNOWN,),
        scheme=scheme,
    )


def _word_pieces(words: Counter[str], size: int) -> list[str]:
    """Learn word pieces: characters, then the most frequent pair of pieces each time."""
    spelled = {
        word: [word[0], *(CONTINUES + letter for letter in word[1:])] for word in sorted(words)
    }
    tokens = sorted({piece for pieces in spelled.values() for piece in pieces})
    for _ in range(size):
        counts: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelled.items():
            for pair in itertools.pairwise(pieces):
                counts[pair] += words[word]
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        joined = best[0] + best[1].removeprefix(CONTINUES)
        tokens.append(joined)
        for pieces in spelled.values():
            for place in range(len(pieces) - 1):
                if tuple(pieces[place : place + 2]) == best:
                    pieces[place : place + 2] = [joined]
    return list(dict.fromkeys(tokens))


_ROUNDS = 4
_LONGEST = 8


def _unigrams(corpus: str, size: int) -> dict[str, float]:
    """Learn tokens and their scores: divide the words, count the tokens used, keep the frequent.

    A word counts for its most probable division alone; the source weighs all of its divisions.

    Source:
        Kudo 2018, section 3.2
    """
    # no token has letters beside punctuation, or a space elsewhere than before a word
    words = Counter(re.findall(rf"{SPACE}?\w+|[\s\S]", (" " + corpus).replace(" ", SPACE)))
    characters = Counter({letter: 1 for word in words for letter in word})
    counts: Counter[str] = Counter()
    for word, occurrences in words.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            if end - start <= _LONGEST:
                counts[word[start:end]] += occurrences
    for left in reversed(range(_ROUNDS)):
        kept = sorted(
            (token for token in counts if len(token) > 1), key=lambda token: (-counts[token], token)
        )[: size * 2**left]
        counts = characters + Counter({token: counts[token] for token in kept})
        scores = _log_probabilities(counts)
        tokenizer = UnigramTokenizer(_with_scores("untrained", scores))
        counts = Counter()
        for word, occurrences in words.items():
            for token in tokenizer.divide(word):
                counts[token] += occurrences
    return _log_probabilities(characters + Counter({token: counts[token] for token in kept}))


def _log_probabilities(counts: Counter[str]) -> dict[str, float]:
    """Return logarithms of shares, as multiples of 2^-10, so that their sums are exact."""
    total = counts.total()
    return {token: round(math.log(counts[token] / total) * 1024) / 1024 for token in sorted(counts)}


def _random_unigram(name: str, source: random.Random) -> Vocabulary:
    """Draw tokens over three letters and the space, with scores of few different values."""
    alphabet = ["a", "b", "c", SPACE]
    scores = {letter: -source.randint(24, 48) / 8 for letter in source.sample(alphabet, 3)}
    for _ in range(24):
        token = "".join(source.choices(alphabet, k=source.randint(2, 5)))
        scores[token] = -source.randint(16, 80) / 8
    return _with_scores(name, scores)


def _with_scores(name: str, scores: dict[str, float]) -> Vocabulary:
    """Number the tokens of a unigram vocabulary, the unknown one first."""
    tokens = [UNKNOWN, *scores]
    return Vocabulary(
        name=name,
        vocab_json=json.dumps({token: number for number, token in enumerate(tokens)}),
        special_tokens=(UNKNOWN,),
        scheme=Scheme.UNIGRAM,
        scores=(0.0, *scores.values()),
    )


def train(name: str, corpus: str, merges: int) -> Vocabulary:
    """Learn merges from a text: the most frequent pair each time; of equals, the smallest.

    Source:
        Sennrich, Haddow and Birch 2016, algorithm 1
    """
    base = BytePairTokenizer(_assemble("untrained", []))
    words: Counter[tuple[str, ...]] = Counter(
        tuple(base.spell(piece)) for piece in base.pieces(corpus)
    )
    learned: list[tuple[str, str]] = []
    for _ in range(merges):
        counts: Counter[tuple[str, str]] = Counter()
        for word, occurrences in words.items():
            for pair in itertools.pairwise(word):
                counts[pair] += occurrences
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        learned.append(best)
        base.ranks = {best: 0}
        merged: Counter[tuple[str, ...]] = Counter()
        for word, occurrences in words.items():
            merged[tuple(base.merge(list(word)))] += occurrences
        words = merged
    return _assemble(name, learned)


def _random(name: str, source: random.Random) -> Vocabulary:
    """Draw merges over a few letters, each reachable: its token is encoded as that one token."""
    alphabet = ["a", "b", "c", byte_characters()[ord(" ")]]
    tokens, merges = list(alphabet), list[tuple[str, str]]()
    for _ in range(40):
        pair = source.choice(tokens), source.choice(tokens[: len(alphabet)] + tokens[-6:])
        token = pair[0] + pair[1]
        # a space begins a piece and is never inside one
        if token in tokens or alphabet[-1] in token[1:] or len(token) > 8:
            continue
        candidate = BytePairTokenizer(_assemble(name, [*merges, pair]))
        if candidate.merge(list(token)) == [token]:
            merges.append(pair)
            tokens.append(token)
    return _assemble(name, merges)


def _assemble(name: str, merges: list[tuple[str, str]]) -> Vocabulary:
    """Number the tokens as GPT-2 does: bytes as written, merges, then the special token."""
    tokens = [*byte_characters().values(), *(left + right for left, right in merges), END_OF_TEXT]
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges), ""]
    return Vocabulary(
        name=name,
        vocab_json=json.dumps({token: number for number, token in enumerate(tokens)}),
        merges_txt="\n".join(lines),
    )


def _file(name: str) -> str:
    """Return the content of a file of the released vocabulary.

    Raises:
        NotAvailable: if it is neither cached nor can be downloaded.
    """
    content, reason = _fetched(name)
    if reason:
        raise NotAvailable(reason)
    return content


@functools.cache
def _fetched(name: str) -> tuple[str, str]:
    """Return (content, "") of a file in tiktoken's cache or downloaded, or ("", reason); cached."""
    try:
        from tiktoken.load import read_file_cached
    except ImportError:
        return "", "tiktoken is not installed: pip install attnspec[gpt2]"
    try:
        with _socket_timeout():
            return read_file_cached(_FILES + name, _SHA256[name]).decode("utf-8"), ""
    except (OSError, ValueError):
        return "", GPT2_MISSING


@contextlib.contextmanager
def _socket_timeout() -> Iterator[None]:
    """Limit the wait for a silent network: tiktoken itself sets no timeout."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
