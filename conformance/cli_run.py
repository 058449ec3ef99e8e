"""The run behind `attnspec check` and `attnspec check-gpt2`: pytest, with workers."""

import json
import operator
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

from attnspec.conformance.cli_report import USAGE, check_paths, refuse, summary_of_actions
from attnspec.conformance.effort import Effort

CONFORMING, BROKEN = 0, 1
"""Exit statuses: every law held, some law did not."""

QUIETEST = -2
"""The verbosity at which pytest says nothing."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command was asked to judge, and how, as typed."""

    targets: tuple[str, ...]
    features: str | None = None
    dtypes: str | None = None
    profile: tuple[str, ...] = ()
    device: str = "cpu"
    effort: Effort = Effort.STANDARD
    laws: tuple[str, ...] = ()
    workers: int = 1
    stop: bool = False
    seed: int | None = None
    timeout: float = 300.0
    memory: float | None = None
    report: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None


Refuse = Callable[[dict[str, Any]], str]
"""Tells why a command does not judge what was looked up: `planned`, data of `Planned`, or nothing
for the reason that is `refused`. It tells nothing where there is something to judge."""


def run(asked: Asked, refuses: Refuse = operator.itemgetter("refused")) -> NoReturn:
    """Judge, print and write what was found, and end the command.

    Nothing here imports torch, which takes seconds: the workers do, and start at once.

    Args:
        asked: what is judged, and how.
        refuses: is shown what the targets are before any law is tried.

    Raises:
        typer.Exit: always, with the exit status.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per worker
    check_paths(asked.report, asked.html, asked.markdown, asked.junit)
    with tempfile.TemporaryDirectory() as folder:
        refusals = _Refusals(Path(folder, "plan.json"), refuses)
        # The settings and conftest files of whatever project we are called in are not for this run.
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        arguments = [*_arguments(asked), f"--attnspec-plan={refusals.plan}"]
        arguments += ["-c", str(settings), f"--rootdir={folder}"]
        # Nor are its plugins, which cost time at best.
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            environment.delenv("PYTEST_PLUGINS", raising=False)
            environment.delenv("PYTEST_ADDOPTS", raising=False)
            environment.setenv("HYPOTHESIS_STORAGE_DIRECTORY", folder)
            status = pytest.main(arguments, plugins=[refusals])
    if refusals.reason:
        refuse(refusals.reason)
    raise typer.Exit(status if status in (CONFORMING, BROKEN) else USAGE)


class _Refusals:
    """A plugin that ends a run whose workers found nothing to judge."""

    def __init__(self, plan: Path, refuses: Refuse) -> None:
        self.plan, self.refuses = plan, refuses
        self.reason = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Remember whom to make quiet."""
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Read what one of them found out about the targets."""
        self.reason = self.refuses(json.loads(self.plan.read_text(encoding="utf-8")))
        if self.reason:
            self.config.option.verbose = QUIETEST  # no count of the tests that did not run
            raise pytest.UsageError


def _arguments(asked: Asked) -> list[str]:
    """What pytest is told."""
    arguments = ["--pyargs", "attnspec.conformance.test_conformance", "--import-mode=importlib"]
    arguments += ["--noconftest", "-p", "no:cacheprovider", "--no-header", "-q", "-rN"]
    # nothing here asserts, and pytest would compile every module of ours anew
    arguments += ["--assert=plain", "-p", "xdist.plugin", "-p", "attnspec.conformance.plugin"]
    arguments += ["--disable-warnings", "--attnspec-progress"]
    # it collects garbage five times at the end, in each worker, with all of torch in memory
    arguments += ["-p", "no:unraisableexception"]
    # Not loadgroup: where a worker died, its successor is never given anything to do.
    arguments += ["-n", str(asked.workers), "--dist=load", "--max-worker-restart=1000000"]
    arguments += [f"--implementation={each}" for each in asked.targets]
    arguments += [f"--laws={each}" for each in asked.laws]
    arguments += [f"--effort={asked.effort}", f"--attnspec-device={asked.device}"]
    arguments += [] if asked.features is None else [f"--attnspec-features={asked.features}"]
    arguments += [] if asked.dtypes is None else [f"--attnspec-dtypes={asked.dtypes}"]
    arguments += [f"--attnspec-profile={each}" for each in asked.profile]
    arguments += [f"--attnspec-timeout={asked.timeout}"]
    arguments += [] if asked.memory is None else [f"--attnspec-memory={asked.memory}"]
    arguments += ["-x"] if asked.stop else []
    # one seed for all workers, so that one number repeats the run
    seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
    arguments += [f"--attnspec-seed={seed}"]
    written = {
        "attnspec-report": asked.report,
        "attnspec-html": asked.html,
        "attnspec-markdown": asked.markdown,
        "junitxml": asked.junit,
    }
    for option, path in written.items():
        arguments += [] if path is None else [f"--{option}={path.absolute()}"]
    summary = summary_of_actions()
    return arguments if summary is None else [*arguments, f"--attnspec-summary={summary}"]
