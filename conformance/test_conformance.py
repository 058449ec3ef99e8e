"""Every law on every subject named by `--implementation`, one pytest item each.

Run by `attnspec check`, or by `pytest --pyargs attnspec.conformance --implementation TARGET`.
Each subject is judged in a process of its own, whatever process the item is in.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from attnspec.conformance.effort import Effort
from attnspec.conformance.errand_runner import ErrandRunner
from attnspec.conformance.memory import most
from attnspec.conformance.planned import Errand, Planned, Words, errands, plan
from attnspec.conformance.plugin import PROPERTY, workers
from attnspec.conformance.record import CONFORMING, Outcome
from attnspec.conformance.targets import TargetError
from attnspec.conformance.unseen import clean


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per law and subject."""
    told = _told(metafunc.config)
    if told["refused"] and not metafunc.config.getoption("--attnspec-plan"):
        raise pytest.UsageError(told["refused"])
    planned = [Planned.from_data(each) for each in told["planned"]]
    found = errands(planned, metafunc.config.getoption("--laws")) if planned else []
    metafunc.parametrize("errand", [pytest.param(each, id=each.id) for each in found])


@functools.cache
def _told(config: pytest.Config) -> dict[str, Any]:
    """What to judge; where workers share a file for that, the first of them writes it."""
    option = config.getoption("--attnspec-plan")
    if not option:
        return _looked_up(config)
    path = Path(option)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps(_looked_up(config)), encoding="utf-8")
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return told


def _looked_up(config: pytest.Config) -> dict[str, Any]:
    """What the targets are, and the bytes that a process may hold; or why they are refused."""
    option = config.getoption
    device, laws = option("--attnspec-device"), option("--laws")
    try:
        memory = most(option("--attnspec-memory"), workers(config), device)
        words = Words(
            features=option("--attnspec-features"),
            dtypes=option("--attnspec-dtypes"),
            profile=tuple(option("--attnspec-profile")),
        )
        targets, limit = option("--implementation"), option("--attnspec-timeout")
        planned = plan(targets, words, device, laws, limit=limit, memory=memory)
    except (TargetError, ValueError) as error:
        return {"planned": [], "memory": None, "refused": str(error)}
    return {"planned": [each.to_data() for each in planned], "memory": memory, "refused": ""}


@pytest.fixture(scope="session")
def runner(pytestconfig: pytest.Config) -> Iterator[ErrandRunner]:
    """Tries laws, one after the other."""
    found = ErrandRunner(
        effort=Effort(pytestconfig.getoption("--effort")),
        seed=pytestconfig.getoption("--attnspec-seed"),
        limit=pytestconfig.getoption("--attnspec-timeout"),
        memory=_told(pytestconfig)["memory"],
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
