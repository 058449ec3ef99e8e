"""Parts of docstrings, for the pages that show them: sections, entries, links to clauses."""

import re
import textwrap
from collections.abc import Iterable

_CLAUSE = re.compile(r"\b[A-Z]{3}-[0-9]+\b")
_SECTION = re.compile(r"^[A-Z]\w+:$")
_PLURAL = re.compile(r"(`\w+`)s\b")
_DISTANCE = re.compile(r"\|(\w[^|`\\]*\w)\|")


def as_restructured_text(line: str) -> str:
    """Return a line in which a plural after code, and a distance such as `|i - j|`, stay text."""
    return _DISTANCE.sub(r"\|\1\|", _PLURAL.sub(r"\1\ s", line))


def sections(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the sections of a docstring by their headings, the first under an empty one."""
    by_heading: dict[str, list[str]] = {"": []}
    section = by_heading[""]
    for line in lines:
        if _SECTION.match(line):
            section = by_heading.setdefault(line, [])
        else:
            section.append(line)
    return by_heading


def entries(lines: Iterable[str]) -> dict[str, str]:
    """Return the texts of a section such as Args or Attributes by the names before its colons."""
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?=\**\w+:)", textwrap.dedent("\n".join(lines)).strip()):
        name, _, text = entry.partition(":")
        texts[name.lstrip("*")] = " ".join(text.split())
    return texts


def joined(lines: Iterable[str]) -> str:
    """Return the text of a section in one line."""
    return " ".join(line.strip() for line in lines).strip()


def linked_clauses(text: str) -> str:
    """Return reStructuredText in which each id of a clause is a link."""
    return _CLAUSE.sub(lambda match: f":ref:`{match[0]} <{match[0].lower()}>`", text)
