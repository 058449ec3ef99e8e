"""The kill matrix of mutants (planted bugs) and laws: its file, its tables and its page."""

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from attnspec.conformance.evidence.mutation.isolation import isolation
from attnspec.conformance.evidence.mutation.kills import CORRECT, Kills
from attnspec.conformance.evidence.mutation.sources import (
    correct_are_current,
    is_current,
    source_digests,
)
from attnspec.conformance.report.markdown_table import markdown
from attnspec.conformance.report.run import Run
from attnspec.conformance.subjects.kinds import SubjectKind

KILLED, SURVIVED, SILENT = "K", ".", "-"
"""Letters of a stored matrix for the pinned cases of a law on a mutant."""

ATTENTION = "attention"


@dataclass(frozen=True, kw_only=True)
class KillMatrix:
    """The results of all laws on each mutant.

    Attributes:
        run: the run that produced them.
        laws: the names of the laws of each kind of subject, in the order of a run.
        results: one entry per mutant, and per correct implementation that was tried.
        sources: digests of the files of laws and mutants, by path.
    """

    run: Run
    laws: dict[str, tuple[str, ...]]
    results: tuple[Kills, ...]
    sources: dict[str, str]

    @property
    def mutants(self) -> list[Kills]:
        """The results of mutants, without those of correct implementations."""
        return [result for result in self.results if result.kind != CORRECT]

    def of(self, kind: str) -> list[Kills]:
        """Return the results of one kind."""
        return [result for result in self.results if result.kind == kind]

    def write(self, path: Path) -> None:
        """Write one line of JSON about the run and one per mutant, atomically."""
        head = {
            "run": dataclasses.asdict(self.run),
            "laws": self.laws,
            "sources": self.sources,
        }
        lines = [json.dumps(head, ensure_ascii=False), *map(self._line, self.results)]
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        partial.replace(path)

    def _line(self, result: Kills) -> str:
        """Return one result as JSON, with a letter for each law in the order of the laws."""
        data = dataclasses.asdict(result)
        del data["survived"], data["silent"]
        letters = dict.fromkeys(result.survived, SURVIVED) | dict.fromkeys(result.pinned, KILLED)
        names = self.laws.get(result.kind, ())
        data["laws"] = "".join(letters.get(name, SILENT) for name in names)
        return json.dumps(data, ensure_ascii=False)

    @classmethod
    def read(cls, path: Path) -> "KillMatrix":
        """Read a file written by `write`.

        Raises:
            ValueError: if the file holds no matrix; the message names the file.
        """
        try:
            first, *lines = path.read_text(encoding="utf-8").splitlines()
            head = json.loads(first)
            laws = {kind: tuple(names) for kind, names in head["laws"].items()}
            results = tuple(_read(json.loads(line), laws) for line in lines)
            sources = dict(head["sources"])
            return cls(run=Run.from_json(first), laws=laws, results=results, sources=sources)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no matrix of mutants: {error}") from error


def _read(data: dict[str, Any], laws: dict[str, tuple[str, ...]]) -> Kills:
    """Return the result that a line of a stored matrix holds."""
    letters, names = data.pop("laws"), laws.get(data["kind"], ())
    pairs = list(zip(names, letters, strict=True))
    for name in ("undecided", "looks_like", "looks_like_others"):
        data[name] = tuple(data.get(name, ()))
    return Kills(
        **data,
        survived=tuple(name for name, letter in pairs if letter == SURVIVED),
        silent=tuple(name for name, letter in pairs if letter == SILENT),
    )


def tables(matrix: KillMatrix) -> Iterator[Table]:
    """Yield the scores by kind and, for a whole catalogue, the comparison with the baselines."""
    yield _scores(matrix)
    if matrix.of(CORRECT):
        yield _baselines(matrix)


def _scores(matrix: KillMatrix) -> Table:
    """Return the table of kills and seconds by kind."""
    table = _table("Mutants by kind", "kind", "mutants", "killed", "at effort smoke")
    for heading in ("by pinned cases alone", "median seconds to the first kill", "longest"):
        table.add_column(heading, justify="right")
    kinds = dict.fromkeys(result.kind for result in matrix.mutants)
    for kind, results in [(kind, matrix.of(kind)) for kind in kinds] + [("all", matrix.mutants)]:
        seconds = [result.seconds for result in results if result.first]
        table.add_row(
            kind,
            str(len(results)),
            str(len(seconds)),
            str(sum(result.effort == "smoke" for result in results)),
            str(sum(bool(result.pinned) for result in results)),
            f"{statistics.median(seconds):.2f}" if seconds else "-",
            f"{max(seconds):.1f}" if seconds else "-",
        )
    return table


def _baselines(matrix: KillMatrix) -> Table:
    """Return the table of rejections by each baseline and by the laws."""
    correct, wrong = matrix.of(CORRECT), matrix.of(ATTENTION)
    table = _table("Attention: rejected by", "test", "mutants", "correct implementations")
    for name, rejects in testing_methods(matrix).items():
        caught, alarms = (sum(map(rejects, results)) for results in (wrong, correct))
        table.add_row(name, _share(caught, len(wrong)), f"{alarms} of {len(correct)}")
    return table


