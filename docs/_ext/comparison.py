"""Sphinx: how many mutants each way of testing rejects, from the stored matrix."""

from collections.abc import Sequence

from building import Cell, table, text
from docutils import nodes
from laws import MATRIX
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance import laws, mutants
from attnspec.conformance.evidence.mutation.kill_matrix import (
    ATTENTION,
    KillMatrix,
    testing_methods,
)
from attnspec.conformance.evidence.mutation.kills import CORRECT, Kills
from attnspec.conformance.runner.effort import Effort
from attnspec.spec import chapter_text, clause


class Comparison(SphinxDirective):
    """`{comparison}`: a row for each chapter of mutants, a column for each way of testing."""

    def run(self) -> list[nodes.Node]:
        """Count the mutants that each way rejects."""
        self.env.note_dependency(str(MATRIX))
        matrix = KillMatrix.read(MATRIX)
        summary = nodes.paragraph("", f"{matrix.run.summary}.")
        return [counts(matrix), summary]


class Measured(SphinxDirective):
    """`{measured}`: a sentence on what all laws together reject in the stored run."""

    def run(self) -> list[nodes.Node]:
        """Return the sentence."""
        self.env.note_dependency(str(MATRIX))
        return [nodes.paragraph("", measured(KillMatrix.read(MATRIX)))]


def measured(matrix: KillMatrix) -> str:
    """Return the numbers of mutants and of correct implementations that the laws reject."""
    wrong, correct = matrix.mutants, matrix.of(CORRECT)
    killed = [each for each in wrong if each.first]
    soon = [each for each in killed if each.effort == Effort.SMOKE]
    alarms = [each for each in correct if each.first]
    return (
        f"In the stored run all laws together reject {len(killed)} of {len(wrong)} mutants, "
        f"{len(soon)} of them also with --effort smoke, and {len(alarms)} of {len(correct)} "
        "correct implementations."
    )


def counts(matrix: KillMatrix) -> nodes.table:
    """Return the share of mutants of attention that each way rejects, by chapter."""
    methods = testing_methods(matrix)
    rows: list[list[Cell]] = []
    for chapter, results in by_chapter(matrix).items():
        title = chapter_text(chapter).partition("\n")[0].removeprefix("# ")
        rows.append(_row(title, results, methods))
    rows.append(_row("all mutants of attention", matrix.of(ATTENTION), methods))
    rows.append(_row("correct implementations", matrix.of(CORRECT), methods))
    return table(["rejected", "number", *methods], rows, "numbers")


def by_chapter(matrix: KillMatrix) -> dict[str, list[Kills]]:
    """Return the mutants of attention by the chapter of the law that each names."""
    catalogue, known = mutants.load(), laws.load()
    chapters: dict[str, list[Kills]] = {}
    for result in matrix.of(ATTENTION):
        if result.mutant in catalogue:
            law = known[catalogue[result.mutant].killed_by]
            chapters.setdefault(clause(law.clauses[0]).chapter, []).append(result)
    return dict(sorted(chapters.items(), key=lambda item: -len(item[1])))


def _row(title: str, results: Sequence[Kills], methods: dict[str, object]) -> list[Cell]:
    numbers = [sum(map(rejects, results)) for rejects in methods.values()]  # type: ignore[arg-type]
    shares = [f"{number} ({number / max(1, len(results)):.0%})" for number in numbers]
    return [text(title), text(str(len(results))), *map(text, shares)]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.setup_extension("laws")
    app.add_directive("comparison", Comparison)
    app.add_directive("measured", Measured)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
