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


class Reports(SphinxDirective):
    """`{reports}`: the public reports by project, each with its mutants."""

    def run(self) -> list[nodes.Node]:
        """Write a list in Markdown and parse it."""
        parent = nodes.container(classes=["reports"])
        self.state.nested_parse(StringList(_reports().splitlines(), source=""), 0, parent)
        return parent.children


def _reports() -> str:
    mutants_of: dict[str, list[str]] = {}
    for mutant in mutants.load().values():
        if mutant.source:
            shown = f"[{mutant.id}](#mutant-{mutant.id.lower()})"
            mutants_of.setdefault(mutant.source, []).append(shown)
    for report in UNREPEATED:
        mutants_of.setdefault(report.source, []).append("no mutant")
    projects: dict[str, list[str]] = {}
    for source in sorted(mutants_of):
        _, _, host, *path = source.split("/")
        project = "/".join(path[:2]) if host == "github.com" else host
        rest = "/".join(path[2:] if host == "github.com" else path) or project
        line = f"[{rest}]({source}): {', '.join(mutants_of[source])}"
        projects.setdefault(project, []).append(line)
    lines: list[str] = []
    for project in sorted(projects, key=str.casefold):
        lines += [f"**{project}**", "", *(f"- {line}" for line in projects[project]), ""]
    return "\n".join(lines)


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
    """Register the directives."""
    app.add_directive("mutants", Mutants)
    app.add_directive("reports", Reports)
    return {"version": "1", "parallel_read_safe": True}
