"""Read the clauses of the specification, its numbered sentences, from its chapters."""

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
    "lengths",
    "cache",
    "gradients",
    "dropout",
    "tensors",
    "numerics",
    "block",
    "model",
    "generation",
    "rms_norm",
    "rotary",
    "gated_mlp",
    "experts",
    "online_softmax",
    "additive_attention",
    "encoder",
    "encoder_decoder",
    "packed",
    "paged",
)
"""The chapters in reading order, by the name of their Markdown page beside this module."""

_ANCHOR = re.compile(r"^\((?P<anchor>[A-Z]{3}-[0-9]+)\)=$")
_HEADING = re.compile(r"^#+ (?P<id>[A-Z]{3}-[0-9]+) (?P<title>.+)$")
_LEVEL = re.compile(r"\*\*(MUST NOT|MUST|SHOULD NOT|SHOULD|MAY)\*\*")
_HELD = re.compile(r"`(law_[a-z0-9_]+)`")
_SINCE = re.compile(r"\*\*Since\*\* (?P<version>[0-9]+\.[0-9]+\.[0-9]+)\.")


class Level(StrEnum):
    """The requirement level of a clause, in the words of RFC 2119."""

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
        title: its heading without the id.
        level: its requirement level.
        sentence: its normative sentence, without mark-up.
        chapter: the name of its page.
        enforced_by: the functions of the laws that enforce it, in the order of its page.
        since: the first version of the specification that has the clause.
        text: the whole clause as Markdown.
    """

    id: str
    title: str
    level: Level
    sentence: str
    chapter: str
    enforced_by: tuple[str, ...]
    since: str
    text: str

    @property
    def family(self) -> str:
        """The three letters before the number."""
        return self.id.partition("-")[0]


def chapter_text(chapter: str) -> str:
    """Return the Markdown of a chapter.

    Raises:
        KeyError: if the chapter does not exist; lists the chapters.
    """
    if chapter not in CHAPTERS:
        raise KeyError(f"no chapter {chapter!r}; the chapters are {', '.join(CHAPTERS)}")
    return files("attnspec.spec").joinpath(f"{chapter}.md").read_text(encoding="utf-8")


def parse(chapter: str, text: str) -> list[Clause]:
    """Read the clauses of one page.

    Raises:
        ValueError: if an anchor and its heading differ, or a clause lacks its sentence, its laws
            or its version.
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
    """Return the first line after `start` that opens a section and is not inside a code fence."""
    is_fenced = False
    for number in range(start + 1, len(lines)):
        if lines[number].startswith(("```", "~~~")):
            is_fenced = not is_fenced
        if not is_fenced and (lines[number].startswith("#") or _ANCHOR.match(lines[number])):
            return number
    return len(lines)


def _clause(chapter: str, identifier: str, title: str, body: list[str]) -> Clause:
    """Return one clause from the lines under its heading."""
    text = "\n".join(body).strip()
    paragraphs = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    normative = [paragraph for paragraph in paragraphs if _LEVEL.search(paragraph)]
    if len(normative) != 1:
        raise ValueError(
            f"{identifier}: one paragraph must hold its MUST, SHOULD or MAY, found {len(normative)}"
        )
    (level, *others) = _LEVEL.findall(normative[0])
    if others:
        raise ValueError(
            f"{identifier}: one sentence, one MUST, SHOULD or MAY; found {1 + len(others)}"
        )
    enforced_by = [paragraph for paragraph in paragraphs if paragraph.startswith("**Enforced by**")]
    if len(enforced_by) != 1:
        raise ValueError(
            f"{identifier}: one paragraph must name its laws, found {len(enforced_by)}"
        )
    since = _SINCE.search(enforced_by[0])
    if since is None or text.count("**Since**") != 1 or since.end() != len(enforced_by[0]):
        raise ValueError(f"{identifier}: after its laws, it must say **Since** and a version")
    return Clause(
        id=identifier,
        title=title.strip(),
        level=Level(level),
        sentence=normative[0].replace("**", "").replace("`", ""),
        chapter=chapter,
        enforced_by=tuple(_HELD.findall(enforced_by[0])),
        since=since["version"],
        text=text,
    )


@functools.cache
def all_clauses() -> dict[str, Clause]:
    """Return every clause of the specification by id, in reading order.

    Raises:
        ValueError: if two clauses have one id, or a page breaks the form.
    """
    clauses: dict[str, Clause] = {}
    for chapter in CHAPTERS:
        for new in parse(chapter, chapter_text(chapter)):
            if new.id in clauses:
                first = clauses[new.id].chapter
                raise ValueError(f"{new.id} is in both {first}.md and {chapter}.md")
            clauses[new.id] = new
    return clauses


def clause(identifier: str) -> Clause:
    """Return one clause.

    Raises:
        KeyError: if no clause has the id; lists the family's ids, or the families.
    """
    clauses = all_clauses()
    if identifier not in clauses:
        family = identifier.partition("-")[0].upper()
        families = sorted({other.family for other in clauses.values()})
        known = [other for other in clauses if other.startswith(family)] or families
        raise KeyError(f"no clause {identifier!r}; there are {', '.join(known)}")
    return clauses[identifier]
