"""Every law on every subject named by `--implementation`, one pytest item each.

Run by `attnspec check`, or by `pytest --pyargs attnspec.conformance --implementation TARGET`.
Each subject is judged in a process of its own, whatever process the item is in.
"""

import functools
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from attnspec.conformance.isolation.memory import memory_per_worker
from attnspec.conformance.probe.following import look_up
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import CONFORMING, UNTRIED, Outcome
from attnspec.conformance.runner.declare import BrokenCall, TargetError
from attnspec.conformance.runner.in_workers import TaskRunner, import_diagnosis, import_laws
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.plugin import PROPERTY, workers
from attnspec.conformance.runner.settings import Settings
from attnspec.conformance.runner.task import PlannedSubject, Task, TypedClaims, shared, tasks
from attnspec.conformance.runner.waiting import folder_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per law and subject."""
    planned = _plan(metafunc.config)
    if planned["refused"] and not metafunc.config.getoption("--attnspec-plan"):
        raise pytest.UsageError(planned["refused"])
    subjects = [PlannedSubject.from_data(each) for each in planned["planned"]]
    patterns = metafunc.config.getoption("--laws")
    stops = bool(metafunc.config.getoption("maxfail"))
    ordered = tasks(subjects, patterns) if subjects else []
    items = shared(ordered, workers(metafunc.config), stops=stops) if subjects else []
    metafunc.parametrize("task", [pytest.param(each, id=each.id) for each in items])
    gc.freeze()  # all that was imported stays
    gc.enable()


@functools.cache
def _plan(config: pytest.Config) -> dict[str, Any]:
    """Plan the run; if workers share a file for the plan, the first of them writes it."""
    option = config.getoption("--attnspec-plan")
    if not option:
        return _planned(config)
    path = Path(option)
    if _tries_the_first_law(config) and config.getoption("maxfail"):
        # that law may end the run, and its failure is explained soonest where this is imported
        import_laws()
        import_diagnosis()
    lock = FileLock(f"{path}.lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:  # another worker plans it
        import_laws()
        held = lock.acquire()
    with held:
        if not path.exists():
            path.write_text(json.dumps(_planned(config)), encoding="utf-8")
        shared: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return shared


def _tries_the_first_law(config: pytest.Config) -> bool:
    """Return whether this is the first of several workers, to whom the first share is given."""
    return workers(config) > 1 and getattr(config, "workerinput", {}).get("workerid") == "gw0"


def _planned(config: pytest.Config) -> dict[str, Any]:
    """Return the planned subjects and the bytes that a worker may hold, or why it is refused."""
    settings = Settings.of(config)
    claims = TypedClaims.of(settings)
    try:
        memory = memory_per_worker(settings.memory, workers(config), settings.device)
        planned = plan(
            settings.targets,
            claims,
            settings.device,
            settings.laws,
            limit=settings.timeout,
            memory=memory,
            look_up=look_up,
            folder=folder_of(config.getoption("--attnspec-plan")),
            allow_foreign_code=settings.allow_foreign_code,
        )
    except (TargetError, ValueError) as error:
        # a first call that fails is a verdict on the target, and no misuse of the command
        is_verdict = isinstance(error, BrokenCall)
        refused = {"refused": str(error), "is_verdict": is_verdict}
        return {"planned": [], "memory": None, **refused}
    subjects = [each.to_data() for each in planned]
    return {"planned": subjects, "memory": memory, "refused": "", "is_verdict": False}


@pytest.fixture(scope="session")
def runner(pytestconfig: pytest.Config) -> Iterator[TaskRunner]:
    """A runner of tasks, which starts workers as they are needed."""
    settings = Settings.of(pytestconfig)
    tasks_of_run = TaskRunner(
        effort=settings.effort,
        seed=settings.seed,
        limit=settings.timeout,
        memory=_plan(pytestconfig)["memory"],
        folder=folder_of(pytestconfig.getoption("--attnspec-plan")),
    )
    yield tasks_of_run
    tasks_of_run.end()


def test_law(task: Task, runner: TaskRunner, request: pytest.FixtureRequest) -> None:
    """Try one law on one subject."""
    record = runner.run(task)
    request.node.user_properties.append((PROPERTY, record.to_json()))
    if record.outcome is Outcome.QUALITY_WARNING:
        request.node.user_properties.append((str(record.outcome), record.reason))
    if record.outcome is Outcome.EXPECTED_FAILURE:
        pytest.xfail(record.reason)
    if record.outcome in UNTRIED:
        # the plugin sees to the exit status of what is not decided
        pytest.skip(f"{record.outcome}: {record.reason}")
    if record.outcome not in CONFORMING:
        message = escape_controls(record.message or record.reason)
        pytest.fail(f"{record.outcome}\n{message}", pytrace=False)
