"""`attnspec mutants`: the suite tried on the catalogue of planted bugs."""

import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from attnspec.conformance.kills import Kills

SURVIVED, USAGE = 1, 2


def mutants(
    pattern: Annotated[
        str, typer.Argument(help="What an id contains, such as MSK or own-tile; none: all.")
    ] = "",
    part: Annotated[str, typer.Option(help="2/7 tries the second of seven parts.")] = "1/1",
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Processes.")] = max(
        os.cpu_count() or 1, 1
    ),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one mutant.")] = 300.0,
    report: Annotated[
        Path | None, typer.Option(help="Write one JSON line per mutant to this file.")
    ] = None,
) -> None:
    """Try every law on every planted bug, and print which laws see which.

    Exit status 0: every mutant is killed, and by each law that it names; 1: some is not; 2: usage.

    For example, attnspec mutants MSK, or attnspec mutants --part 2/7
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per worker
    from attnspec.conformance.kills import chosen

    try:
        chosen(pattern, part)
    except ValueError as error:
        typer.echo(f"attnspec: {error}", err=True)
        raise typer.Exit(USAGE) from None
    if report is not None and not report.resolve().parent.is_dir():
        typer.echo(f"attnspec: {report}: there is no folder {report.resolve().parent}", err=True)
        raise typer.Exit(USAGE)
    arguments = ["--pyargs", "attnspec.conformance.test_mutants", "--import-mode=importlib"]
    arguments += ["--noconftest", "-p", "no:cacheprovider", "--no-header", "-q", "--tb=line"]
    arguments += ["--disable-warnings", "--dist=load", "--maxschedchunk=1"]
    arguments += ["--max-worker-restart=1000000", "--timeout-method=thread"]
    arguments += [f"--attnspec-mutant={pattern}", f"--attnspec-part={part}"]
    arguments += ["-n", str(workers), f"--timeout={timeout}"]
    collector = _Collector()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        arguments += ["-c", str(settings), f"--rootdir={folder}"]
        status = pytest.main(arguments, plugins=[collector])
    found = sorted(collector.found, key=lambda each: each.mutant)
    if report is not None:
        report.write_text("".join(f"{each.to_json()}\n" for each in found), encoding="utf-8")
    if found:
        summarise(found, Console(), is_whole=not pattern and part == "1/1")
    raise typer.Exit(int(status) if status in (0, SURVIVED) else USAGE)


class _Collector:
    """Gathers what workers report."""

    def __init__(self) -> None:
        self.found: list[Kills] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what became of a mutant."""
        from attnspec.conformance.kills import Kills
        from attnspec.conformance.plugin import PROPERTY

        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY and isinstance(value, str):
                    self.found.append(Kills.from_json(value))


def summarise(found: "Sequence[Kills]", console: Console, *, is_whole: bool) -> None:
    """Print the score per kind, the survivors, and the laws that kill nothing.

    Args:
        found: what became of each mutant.
        console: where to.
        is_whole: true where the whole catalogue was tried, so that a law that kills none says
            something about the law.
    """
    table = Table(title="Mutants by kind", title_justify="left", pad_edge=False)
    columns = ("kind", "mutants", "killed", "at effort smoke", "by pinned cases alone")
    for title in (*columns, "median seconds to the first kill", "longest"):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for kind in dict.fromkeys(each.kind for each in found):
        mine = [each for each in found if each.kind == kind]
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
    console.print(table)
    for each in found:
        if not each.first:
            console.print(f"survived: {each.mutant}", highlight=False)
    console.print(_likeness(found), highlight=False)
    if is_whole:
        _print_laws(found, console)
        console.print(_styles(found))


def _likeness(found: "Sequence[Kills]") -> str:
    """How often the diagnosis names a bug, and how often the right one."""
    named = [each for each in found if each.looks_like]
    right = [each for each in named if each.mutant in each.looks_like]
    others = [each for each in found if each.looks_like_others]
    share = f" ({len(right) / len(named):.0%})" if named else ""
    return (
        f"looks like: {len(named)} of {len(found)} named, {len(right)} of them right{share}; "
        f"without its own entry, {len(others)} look like another: "
        f"{', '.join(each.mutant for each in others) or 'none'}"
    )


def _styles(found: "Sequence[Kills]") -> Table:
    """The usual styles of testing beside the laws: what they catch, and what they reject."""
    from attnspec.conformance.kills import CORRECT

    right = [each for each in found if each.kind == CORRECT]
    wrong = [each for each in found if each.kind == "attention"]
    table = Table(title="Attention: rejected by", title_justify="left", pad_edge=False)
    for title in ("", "mutants", "correct implementations"):
        table.add_column(title, justify="right" if title else "left")
    for style in dict.fromkeys(name for each in found for name in each.styles):
        caught, alarms = (sum(bool(each.styles.get(style)) for each in x) for x in (wrong, right))
        table.add_row(style, f"{caught} of {len(wrong)}", f"{alarms} of {len(right)}")
    caught, alarms = (sum(bool(each.first) for each in some) for some in (wrong, right))
    table.add_row("the laws", f"{caught} of {len(wrong)}", f"{alarms} of {len(right)}")
    return table


def _print_laws(found: "Sequence[Kills]", console: Console) -> None:
    """Print the laws that kill no mutant, and how many are the only one to kill some."""
    by_law = Counter(law for each in found for law in each.pinned)
    laws = dict.fromkeys(law for each in found for law in (*each.pinned, *each.survived))
    idle = sorted(law for law in laws if not by_law[law])
    alone = {next(iter(each.pinned)) for each in found if len(each.pinned) == 1}
    console.print(
        f"{len(laws)} laws; the only one to kill some mutant: {len(alone)}; "
        f"killing none by pinned cases: {', '.join(idle) or 'none'}",
        highlight=False,
    )
