"""Clauses: the numbered sentences of the specification, read from its chapters."""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

CHAPTERS = (
    "conventions",
    "tokenization",
    "embedding",
    "layer_norm",
    "activation",
    "attention",
    "attention_options",
    "masking",
    "heads",
    "positions",
    "cache",
    "gradients",
    "dropout",
    "tensors",
    "numerics",
    "block",
    "model",
    "generation",
)
"""The chapters in reading order, each the name of a Markdown page beside this module."""

_ANCHOR = re.compile(r"^\((?P<anchor>[A-Z]{3}-[0-9]+)\)=$")
_HEADING = re.compile(r"^#+ (?P<id>[A-Z]{3}-[0-9]+) (?P<title>.+)$")
_LEVEL = re.compile(r"\*\*(MUST NOT|MUST|SHOULD NOT|SHOULD|MAY)\*\*")
_HELD = re.compile(r"`(law_[a-z0-9_]+)`")
_SINCE = re.compile(r"\*\*Since\*\* (?P<version>[0-9]+\.[0-9]+\.[0-9]+)\.")


class Level(StrEnum):
    """How binding a clause is, in the words of RFC 2119."""

    MUST = "MUST"
    MUST_NOT = "MUST NOT"
    SHOULD = "SHOULD"
    SHOULD_NOT = "SHOULD NOT"
    MAY = "MAY"


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One clause.

    Attributes:
        id: family and number, such as `ATT-2`.
        title: the rest of its heading.
        level: how binding it is.
        sentence: its normative sentence, without mark-up.
        chapter: the name of its page.
        held_by: the functions of the laws that its page names, in order.
        since: the first version of the specification that has it.
        text: the whole clause as Markdown.
    """

    id: str
    title: str
    level: Level
    sentence: str
    chapter: str
    held_by: tuple[str, ...]
    since: str
    text: str

    @property
    def family(self) -> str:
        """The three letters before the number."""
        return self.id.partition("-")[0]


def chapter_text(chapter: str) -> str:
    """Return the Markdown of a chapter.

    Raises:
        KeyError: for a chapter that does not exist, naming those that do.
    """
    if chapter not in CHAPTERS:
        raise KeyError(f"no chapter {chapter!r}; the chapters are {', '.join(CHAPTERS)}")
    return files("attnspec.spec").joinpath(f"{chapter}.md").read_text(encoding="utf-8")


def parse(chapter: str, text: str) -> list[Clause]:
    """Read the clauses of one page.

    Raises:
        ValueError: where an anchor and its heading differ, or a clause lacks its sentence, its
            laws or its version.
    """
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if _HEADING.match(line)]
    anchors = {n for n, line in enumerate(lines) if _ANCHOR.match(line)}
    if len(anchors) != len(starts):
        raise ValueError(f"{chapter}.md: {len(anchors)} anchors for {len(starts)} clause headings")
    clauses = []
    for start in starts:
        heading, anchor = _HEADING.match(lines[start]), _ANCHOR.match(lines[max(start - 1, 0)])
        if heading is None or anchor is None or anchor["anchor"] != heading["id"]:
            raise ValueError(
                f"{chapter}.md, line {start + 1}: the anchor above must be ({lines[start]})="
            )
        end = _end(lines, start)
        clauses.append(_clause(chapter, heading["id"], heading["title"], lines[start + 1 : end]))
    return clauses


def _end(lines: list[str], start: int) -> int:
    """The first line after `start` that opens another section and is not inside a code fence."""
    fenced = False
    for number in range(start + 1, len(lines)):
        if lines[number].startswith(("```", "~~~")):
            fenced = not fenced
        if not fenced and (lines[number].startswith("#") or _ANCHOR.match(lines[number])):
            return number
    return len(lines)


def _clause(chapter: str, identifier: str, title: str, body: list[str]) -> Clause:
    """Make the record of one clause from the lines under its heading."""
    text = "\n".join(body).strip()
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text)]
    normative = [each for each in paragraphs if _LEVEL.search(each)]
    if len(normative) != 1:
        raise ValueError(
            f"{identifier}: one paragraph must hold its MUST, SHOULD or MAY, found {len(normative)}"
        )
    (level, *others) = _LEVEL.findall(normative[0])
    if others:
        raise ValueError(
            f"{identifier}: one sentence, one MUST, SHOULD or MAY; found {1 + len(others)}"
        )
    held = [each for each in paragraphs if each.startswith("**Held by**")]
    if len(held) != 1:
        raise ValueError(f"{identifier}: one paragraph must name its laws, found {len(held)}")
    since = _SINCE.search(held[0])
    if since is None or text.count("**Since**") != 1 or since.end() != len(held[0]):
        raise ValueError(f"{identifier}: after its laws, it must say **Since** and a version")
    return Clause(
        id=identifier,
        title=title.strip(),
        level=Level(level),
        sentence=normative[0].replace("**", "").replace("`", ""),
        chapter=chapter,
        held_by=tuple(_HELD.findall(held[0])),
        since=since["version"],
        text=text,
    )


@functools.cache
def clauses() -> dict[str, Clause]:
    """Every clause of the specification by id, in reading order.

    Raises:
        ValueError: for two clauses of one id, or a page that breaks the form.
    """
    found: dict[str, Clause] = {}
    for chapter in CHAPTERS:
        for each in parse(chapter, chapter_text(chapter)):
            if each.id in found:
                raise ValueError(
                    f"{each.id} stands in {found[each.id].chapter}.md and {chapter}.md"
                )
            found[each.id] = each
    return found


def clause(identifier: str) -> Clause:
    """Return one clause.

    Raises:
        KeyError: for an id that no clause has, naming the family's ids.
    """
    every = clauses()
    if identifier not in every:
        family = identifier.partition("-")[0].upper()
        near = [each for each in every if each.startswith(family)] or sorted(
            {c.family for c in every.values()}
        )
        raise KeyError(f"no clause {identifier!r}; there are {', '.join(near)}")
    return every[identifier]
