"""`attnspec mutants`: try the suite on the catalogue of mutants, i.e. planted bugs."""

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
import typer

from attnspec.conformance.cli.environment import set_variables

if TYPE_CHECKING:
    from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix
    from attnspec.conformance.evidence.mutation.kills import Kills

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
        Path | None, typer.Option(help="Write the matrix, one JSON line per mutant, to this file.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the scores to this page of Markdown."),
    ] = None,
    update: Annotated[
        Path | None,
        typer.Option(help="A stored matrix: try what has changed since, and keep its other rows."),
    ] = None,
) -> None:
    """Try every law on every planted bug, and print which laws see which.

    Exit status 0: every mutant is killed, and by the law that it names; 1: some is not; 2: usage.

    For example, attnspec mutants MSK, or attnspec mutants --part 2/7

    After a change, attnspec mutants --update kills.jsonl --report kills.jsonl
    """
    set_variables()
    from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix, matrix_of, updated
    from attnspec.conformance.evidence.mutation.kills import select_mutants
    from attnspec.conformance.report.run import begun

    stored = None
    try:
        if update is not None:
            if pattern or part != "1/1":
                raise ValueError("--update takes no pattern and no part")
            stored = KillMatrix.read(update)
        select_mutants(pattern, part)
    except OSError as error:
        typer.echo(f"attnspec: {update}: {error.strerror}", err=True)
        raise typer.Exit(USAGE) from None
    except ValueError as error:
        typer.echo(f"attnspec: {error}", err=True)
        raise typer.Exit(USAGE) from None
    for path in (report, page):
        if path is not None and not path.resolve().parent.is_dir():
            typer.echo(f"attnspec: {path}: there is no folder {path.resolve().parent}", err=True)
            raise typer.Exit(USAGE)
    arguments = [
        "--pyargs",
        "attnspec.conformance.evidence.mutation.items",
        "--import-mode=importlib",
    ]
    arguments += ["--noconftest", "-p", "no:cacheprovider", "--no-header", "-q", "--tb=line"]
    arguments += ["--disable-warnings", "--dist=load", "--maxschedchunk=1"]
    arguments += ["--max-worker-restart=1000000", "--timeout-method=thread"]
    arguments += [f"--attnspec-mutant={pattern}", f"--attnspec-part={part}"]
    if update is not None:
        arguments.append(f"--attnspec-update={update.resolve()}")
    arguments += ["-n", str(workers), f"--timeout={timeout}"]
    collector = _Collector()
    run, started = begun(device="cpu", effort="standard", seed=0), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        arguments += ["-c", str(settings), f"--rootdir={folder}"]
        status = pytest.main(arguments, plugins=[collector])
    ended = "complete" if status in (0, SURVIVED) else "interrupted"
    run = dataclasses.replace(run, seconds=time.perf_counter() - started, ended=ended)
    if collector.kills or stored is not None:
        is_whole = not pattern and part == "1/1" and run.is_complete
        matrix = (
            updated(stored, run, collector.kills) if stored else matrix_of(run, collector.kills)
        )
        _tell(matrix, report, page, is_whole)
    raise typer.Exit(int(status) if status in (0, SURVIVED) else USAGE)


def _tell(matrix: "KillMatrix", report: Path | None, page: Path | None, is_whole: bool) -> None:
    """Store a matrix if files are named for it, and print its scores."""
    from attnspec.conformance.evidence.mutation import kill_matrix as kills_report
    from attnspec.conformance.evidence.mutation.kills import select_mutants
    from attnspec.conformance.report.console import plain_console

    console = plain_console()
    if report is not None:
        matrix.write(report)
    if page is not None:
        page.write_text(kills_report.page(matrix, len(select_mutants())), encoding="utf-8")
    for table in kills_report.tables(matrix):
        console.print(table)
    for line in kills_report.remarks(matrix, is_whole=is_whole):
        console.print(line, highlight=False, markup=False)


class _Collector:
    """The results that workers report."""

    def __init__(self) -> None:
        self.kills: list[Kills] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a mutant."""
        from attnspec.conformance.evidence.mutation.kills import Kills
        from attnspec.conformance.runner.plugin import PROPERTY

        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY and isinstance(value, str):
                    self.kills.append(Kills.from_json(value))
