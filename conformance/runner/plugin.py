"""The pytest plugin: options, one item per law and subject, and the matrix at the end.

Every pytest run on a machine that has attnspec installed imports it, so it imports the rest of
attnspec only when it needs it.
"""

import atexit
import gc
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnspec.conformance.report.file import ReportWriter
    from attnspec.conformance.report.progress import Progress
    from attnspec.conformance.report.record import Record
    from attnspec.conformance.report.run import Run
    from attnspec.conformance.runner.settings import Settings

PROPERTY = "attnspec"
"""The name of the property that carries a record from a worker to the report."""

PAGES = ("html", "markdown", "summary")
"""The formats of pages that are written at the end of a run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance run."""
    group = parser.getgroup("attnspec", "conformance of attention implementations")
    from attnspec.conformance.runner.settings import add_options

    add_options(group)
    group.addoption("--attnspec-plan", default=None, metavar="FILE", help="shared by workers")
    group.addoption("--attnspec-mutant", default="", help="only ids that contain this")
    group.addoption("--attnspec-part", default="1/1", help="2/7 is the second of seven parts")
    group.addoption("--attnspec-update", default="", help="only mutants that changed since")


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector of records, in the process that reports and not in workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "attnspec-collector")
    elif config.getoption("--attnspec-plan"):
        _hurry()


def _hurry() -> None:
    """Spare a worker of `attnspec check` the work on millions of objects that live until its end.

    These are the modules of torch and the laws. During the imports the garbage collector would go
    through them again and again, and the interpreter would free them one by one, in a second.
    """
    gc.disable()  # until `test_conformance` has planned the run
    atexit.register(os._exit, 0)  # runs after all that is registered later


def workers(config: pytest.Config) -> int:
    """Return the number of processes that share the run."""
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


