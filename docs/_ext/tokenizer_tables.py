"""Sphinx: tables that compare tokenizers on one text, with vocabularies made when a page is built.

`{tokenizer_counts}` counts the tokens of its content under each of them, and `{tokenizer_pieces}`
lists these tokens and their ids. The vocabularies are learned from the chapter about tokenization.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from building import table, text
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.text.vocabularies import of_scheme, train, vocabulary
from attnspec.conformance.text.words import define
from attnspec.spec import UNKNOWN, Scheme, Tokenizer, Vocabulary, chapter_text

LEARNED = 300
"""Words, pieces, unigrams or merges that are learned."""

SHOWN = "\u2423"
"""A visible space."""


@functools.cache
def vocabularies() -> tuple[tuple[str, Vocabulary], ...]:
    """Return a vocabulary of each kind by name, and GPT-2's own if it is available."""
    corpus = chapter_text("tokenization")
    made = [
        ("characters", of_scheme(Scheme.CHARACTERS, corpus, LEARNED)),
        ("words", of_scheme(Scheme.WORDS, corpus, LEARNED)),
        ("word pieces", of_scheme(Scheme.WORD_PIECES, corpus, LEARNED)),
        ("unigrams", of_scheme(Scheme.UNIGRAM, corpus, LEARNED)),
        ("byte pairs", train("learned", corpus, LEARNED)),
    ]
    with contextlib.suppress(NotClaimed):
        made.append(("byte pairs of GPT-2", vocabulary("gpt2")))
    return tuple(made)


@dataclass(frozen=True)
class Division:
    """The tokens of a text under one tokenizer.

    Attributes:
        name: the kind of vocabulary.
        size: the number of ids of the vocabulary.
        tokens: the tokens, as text.
        ids: their ids.
        unknown: the number of unknown tokens.
        returned: the text that decoding gives.
    """

    name: str
    size: int
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    unknown: int
    returned: str


def divisions(given: str) -> Iterator[Division]:
    """Divide a text with each tokenizer."""
    for name, made in vocabularies():
        tokenizer: Tokenizer = define(made)
        ids = tuple(tokenizer.encode(given))
        yield Division(
            name=name,
            size=tokenizer.vocab_size,
            tokens=tuple(tokenizer.decode([number]) for number in ids),
            ids=ids,
            unknown=ids.count(made.ids[UNKNOWN]) if UNKNOWN in made.ids else 0,
            returned=tokenizer.decode(ids),
        )


def comes_back(division: Division, given: str) -> str:
    """Return in words whether decoding gives a text back."""
    if division.returned == given:
        return "exactly"
    if division.unknown:
        return "no: unknown tokens are lost"
    return "but for white space"


class Counts(SphinxDirective):
    """A table of counts, with a row for each tokenizer."""

    has_content = True

    def run(self) -> Sequence[nodes.Node]:
        """Return the table."""
        given = "\n".join(self.content)
        heads = ["tokens are", "ids", "tokens", "characters per token", "unknown", "comes back"]
        rows = [
            [
                text(each.name),
                text(str(each.size)),
                text(str(len(each.ids))),
                text(f"{len(given) / len(each.ids):.1f}"),
                text(str(each.unknown)),
                text(comes_back(each, given)),
            ]
            for each in divisions(given)
        ]
        return [table(heads, rows, "numbers")]


class Pieces(SphinxDirective):
    """A table of tokens and ids, with a row for each tokenizer."""

    has_content = True

    def run(self) -> Sequence[nodes.Node]:
        """Return the table."""
        given = "\n".join(self.content)
        rows = []
        for each in divisions(given):
            parts: list[nodes.Node] = []
            for token in each.tokens:
                shown = token.replace(" ", SHOWN)
                parts += [nodes.literal(shown, shown), nodes.Text(" ")]
            rows.append([text(each.name), parts, text(" ".join(map(str, each.ids)))])
        return [table(["tokens are", "tokens", "ids"], rows)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("tokenizer_counts", Counts)
    app.add_directive("tokenizer_pieces", Pieces)
    return {"parallel_read_safe": True}
