"""The pytest plugin: options, one item per law and subject, and the matrix at the end.

It is imported by every pytest run of anyone who has attnspec installed, so it imports nothing
of attnspec until it is asked to.
"""

import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnspec.conformance.progress import Progress
    from attnspec.conformance.record import Record
    from attnspec.conformance.report_file import ReportWriter
    from attnspec.conformance.report_run import Run

PROPERTY = "attnspec"
"""The name of the property that carries a record from a worker to the report."""

PAGES = ("html", "markdown", "summary")
"""What is drawn of a report at the end of a run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance run."""
    group = parser.getgroup("attnspec", "conformance of attention implementations")
    group.addoption(
        "--implementation",
        action="append",
        default=[],
        metavar="TARGET",
        help="a registered name, module:attribute or file.py:attribute (may be repeated)",
    )
    group.addoption("--effort", default="standard", choices=("smoke", "standard", "thorough"))
    group.addoption("--laws", action="append", default=[], metavar="PATTERN")
    group.addoption("--attnspec-features", default=None, help="claims of a bare callable")
    group.addoption("--attnspec-dtypes", default=None, help="storage types of a bare callable")
    group.addoption("--attnspec-profile", action="append", default=[], metavar="KEY=VALUE")
    group.addoption("--attnspec-device", default="cpu")
    group.addoption("--attnspec-plan", default=None, metavar="FILE", help="what workers looked up")
    group.addoption(
        "--attnspec-timeout", default=300.0, type=float, metavar="S", help="for one law"
    )
    group.addoption(
        "--attnspec-memory", default=None, type=float, metavar="GiB", help="of one process; 0: all"
    )
    group.addoption(
        "--attnspec-progress", action="store_true", help="tell what a run is at, law by law"
    )
    group.addoption("--attnspec-seed", default=None, type=int, help="repeats a run's fresh cases")
    group.addoption("--attnspec-report", default=None, metavar="FILE.jsonl")
    group.addoption("--attnspec-html", default=None, metavar="FILE", help="one page, of all of it")
    group.addoption("--attnspec-markdown", default=None, metavar="FILE")
    group.addoption("--attnspec-summary", default=None, metavar="FILE", help="append Markdown")
    group.addoption("--attnspec-mutant", default="", help="what the id of a mutant contains")
    group.addoption("--attnspec-part", default="1/1", help="which part of the mutants")


