"""Every law on every subject named by `--implementation`, one pytest item each.

Run by `attnspec check`, or by `pytest --pyargs attnspec.conformance --implementation TARGET`.
Each subject is judged in a process of its own, whatever process the item is in.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnspec.conformance.effort import Effort
from attnspec.conformance.errand_runner import ErrandRunner
from attnspec.conformance.memory import GIBIBYTE, fair
from attnspec.conformance.planned import Errand, Planned, Words, errands, plan
from attnspec.conformance.plugin import PROPERTY
from attnspec.conformance.record import CONFORMING, Outcome
from attnspec.conformance.report_text import clean
from attnspec.conformance.targets import TargetError, every_name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per law and subject."""
    try:
        found = errands(_planned(metafunc.config), metafunc.config.getoption("--laws"))
    except (TargetError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("errand", [pytest.param(each, id=each.id) for each in found])


def _planned(config: pytest.Config) -> list[Planned]:
    """What to judge: as it was found before, or as it is found now."""
    option = config.getoption
    if option("--attnspec-plan"):
        written = json.loads(Path(option("--attnspec-plan")).read_text(encoding="utf-8"))
        return [Planned.from_data(each) for each in written]
    words = Words(
        features=option("--attnspec-features"),
        dtypes=option("--attnspec-dtypes"),
        profile=tuple(option("--attnspec-profile")),
    )
    return plan(
        option("--implementation") or every_name(),
        words,
        option("--attnspec-device"),
        limit=option("--attnspec-timeout"),
        memory=_memory(config),
    )


def _memory(config: pytest.Config) -> int | None:
    """Bytes that a process may hold."""
    said: float | None = config.getoption("--attnspec-memory")
    if said is not None:
        return int(said * GIBIBYTE) or None
    return fair(_workers(config), config.getoption("--attnspec-device"))


def _workers(config: pytest.Config) -> int:
    given = getattr(config, "workerinput", {}).get("workercount", 1)
    return int(given)


@pytest.fixture(scope="session")
def runner(pytestconfig: pytest.Config) -> Iterator[ErrandRunner]:
    """Tries laws, one after the other."""
    found = ErrandRunner(
        effort=Effort(pytestconfig.getoption("--effort")),
        seed=pytestconfig.getoption("--attnspec-seed"),
        limit=pytestconfig.getoption("--attnspec-timeout"),
        memory=_memory(pytestconfig),
    )
    yield found
    found.end()


def test_law(errand: Errand, runner: ErrandRunner, request: pytest.FixtureRequest) -> None:
    """Try one law on one subject."""
    record = runner.run(errand)
    request.node.user_properties.append((PROPERTY, record.to_json()))
    if record.outcome is Outcome.QUALITY_WARNING:
        request.node.user_properties.append((str(record.outcome), record.reason))
    if record.outcome is Outcome.EXPECTED_FAILURE:
        pytest.xfail(record.reason)
    if record.outcome in (Outcome.NOT_CLAIMED, Outcome.NOT_AVAILABLE):
        pytest.skip(f"{record.outcome}: {record.reason}")
    if record.outcome not in CONFORMING:
        told = clean(record.message or record.reason)
        pytest.fail(f"{record.outcome}\n{told}", pytrace=False)
