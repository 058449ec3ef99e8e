"""Sphinx: tables of the planted bugs, of those that cannot be planted, and of those that are none.

The first is drawn from the matrix that `nox -s mutants` stored. What was planted since is said to
be untried.
"""

from dataclasses import replace
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import attnspec.conformance.mutants  # noqa: F401  (importing registers them)
from attnspec.conformance.kills_report import Matrix, catalogue
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.mutants.unshown import UNSHOWN

STORED = Path(__file__).parents[1] / "results" / "mutants.jsonl"


class Mutants(SphinxDirective):
    """`{mutants} planted`, `{mutants} unshown` or `{mutants} equivalent`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write a table in Markdown and have it read."""
        writers = {"planted": _planted, "unshown": _unshown, "equivalent": _equivalent}
        self.env.note_dependency(str(STORED))
        text = writers[self.arguments[0]]()
        parent = nodes.container(classes=["mutants"])
        self.state.nested_parse(StringList(text.splitlines(), source=""), 0, parent)
        return parent.children


def _planted() -> str:
    matrix = Matrix.read(STORED)
    mutants = planted()
    there = replace(matrix, found=tuple(each for each in matrix.found if each.mutant in mutants))
    titles = {
        each.id: (f"[{each.title}](#mutant-{each.id.lower()})", each.source)
        for each in mutants.values()
    }
    untried = sorted(mutants.keys() - {each.mutant for each in there.found})
    later = f"\n\nPlanted since, and not yet tried: {', '.join(untried)}." if untried else ""
    return catalogue(there, titles) + later


def _unshown() -> str:
    rows = ["| report | what was seen | why no mutant shows it |", "|---|---|---|"]
    rows += [f"| [{each.id}]({each.source}) | {each.title} | {each.reason} |" for each in UNSHOWN]
    return "\n".join(rows)


def _equivalent() -> str:
    rows = ["| what was changed | why it is none |", "|---|---|"]
    rows += [f"| {each.title} | {each.proof} |" for each in EQUIVALENT]
    return "\n".join(row.replace("\n", " ") for row in rows)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("mutants", Mutants)
    return {"version": "1", "parallel_read_safe": True}
