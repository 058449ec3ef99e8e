"""Sphinx: under each clause, the behaviour of every implementation and the mutants of its laws."""

import re
from collections import Counter

from building import Folded, Summary, joined, link, table, text
from docutils import nodes
from laws import law_link, mutant_link, mutants_killed
from results import WORDS, Behaviour, behaviours, paths, records
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.laws import load as load_laws
from attnspec.spec import all_clauses

_CLAUSE = re.compile(r"[A-Z]{3}-[0-9]+\b")
_FEW = 6
"""The number of mutants that are named for each law; the page of the law names all."""


class Behaves(SphinxTransform):
    """Add the folded part below the laws of each clause."""

    default_priority = 400

    def apply(self, **options: object) -> None:
        """Find the clauses of a page by the line that names their laws."""
        for strong in list(self.document.findall(nodes.strong)):
            paragraph, section = strong.parent, strong.parent.parent
            if strong.astext() != "Enforced by" or not isinstance(section, nodes.section):
                continue
            identifier = _CLAUSE.match(section[0].astext())
            if identifier and identifier[0] in all_clauses():
                for path in paths():
                    self.env.note_dependency(str(path))
                section.insert(section.index(paragraph) + 1, folded(identifier[0]))


def folded(identifier: str) -> Folded:
    """Return the folded part below a clause."""
    groups = behaviours(identifier, records())
    laws = [law for law in load_laws().values() if identifier in law.clauses]
    bugs = {mutant.id for law in laws for mutant in mutants_killed(law.name)}
    counts = Counter[str]()
    for group in groups:
        counts[WORDS[group.outcome]] += len(group.subjects)
    outcomes = ", ".join(f"{word}: {count}" for word, count in counts.items())
    summary = f"Implementations: {outcomes or 'not yet tried'} · mutants: {len(bugs)}"
    parts = [Summary("", summary)]
    if groups:
        parts.append(table(["", ""], map(_row, groups), "behaviour"))
    for law in laws:
        parts.append(_bugs(law.name))
    return Folded("", *parts, classes=["behaviour"])


def _row(group: Behaviour) -> list[list[nodes.Node]]:
    """Return the outcome, and the subjects with the reason."""
    subjects = joined(nodes.literal("", name) for name in group.subjects)
    if group.reason:
        subjects.append(nodes.Text(f": {group.reason}"))
    for address in group.links:
        subjects += [nodes.Text(". "), link(address.rpartition("#")[2], "Finding")]
    return [list(text(WORDS[group.outcome])), subjects]


def _bugs(law: str) -> nodes.paragraph:
    killed = mutants_killed(law)
    words = [law_link(law), nodes.Text(" finds ")]
    words += joined(map(mutant_link, killed[:_FEW]), "; ")
    if len(killed) > _FEW:
        words.append(nodes.Text(f"; and {len(killed) - _FEW} more"))
    return nodes.paragraph("", "", *words, nodes.Text("."))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the transform."""
    app.setup_extension("laws")
    app.add_transform(Behaves)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