def pytest_configure(config: pytest.Config) -> None:
    """Collect records in the process that reports; a worker only runs."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "attnspec-collector")


def workers(config: pytest.Config) -> int:
    """How many processes share what this one is a part of."""
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


class Collector:
    """Gathers the records of a run, whatever process they were made in."""

    def __init__(self, config: pytest.Config) -> None:
        self.records: dict[str, Record] = {}
        self.collected: dict[str, None] = {}
        self.config = config
        self.started = time.monotonic()
        self.run: Run | None = None
        self.writer: ReportWriter | None = None
        self.unwritten = ""
        self.progress: Progress | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None, None, None]:
        """Begin once the workers have: what is asked here imports torch, as they do."""
        yield
        self.begin()

    def begin(self) -> None:
        """Begin the report, so that one is there however the run ends."""
        option = self.config.getoption
        if option("--attnspec-progress"):
            from rich.console import Console

            from attnspec.conformance.progress import Progress

            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            self.progress = Progress(Console(file=reporter._tw._file))
        if not any(option(f"--attnspec-{each}") for each in (*PAGES, "report")):
            return
        from attnspec.conformance.report_file import ReportWriter
        from attnspec.conformance.report_run import begun

        self.run = begun(
            device=option("--attnspec-device"),
            effort=option("--effort"),
            seed=option("--attnspec-seed"),
            targets=option("--implementation"),
            laws=option("--laws"),
        )
        if option("--attnspec-report"):
            self.writer = ReportWriter(Path(option("--attnspec-report")), self.run)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Remember what the workers are going to run, to notice what vanishes."""
        self.collected.update(dict.fromkeys(each for each in ids if _is_ours(each)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Likewise where there are no workers."""
        ours = (item.nodeid for item in session.items if _is_ours(item.nodeid))
        self.collected.update(dict.fromkeys(ours))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tell which law is being tried."""
        if self.progress is not None and _is_ours(nodeid):
            law = nodeid.partition("[")[2].removesuffix("]")
            self.progress.begin(law, len(self.collected))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print no letter where a line is printed."""
        if self.progress is None or not _is_ours(report.nodeid):
            return None
        if hasattr(report, "wasxfail"):
            return "xfailed", "", ""
        is_told = report.when == "call" or not report.passed
        return (report.outcome if is_told else ""), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of an item; one that died without any becomes an error."""
        if not _is_ours(report.nodeid):
            return
        from attnspec.conformance.record import Record

        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, str):
                self._keep(report.nodeid, Record.from_json(value))
        if report.failed and report.nodeid not in self.records:
            self._keep(report.nodeid, _lost(report.nodeid, report.longreprtext))

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
        """An item that was collected and never reported is an error, not a silence."""
        from attnspec.conformance.matrix import conforming

        if self.progress is not None:
            self.progress.end()
        ended_early = session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not ended_early:
            for nodeid in self.collected:
                if nodeid not in self.records:
                    self._keep(nodeid, _lost(nodeid, "it was collected and never reported"))
        # in the order of the laws, whichever worker was faster
        order = {nodeid: place for place, nodeid in enumerate(self.collected)}
        known = sorted(self.records, key=lambda each: order.get(each, len(order)))
        self.records = {nodeid: self.records[nodeid] for nodeid in known}
        self._end(session)
        if not self.unwritten and self.records and not conforming(list(self.records.values())):
            # Stopping at the first failure counts as an interruption in pytest.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _end(self, session: pytest.Session) -> None:
        """Say in the report how the run ended, and draw its pages."""
        if self.run is None:
            return
        import dataclasses

        is_whole = bool(self.collected) and self.collected.keys() <= self.records.keys()
        self.run = dataclasses.replace(
            self.run,
            ended=_ended(session, is_whole),
            trials=len(self.collected),
            seconds=round(time.monotonic() - self.started, 3),
        )
        records = list(self.records.values())
        try:
            if self.writer is not None:
                self.writer.end(self.run, records)
                self.unwritten = ""
            if any(self.config.getoption(f"--attnspec-{each}") for each in PAGES):
                from attnspec.conformance.report import write_pages
                from attnspec.conformance.report_file import Report

                paths = {each: self.config.getoption(f"--attnspec-{each}") for each in PAGES}
                write_pages(Report(run=self.run, records=tuple(records)), **paths)
        except Exception as error:  # whatever a drawing stumbles over, the matrix is still printed
            self.unwritten = f"{type(error).__name__}: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the matrix and the counts."""
        if self.unwritten:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(f"attnspec: the report is not whole: {self.unwritten}")
        if not self.records:
            return
        from rich.console import Console

        from attnspec.conformance.matrix import print_matrix

        file = terminalreporter._tw._file
        width = None if file.isatty() else 220  # room for every implementation
        terminalreporter.ensure_newline()
        print_matrix(list(self.records.values()), Console(file=file, width=width))


def _ended(session: pytest.Session, is_whole: bool) -> str:
    """How a run ended, in the words of a report's header."""
    if is_whole:
        return "complete"
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return "stopped at the first failure" if session.shouldfail else "interrupted"
    return "stopped at the first failure" if session.shouldfail else "partial"


def _is_ours(nodeid: str) -> bool:
    return "::test_law[" in nodeid


def _lost(nodeid: str, text: str) -> "Record":
    """The record of an item whose worker died before it could make one."""
    from attnspec.conformance.record import Outcome, Record

    identifier = nodeid.rpartition("[")[2].removesuffix("]")
    clause, law, subject, *_ = *identifier.split("/", 2), "", "", ""
    reason = text.strip().splitlines()[-1] if text.strip() else "no reason was reported"
    return Record(
        subject=subject.removesuffix("/known"),
        law=law,
        clauses=(clause,),
        outcome=Outcome.ERRORED,
        reason=reason,
        message=text,
    )