class Collector:
    """The records of a run, gathered from all its processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.records: dict[str, Record] = {}
        self.collected: dict[str, None] = {}
        self.config = config
        self.started = time.monotonic()
        self.session: pytest.Session
        self.settings: Settings
        self.run: Run | None = None
        self.writer: ReportWriter | None = None
        self.unwritten = ""
        self.progress: Progress | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Generator[None, None, None]:
        """Begin after the workers, because this imports torch, as they do."""
        self.session = session
        dsession = self.config.pluginmanager.getplugin("dsession")
        if dsession is not None and self.config.getoption("--attnspec-progress"):
            dsession.terminal = None  # no lines about workers
            self.config.pluginmanager.unregister(name="terminaldistreporter")
        yield
        self.begin()

    def begin(self) -> None:
        """Begin the report at once, so that it exists however the run ends."""
        from attnspec.conformance.runner.settings import Settings

        self.settings = settings = Settings.of(self.config)
        if settings.progress:
            from attnspec.conformance.report.console import plain_console
            from attnspec.conformance.report.progress import Progress

            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            # pytest's own lines about the end of a run, which have no switch
            reporter.write_sep = lambda *arguments, **options: None
            console = plain_console(file=reporter._tw._file)
            if not console.is_terminal:
                # the verdict comes first in a file or a pipe
                console = plain_console(stderr=True)
            from attnspec.conformance.runner.waiting import folder_of

            folder = folder_of(self.config.getoption("--attnspec-plan"))
            self.progress = Progress(console, shows_failures=settings.verbose, folder=folder)
        if not any((settings.report, *self._pages().values())):
            return
        from attnspec.conformance.report.file import ReportWriter
        from attnspec.conformance.report.run import begun

        self.run = begun(
            device=settings.device,
            effort=settings.effort,
            seed=settings.seed,
            targets=settings.targets,
            laws=settings.laws,
        )
        if settings.report is not None:
            self.writer = ReportWriter(settings.report, self.run)

    def _pages(self) -> dict[str, str]:
        """The paths of the pages to write, by format; empty for one that is not asked for."""
        return {name: str(getattr(self.settings, name) or "") for name in PAGES}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Remember the items of the workers, to notice any that vanish."""
        self.collected.update(dict.fromkeys(each for each in ids if _is_ours(each)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember the items of a run without workers."""
        ours = (item.nodeid for item in session.items if _is_ours(item.nodeid))
        self.collected.update(dict.fromkeys(ours))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Print the law that is being tried."""
        if self.progress is not None and _is_ours(nodeid):
            law = nodeid.partition("[")[2].removesuffix("]")
            self.progress.begin(law, len(self.collected))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Suppress pytest's letters if progress is printed as lines."""
        if self.progress is None or not _is_ours(report.nodeid):
            return None
        if hasattr(report, "wasxfail"):
            return "xfailed", "", ""
        is_counted = report.when == "call" or not report.passed
        return (report.outcome if is_counted else ""), "", ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of an item; an item that ended without one becomes an error."""
        if not _is_ours(report.nodeid):
            return
        from attnspec.conformance.report.record import Record

        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, str):
                self._keep(report.nodeid, Record.from_json(value))
        if report.failed and report.nodeid not in self.records:
            self._keep(report.nodeid, _lost(report.nodeid, report.longreprtext))
        if self.session.shouldfail and self.settings.progress:
            self._stop(str(self.session.shouldfail))

    def _stop(self, reason: str) -> None:
        """Stop a run with workers at once: they would end the laws that they are trying first."""
        dsession = self.config.pluginmanager.getplugin("dsession")
        if dsession is None:
            return
        dsession.nodemanager.EXIT_TIMEOUT = 0
        raise self.session.Failed(reason)

    def _keep(self, nodeid: str, record: "Record") -> None:
        if nodeid not in self.records and self.progress is not None:
            self.progress.add(record, len(self.collected))
        if nodeid not in self.records and self.writer is not None:
            try:
                self.writer.add(record)
            except OSError as error:  # the run goes on, and the end tries again
                self.unwritten = str(error)
        self.records[nodeid] = record

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report an item that was collected and never reported as an error, and end the report."""
        from attnspec.conformance.report.matrix import conforming

        if self.progress is not None:
            self.progress.end()
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if ended and not session.shouldfail:
            for nodeid in self.collected:
                if nodeid not in self.records:
                    self._keep(nodeid, _lost(nodeid, "it was collected and never reported"))
        # in the order of the laws, whichever worker was faster
        order = {nodeid: place for place, nodeid in enumerate(self.collected)}
        known = sorted(self.records, key=lambda each: order.get(each, len(order)))
        self.records = {nodeid: self.records[nodeid] for nodeid in known}
        self._end(session)
        if not self.unwritten and self.records and not conforming(list(self.records.values())):
            from attnspec.conformance.report.record import CONFORMING, Outcome

            outcomes = {record.outcome for record in self.records.values()} - CONFORMING
            is_internal = outcomes == {Outcome.INTERNAL_ERROR}
            # Stopping at the first failure counts as an interruption in pytest.
            session.exitstatus = (
                pytest.ExitCode.INTERNAL_ERROR if is_internal else pytest.ExitCode.TESTS_FAILED
            )

    def _end(self, session: pytest.Session) -> None:
        """Write in the report how the run ended, and write its pages."""
        if self.run is None:
            return
        import dataclasses

        is_whole = bool(self.collected) and self.collected.keys() <= self.records.keys()
        self.run = dataclasses.replace(
            self.run,
            ended=_ended(session, is_whole),
            remarks=self._remarks(),
            trials=len(self.collected),
            seconds=round(time.monotonic() - self.started, 3),
        )
        records = list(self.records.values())
        try:
            if self.writer is not None:
                self.writer.end(self.run, records)
                self.unwritten = ""
            if any(self._pages().values()):
                from attnspec.conformance.report.file import Report
                from attnspec.conformance.report.pages import write_pages

                write_pages(Report(run=self.run, records=tuple(records)), **self._pages())
        except Exception as error:  # the matrix is printed even if a page fails
            self.unwritten = f"{type(error).__name__}: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _remarks(self) -> tuple[str, ...]:
        """Return the lines about the targets in the plan that the workers share."""
        import json
        from pathlib import Path

        plan = self.config.getoption("--attnspec-plan")
        if plan is None or not Path(plan).exists():
            return ()
        planned = json.loads(Path(plan).read_text(encoding="utf-8"))["planned"]
        return tuple(line for each in planned for line in each["remark"].splitlines())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the verdict and the causes of a command's run, the matrix and the counts."""
        # pytest has printed an empty line: nothing stands between it and the verdict
        if self.records:
            self._print_results(terminalreporter)
        if self.unwritten:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(f"attnspec: the report is not whole: {self.unwritten}")

    def _print_results(self, terminalreporter: Any) -> None:
        """Print the verdict and the causes of a command's run, the matrix and the counts."""
        from attnspec.conformance.report.console import plain_console
        from attnspec.conformance.report.escape import escape_controls
        from attnspec.conformance.report.matrix import coverage, print_matrix

        file = terminalreporter._tw._file
        width = None if file.isatty() else 220  # room for every implementation
        terminalreporter.ensure_newline()
        records = list(self.records.values())
        console = plain_console(file=file, width=width)
        is_whole = True
        if self.settings.progress:  # a command, which prints no failures of pytest
            from attnspec.conformance.report.verdict import print_verdict

            left = len(self.collected.keys() - self.records.keys())
            print_verdict(records, console, is_verbose=self.settings.verbose, left=left)
            console.print()
            several = len({record.subject for record in records}) > 1
            is_whole = self.settings.verbose or several
        print_matrix(records, console, is_whole=is_whole)
        if self.settings.coverage:
            for line in coverage(records):
                terminalreporter.write_line(escape_controls(line))


def _ended(session: pytest.Session, is_whole: bool) -> str:
    """Return how a run ended, in the words of a report's header."""
    if is_whole:
        return "complete"
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return "stopped at the first failure" if session.shouldfail else "interrupted"
    return "stopped at the first failure" if session.shouldfail else "partial"


def _is_ours(nodeid: str) -> bool:
    return "::test_law[" in nodeid


def _lost(nodeid: str, text: str) -> "Record":
    """Make the record of an item whose worker ended before it could make one."""
    from attnspec.conformance.report.record import Outcome, Record

    identifier = nodeid.rpartition("[")[2].removesuffix("]")
    clause, law, subject, *_ = *identifier.split("/", 2), "", "", ""
    reason = text.strip().splitlines()[-1] if text.strip() else "no reason was reported"
    return Record(
        subject=subject.removesuffix("/known"),
        law=law,
        clauses=(clause,),
        # the process of a law may be killed, but that of pytest runs code of attnspec alone
        outcome=Outcome.ERRORED if "crashed while" in text else Outcome.INTERNAL_ERROR,
        reason=reason,
        message=text,
    )
