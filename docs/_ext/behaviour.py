"""Sphinx: under each clause, how every implementation behaves, and the bugs that break it."""

import re
from collections import Counter

from building import Folded, Summary, joined, link, table, text
from docutils import nodes
from laws import killers, law_link, mutant_link
from results import WORDS, Behaviour, behaviours, paths, records
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.law import registered
from attnspec.spec import clauses

_CLAUSE = re.compile(r"[A-Z]{3}-[0-9]+\b")
_FEW = 6
"""Planted bugs that are named for each law; the page of the law names all."""


class Behaves(SphinxTransform):
    """Add to each clause what unfolds below the laws that hold it."""

    default_priority = 400

    def apply(self, **options: object) -> None:
        """Find the clauses of a page by the line that names their laws."""
        for strong in list(self.document.findall(nodes.strong)):
            paragraph, section = strong.parent, strong.parent.parent
            if strong.astext() != "Held by" or not isinstance(section, nodes.section):
                continue
            identifier = _CLAUSE.match(section[0].astext())
            if identifier and identifier[0] in clauses():
                for path in paths():
                    self.env.note_dependency(str(path))
                section.insert(section.index(paragraph) + 1, folded(identifier[0]))


def folded(identifier: str) -> Folded:
    """What unfolds below a clause."""
    found = behaviours(identifier, records())
    laws = [law for law in registered().values() if identifier in law.clauses]
    bugs = {each.id for law in laws for each in killers(law.name)}
    counts = Counter[str]()
    for each in found:
        counts[WORDS[each.outcome]] += len(each.subjects)
    told = [f"{word}: {count}" for word, count in counts.items()]
    told = ["Implementations: " + (", ".join(told) or "not yet tried")]
    told.append(f"planted bugs: {len(bugs)}")
    parts = [Summary("", " · ".join(told))]
    if found:
        parts.append(table(["", ""], map(_row, found), "behaviour"))
    for law in laws:
        parts.append(_bugs(law.name))
    return Folded("", *parts, classes=["behaviour"])


def _row(each: Behaviour) -> list[list[nodes.Node]]:
    """The outcome, and who behaves so and why."""
    who = joined(nodes.literal("", name) for name in each.subjects)
    if each.reason:
        who.append(nodes.Text(f": {each.reason}"))
    for address in each.links:
        who += [nodes.Text(". "), link(address.rpartition("#")[2], "Finding")]
    return [list(text(WORDS[each.outcome])), who]


def _bugs(law: str) -> nodes.paragraph:
    found = killers(law)
    told = [law_link(law), nodes.Text(" finds ")]
    told += joined(map(mutant_link, found[:_FEW]), "; ")
    if len(found) > _FEW:
        told.append(nodes.Text(f"; and {len(found) - _FEW} more"))
    return nodes.paragraph("", "", *told, nodes.Text("."))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the transform."""
    app.setup_extension("laws")
    app.add_transform(Behaves)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
