"""Sphinx: tables of the mutants, of reports without a mutant, and of equivalent mutants.

The first is made from the matrix that `nox -s mutants` stored. It lists newer mutants as untried.
"""

from dataclasses import replace
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance import mutants
from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix, catalogue
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.unrepeated import UNREPEATED

STORED = Path(__file__).parents[1] / "results" / "mutants.jsonl"


class Mutants(SphinxDirective):
    """`{mutants} counts`, `planted`, `unshown` or `equivalent`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write a sentence or a table in Markdown and parse it."""
        writers = {
            "counts": _counts,
            "planted": _planted,
            "unshown": _unshown,
            "equivalent": _equivalent,
        }
        self.env.note_dependency(str(STORED))
        text = writers[self.arguments[0]]()
        parent = nodes.container(classes=["mutants"])
        self.state.nested_parse(StringList(text.splitlines(), source=""), 0, parent)
        return parent.children


def _counts() -> str:
    known = mutants.load().values()
    reported = sum(bool(mutant.source) for mutant in known)
    return (
        f"Of {len(known)} mutants, {reported} repeat a bug that was reported in public; the others "
        "were made by readers of the suite who looked for bugs that it might miss."
    )


def _planted() -> str:
    matrix = KillMatrix.read(STORED)
    known = mutants.load()
    there = replace(
        matrix, results=tuple(result for result in matrix.results if result.mutant in known)
    )
    titles = {
        mutant.id: (f"[{mutant.title}](#mutant-{mutant.id.lower()})", mutant.source)
        for mutant in known.values()
    }
    untried = sorted(known.keys() - {result.mutant for result in there.results})
    newer = f"\n\nNewer mutants, not yet tried: {', '.join(untried)}." if untried else ""
    return catalogue(there, titles) + newer


def _unshown() -> str:
    rows = ["| report | symptom | reason why no mutant shows it |", "|---|---|---|"]
    rows += [
        f"| [{report.id}]({report.source}) | {report.title} | {report.reason} |"
        for report in UNREPEATED
    ]
    return "\n".join(rows)


def _equivalent() -> str:
    rows = ["| change | reason why it is correct |", "|---|---|"]
    rows += [f"| {mutant.title} | {mutant.proof} |" for mutant in EQUIVALENT]
    return "\n".join(row.replace("\n", " ") for row in rows)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("mutants", Mutants)
    return {"version": "1", "parallel_read_safe": True}
