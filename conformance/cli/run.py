"""The run behind `attnspec check` and `attnspec check-gpt2`: pytest, with workers."""

import dataclasses
import json
import operator
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

from attnspec.conformance.cli.environment import set_variables
from attnspec.conformance.cli.report import USAGE, check_paths, refuse, summary_of_actions
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.runner.settings import Settings

CONFORMING, BROKEN, INTERNAL = 0, 1, 3
"""Exit statuses: every law held, some law did not, attnspec itself failed."""


PYTEST = (
    *("--pyargs", "attnspec.conformance.test_conformance", "--import-mode=importlib"),
    # what the run prints is ours: no header, failures or counts
    *("--noconftest", "-p", "no:cacheprovider", "--no-header", "-qq", "-rN", "--tb=no"),
    # nothing here asserts, and pytest would compile every module of ours anew
    "--assert=plain",
    *("-p", "xdist.plugin", "-p", "attnspec.conformance.runner.plugin", "--disable-warnings"),
    # it collects garbage five times at the end, in each worker, with all of torch in memory
    *("-p", "no:unraisableexception"),
)
"""The arguments with which every run calls pytest."""

Refuse = Callable[[dict[str, Any]], str]
"""Returns why a command does not judge its targets, or an empty string.

It is given the data of the planned subjects (`planned`), the reason why planning was refused
(`refused`), and whether that is a verdict on the targets (`is_verdict`).
"""


def run(
    settings: Settings,
    *,
    workers: int,
    stop: bool,
    junit: Path | None,
    refuses: Refuse = operator.itemgetter("refused"),
) -> NoReturn:
    """Judge the targets, print and write the results, and end the command.

    This process does not import torch, which takes seconds; the workers do, and start at once.

    Args:
        settings: the settings of the run.
        workers: how many processes share it.
        stop: whether to stop at the first failure.
        junit: the path of the JUnit XML to write.
        refuses: called with the planned subjects before any law is tried.

    Raises:
        typer.Exit: always, with the exit status.
    """
    set_variables()
    check_paths(settings.report, settings.html, settings.markdown, junit)
    # one seed for all workers, so that one number repeats the run
    seed = secrets.randbelow(2**32) if settings.seed is None else settings.seed
    summary = summary_of_actions()
    settings = dataclasses.replace(
        settings, seed=seed, summary=None if summary is None else Path(summary), progress=True
    )
    with tempfile.TemporaryDirectory() as folder:
        refusals = _Refusals(Path(folder, "plan.json"), refuses)
        # The settings and conftest files of whatever project we are called in are not for this run.
        configuration = Path(folder, "pytest.ini")
        configuration.write_text("[pytest]\n")
        arguments = [*PYTEST, *settings.to_arguments(), f"--attnspec-plan={refusals.plan}"]
        # Not loadgroup: where a worker died, its successor is never given anything to do.
        # One law takes minutes on each of several subjects: an idle worker takes some of another's.
        arguments += ["-n", str(workers), "--dist=worksteal", "--max-worker-restart=1000000"]
        arguments += ["-x"] if stop else []
        arguments += [] if junit is None else [f"--junitxml={junit.absolute()}"]
        arguments += ["-c", str(configuration), f"--rootdir={folder}"]
        # Nor are its plugins, which cost time at best.
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            environment.delenv("PYTEST_PLUGINS", raising=False)
            environment.delenv("PYTEST_ADDOPTS", raising=False)
            environment.setenv("HYPOTHESIS_STORAGE_DIRECTORY", folder)
            status = pytest.main(arguments, plugins=[refusals])
    if refusals.is_verdict:
        typer.echo(escape_controls(refusals.reason))
        raise typer.Exit(BROKEN)
    if refusals.reason:
        refuse(refusals.reason)
    raise typer.Exit(status if status in (CONFORMING, BROKEN, INTERNAL) else USAGE)


class _Refusals:
    """A plugin that ends a run if its targets are refused."""

    def __init__(self, plan: Path, refuses: Refuse) -> None:
        self.plan, self.refuses = plan, refuses
        self.reason = ""
        self.is_read = self.is_verdict = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Read the plan that one of the workers has written."""
        if self.is_read:
            return  # another worker has the same plan
        self.is_read = True
        plan = json.loads(self.plan.read_text(encoding="utf-8"))
        for planned in plan["planned"]:
            if planned["remark"]:
                typer.echo(escape_controls(planned["remark"]))
        self.reason = self.refuses(plan)
        # a command may refuse a target of another kind, whose first call says nothing
        self.is_verdict = bool(plan["is_verdict"]) and self.reason == plan["refused"]
        if self.reason:
            raise pytest.UsageError
