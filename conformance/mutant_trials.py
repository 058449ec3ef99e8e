"""The catalogue of mutants, one pytest item each: run by `attnspec mutants`."""

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch

from attnspec.conformance.kills import chosen, false_alarms, kills
from attnspec.conformance.memory import limit_memory, most
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.plugin import PROPERTY, workers
from attnspec.spec import Implementation


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per mutant, and one per correct implementation where all mutants are tried."""
    pattern = metafunc.config.getoption("--attnspec-mutant")
    part = metafunc.config.getoption("--attnspec-part")
    if "mutant" in metafunc.fixturenames:
        mutants = chosen(pattern, part)
        metafunc.parametrize("mutant", [pytest.param(each, id=each.id) for each in mutants])
    else:
        right = correct() if not pattern and part == "1/1" else {}
        metafunc.parametrize("name", list(right))


def correct() -> dict[str, Callable[[], Implementation]]:
    """Implementations that are right, by name."""
    from attnspec import implementations

    on_cpu = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled")
    found = {name: partial(implementations.load, name) for name in on_cpu}
    found |= {base.__name__.lower(): partial(_plain, base) for base in (Dense, Tiled)}
    return found | {each.id: partial(getattr, each, "subject") for each in EQUIVALENT}


def _plain(base: type[Dense]) -> Implementation:
    return dense(base.__name__.lower(), base())


@pytest.fixture(scope="session", autouse=True)
def _limited(pytestconfig: pytest.Config) -> None:
    # a mistake may take memory without end
    asked = pytestconfig.getoption("--attnspec-memory")
    limit_memory(most(asked, workers(pytestconfig), "cpu"))


@pytest.fixture(scope="session", autouse=True)
def _kept() -> None:
    # what is imported by now is never thrown away: nobody need look at it again and again
    gc.collect()
    gc.freeze()
    # most of what is made here is kept, or gone before anybody looks
    gc.set_threshold(*(20 * each for each in gc.get_threshold()))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# The longest come first: the last items keep one process waiting for the other.
def test_correct(name: str, request: pytest.FixtureRequest) -> None:
    """Try all laws on one implementation that is right, which none may break."""
    subject = correct()[name]()
    if (reason := subject.unavailable()) is not None:
        pytest.skip(f"not available here: {reason}")
    told = false_alarms(name, subject)
    request.node.user_properties.append((PROPERTY, told.to_json()))
    assert not told.first, f"{told.first} rejects {name}, which is right: {told.case}"


def test_mutant(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Try all laws on one mutant, which some law has to break."""
    told = kills(mutant)
    request.node.user_properties.append((PROPERTY, told.to_json()))
    assert told.first, f"no law breaks {mutant.id}: {mutant.title}"
    missed = sorted(set(mutant.kills).difference(told.pinned))
    assert not missed, f"{mutant.id} is said to be killed by {', '.join(missed)}"
