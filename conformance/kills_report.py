"""The matrix of mutants and laws: stored in a file, counted in tables, shown as a page."""

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from attnspec.conformance.kills import CORRECT, Kills
from attnspec.conformance.markdown_table import markdown
from attnspec.conformance.report_run import Run

KILLED, SURVIVED, SILENT = "K", ".", "-"
"""What a law says of a mutant by its pinned cases, in a stored matrix."""

ATTENTION = "attention"


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What became of each mutant.

    Attributes:
        run: how it was tried.
        laws: the names of the laws of each kind of subject, in the order of a run.
        found: one entry per mutant, and per correct implementation that was tried beside them.
    """

    run: Run
    laws: dict[str, tuple[str, ...]]
    found: tuple[Kills, ...]

    @property
    def mutants(self) -> list[Kills]:
        """Those that are planted bugs."""
        return [each for each in self.found if each.kind != CORRECT]

    def of(self, kind: str) -> list[Kills]:
        """Those of a kind."""
        return [each for each in self.found if each.kind == kind]

    def write(self, path: Path) -> None:
        """Write one line of JSON about the run and one per mutant, or leave the file as it was."""
        head = {"run": dataclasses.asdict(self.run), "laws": self.laws}
        lines = [json.dumps(head, ensure_ascii=False), *map(self._line, self.found)]
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        partial.replace(path)

    def _line(self, each: Kills) -> str:
        """One mutant, the laws that it survives told by letters in the order of the laws."""
        told = dataclasses.asdict(each)
        del told["survived"], told["silent"]
        letters = dict.fromkeys(each.survived, SURVIVED) | dict.fromkeys(each.pinned, KILLED)
        names = self.laws.get(each.kind, ())
        told["laws"] = "".join(letters.get(name, SILENT) for name in names)
        return json.dumps(told, ensure_ascii=False)

    @classmethod
    def read(cls, path: Path) -> "Matrix":
        """Read what `write` wrote.

        Raises:
            ValueError: for a file that holds no matrix, naming it.
        """
        try:
            head, *lines = path.read_text(encoding="utf-8").splitlines()
            laws = {kind: tuple(names) for kind, names in json.loads(head)["laws"].items()}
            found = tuple(_read(json.loads(line), laws) for line in lines)
            return cls(run=Run.from_json(head), laws=laws, found=found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no matrix of mutants: {error}") from error


def _read(told: dict[str, Any], laws: dict[str, tuple[str, ...]]) -> Kills:
    letters, names = told.pop("laws"), laws.get(told["kind"], ())
    pairs = list(zip(names, letters, strict=True))
    for name in ("looks_like", "looks_like_others"):
        told[name] = tuple(told[name])
    return Kills(
        **told,
        survived=tuple(name for name, letter in pairs if letter == SURVIVED),
        silent=tuple(name for name, letter in pairs if letter == SILENT),
    )


def tables(matrix: Matrix) -> Iterator[Table]:
    """The scores by kind, and for a whole catalogue the usual styles of testing beside the laws."""
    yield _scores(matrix)
    if matrix.of(CORRECT):
        yield _styles(matrix)


def _scores(matrix: Matrix) -> Table:
    table = _table("Mutants by kind", "kind", "mutants", "killed", "at effort smoke")
    for heading in ("by pinned cases alone", "median seconds to the first kill", "longest"):
        table.add_column(heading, justify="right")
    kinds = dict.fromkeys(each.kind for each in matrix.mutants)
    for kind, mine in [(kind, matrix.of(kind)) for kind in kinds] + [("all", matrix.mutants)]:
        seconds = [each.seconds for each in mine if each.first]
        table.add_row(
            kind,
            str(len(mine)),
            str(len(seconds)),
            str(sum(each.effort == "smoke" for each in mine)),
            str(sum(bool(each.pinned) for each in mine)),
            f"{statistics.median(seconds):.2f}" if seconds else "-",
            f"{max(seconds):.1f}" if seconds else "-",
        )
    return table


def _styles(matrix: Matrix) -> Table:
    """The usual styles of testing beside the laws: what they catch, and what they reject."""
    right, wrong = matrix.of(CORRECT), matrix.of(ATTENTION)
    table = _table("Attention: rejected by", "", "mutants", "correct implementations")
    for name, judge in styles(matrix).items():
        caught, alarms = (sum(map(judge, some)) for some in (wrong, right))
        table.add_row(name, _share(caught, len(wrong)), f"{alarms} of {len(right)}")
    return table


def styles(matrix: Matrix) -> dict[str, Callable[[Kills], bool]]:
    """Each way of testing, the laws last, as a judge that is true of what it rejects."""

    def by_style(name: str) -> Callable[[Kills], bool]:
        return lambda each: bool(each.styles.get(name))

    names = dict.fromkeys(name for each in matrix.found for name in each.styles)
    judges = {name: by_style(name) for name in names}
    return judges | {"the laws": lambda each: bool(each.first)}


def remarks(matrix: Matrix, *, is_whole: bool) -> list[str]:
    """Sentences about survivors, the diagnosis and, of a whole catalogue, idle laws."""
    found = matrix.mutants
    lines = [f"survived: {each.mutant}" for each in matrix.mutants if not each.first]
    lines += [f"rejected, and right: {each.mutant}" for each in matrix.of(CORRECT) if each.first]
    named = [each for each in found if each.looks_like]
    right = [each for each in named if each.mutant in each.looks_like]
    others = [each for each in found if each.looks_like_others]
    lines.append(
        f"looks like: {len(named)} of {len(found)} named, {_share(len(right), len(named))} of them "
        f"rightly; without its own entry, {len(others)} look like another"
    )
    if is_whole:
        by_law = Counter(law for each in found for law in each.pinned)
        names = [name for some in matrix.laws.values() for name in some]
        idle = sorted(name for name in names if not by_law[name])
        alone = {next(iter(each.pinned)) for each in found if len(each.pinned) == 1}
        lines.append(
            f"{len(names)} laws; the only one to kill some mutant: {len(alone)}; "
            f"killing none by pinned cases: {', '.join(idle) or 'none'}"
        )
    return lines


def page(matrix: Matrix, planted: int) -> str:
    """The scores as Markdown.

    Args:
        matrix: of all mutants, or of some, which is said.
        planted: how many mutants there are.
    """
    tried = len(matrix.mutants)
    lines = [] if tried == planted else [f"**Only {tried} of {planted} mutants were tried.**", ""]
    lines += [f"{matrix.run.told}, by `attnspec mutants`.", ""]
    for each in tables(matrix):
        lines += [f"**{each.title}**", "", markdown(each), ""]
    lines += [*(f"- {line}" for line in remarks(matrix, is_whole=tried == planted)), ""]
    return "\n".join(lines)


def catalogue(matrix: Matrix, titles: dict[str, tuple[str, str]]) -> str:
    """Every mutant as Markdown: what it gets wrong, and which law saw it first.

    Args:
        matrix: of the whole catalogue.
        titles: title and public report of each mutant, by id.
    """
    parts = []
    for kind in dict.fromkeys(each.kind for each in matrix.mutants):
        rows = [
            "| mutant | mistake | killed first by | after cases | seconds | laws that kill it |",
            "|---|---|---|--:|--:|--:|",
        ]
        for each in matrix.of(kind):
            title, source = titles.get(each.mutant, ("", ""))
            name = f"[{each.mutant}]({source})" if source else each.mutant
            first = f"`{each.first}`" if each.first else "**survived**"
            title = title.replace("|", "\\|")
            rows.append(
                f"| {name} | {title} | {first} | {each.examples} | {each.seconds:.2f} "
                f"| {len(each.pinned)} |"
            )
        parts.append("\n".join([f"### {kind.capitalize()}", "", *rows, ""]))
    return "\n".join(parts)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "none"


def matrix_of(run: Run, found: Sequence[Kills]) -> Matrix:
    """Put what workers reported in order, with the laws that it is about."""
    import attnspec.conformance.laws  # noqa: F401  (registers them)
    from attnspec.conformance.law import registered

    laws: dict[str, tuple[str, ...]] = {}
    for law in registered().values():
        laws[str(law.judges)] = (*laws.get(str(law.judges), ()), law.name)
    kinds = [*laws, CORRECT]
    order = sorted(found, key=lambda each: (kinds.index(each.kind), each.mutant))
    return Matrix(run=run, laws=laws, found=tuple(order))