def testing_methods(matrix: KillMatrix) -> dict[str, Callable[[Kills], bool]]:
    """Return a predicate for each baseline, and for the laws: true if it rejects the subject."""

    def by_baseline(name: str) -> Callable[[Kills], bool]:
        return lambda result: bool(result.styles.get(name))

    names = dict.fromkeys(name for result in matrix.results for name in result.styles)
    predicates = {name: by_baseline(name) for name in names}
    return predicates | {"the laws": lambda result: bool(result.first)}


def remarks(matrix: KillMatrix, *, is_whole: bool) -> list[str]:
    """Return sentences on survivors, the diagnosis and, for a whole catalogue, idle laws."""
    results = matrix.mutants
    lines = [f"survived: {result.mutant}" for result in results if not result.first]
    alarms = [result for result in matrix.of(CORRECT) if result.first]
    lines += [f"rejected, but correct: {alarm.mutant}" for alarm in alarms]
    named = [result for result in results if result.looks_like]
    right = [result for result in named if result.mutant in result.looks_like]
    others = [result for result in results if result.looks_like_others]
    rightly = _share(len(right), len(named))
    lines.append(
        f"looks like: {len(named)} of {len(results)} named, {rightly} of them "
        f"rightly; without its own entry, {len(others)} look like another"
    )
    lines += isolation(results)
    if is_whole:
        by_law = Counter(law for result in results for law in result.pinned)
        names = [name for laws in matrix.laws.values() for name in laws]
        idle = sorted(name for name in names if not by_law[name])
        alone = {next(iter(result.pinned)) for result in results if len(result.pinned) == 1}
        lines.append(
            f"{len(names)} laws; the only one to kill some mutant: {len(alone)}; "
            f"killing none by pinned cases: {', '.join(idle) or 'none'}"
        )
    return lines


def page(matrix: KillMatrix, planted: int) -> str:
    """Return the scores as Markdown.

    Args:
        matrix: the results of all mutants, or of some, which the page then states.
        planted: the number of mutants in the catalogue.
    """
    tried = len(matrix.mutants)
    lines = [] if tried == planted else [f"**Only {tried} of {planted} mutants were tried.**", ""]
    remarks_of_run = "".join(f"; {remark}" for remark in matrix.run.remarks)
    lines += [f"{matrix.run.summary}, by `attnspec mutants`{remarks_of_run}.", ""]
    for table in tables(matrix):
        lines += [f"**{table.title}**", "", markdown(table), ""]
    lines += [*(f"- {line}" for line in remarks(matrix, is_whole=tried == planted)), ""]
    return "\n".join(lines)


def catalogue(matrix: KillMatrix, titles: dict[str, tuple[str, str]]) -> str:
    """Return a table of all mutants as Markdown: the mistake and the first law that kills it.

    Args:
        matrix: the results of the whole catalogue.
        titles: title and public report of each mutant, by id.
    """
    parts = []
    for kind in dict.fromkeys(result.kind for result in matrix.mutants):
        rows = [
            "| mutant | mistake | killed first by | after cases | seconds | laws that kill it |",
            "|---|---|---|--:|--:|--:|",
        ]
        for result in matrix.of(kind):
            title, source = titles.get(result.mutant, ("", ""))
            name = f"[{result.mutant}]({source})" if source else result.mutant
            first = f"`{result.first}`" if result.first else "**survived**"
            title = title.replace("|", "\\|")
            rows.append(
                f"| {name} | {title} | {first} | {result.examples} | {result.seconds:.2f} "
                f"| {len(result.pinned)} |"
            )
        parts.append("\n".join([f"### {kind.capitalize()}", "", *rows, ""]))
    return "\n".join(parts)


def _table(title: str, *headings: str) -> Table:
    """Return an empty table."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _share(count: int, of: int) -> str:
    """Return a count with its total and percentage."""
    return f"{count} of {of} ({count / of:.0%})" if of else "none"


def updated(stored: KillMatrix, run: Run, results: Sequence[Kills]) -> KillMatrix:
    """Return a stored matrix with new results in place of those that are no longer current.

    Args:
        stored: the matrix of an earlier run.
        run: the run that tried what has changed since.
        results: the results of that run.
    """
    from attnspec.conformance import mutants

    new, catalogue = {result.mutant for result in results}, mutants.load()

    def is_kept(result: Kills) -> bool:
        if result.mutant in new:
            return False
        if result.kind == CORRECT:
            return correct_are_current(stored.sources)
        kind = SubjectKind(result.kind)
        return result.mutant in catalogue and is_current(result.mutant, kind, stored.sources)

    kept = list(filter(is_kept, stored.results))
    remark = f"{len(kept)} rows of {len(kept) + len(new)} are of {stored.run.date[:10]} or earlier"
    run = dataclasses.replace(run, remarks=(*run.remarks, remark))
    return matrix_of(run, [*kept, *results])


def matrix_of(run: Run, results: Sequence[Kills]) -> KillMatrix:
    """Sort the results that workers reported, and add the names of all laws."""
    from attnspec.conformance import laws

    names: dict[str, tuple[str, ...]] = {}
    for law in laws.load().values():
        names[str(law.judges)] = (*names.get(str(law.judges), ()), law.name)
    kinds = [*names, CORRECT]
    ordered = sorted(results, key=lambda result: (kinds.index(result.kind), result.mutant))
    return KillMatrix(run=run, laws=names, results=tuple(ordered), sources=source_digests())
