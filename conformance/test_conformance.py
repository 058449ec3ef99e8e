"""Every law on every subject named by `--implementation`, one pytest item each.

Run by `attnspec check`, or by `pytest --pyargs attnspec.conformance --implementation TARGET`.
"""

import pytest
import torch

from attnspec.conformance.claims import Claims
from attnspec.conformance.effort import Effort
from attnspec.conformance.plugin import PROPERTY
from attnspec.conformance.record import CONFORMING, Outcome
from attnspec.conformance.report_text import clean
from attnspec.conformance.targets import TargetError, every_name, resolve
from attnspec.conformance.trials import Trial, trials


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per law and subject."""
    config = metafunc.config
    try:
        claims = Claims.read(
            config.getoption("--attnspec-features"),
            config.getoption("--attnspec-dtypes"),
            config.getoption("--attnspec-profile"),
        )
        subjects = [
            judged
            for target in config.getoption("--implementation") or every_name()
            for judged in resolve(
                target, claims=claims, device=config.getoption("--attnspec-device")
            )
        ]
        found = trials(subjects, config.getoption("--laws"))
    except (TargetError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("trial", [pytest.param(each, id=each.id) for each in found])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_law(trial: Trial, request: pytest.FixtureRequest) -> None:
    """Try one law on one subject."""
    effort = Effort(request.config.getoption("--effort"))
    record = trial.run(effort, request.config.getoption("--attnspec-seed"))
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
