"""The catalogue of mutants (planted bugs), one pytest item each: run by `attnspec mutants`."""

import functools
import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from attnspec.conformance.evidence.mutation.kill_matrix import KillMatrix
from attnspec.conformance.evidence.mutation.kills import (
    Kills,
    false_alarms,
    kills,
    kind_of,
    select_mutants,
)
from attnspec.conformance.evidence.mutation.sources import (
    changed_laws,
    correct_are_as_stored,
    correct_are_current,
    mutant_is_as_stored,
)
from attnspec.conformance.isolation.memory import limit_memory, memory_per_worker
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.equivalent import EQUIVALENT
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.runner.plugin import PROPERTY, workers
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import Implementation


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item per mutant and, if all mutants are tried, one per correct implementation."""
    pattern = metafunc.config.getoption("--attnspec-mutant")
    part = metafunc.config.getoption("--attnspec-part")
    update = metafunc.config.getoption("--attnspec-update")
    stored = _stored(update)
    if "mutant" in metafunc.fixturenames:
        kept = (stored.sources, {row.mutant for row in stored.results}) if stored else ()
        mutants = select_mutants(pattern, part, *kept)
        metafunc.parametrize("mutant", [pytest.param(mutant, id=mutant.id) for mutant in mutants])
    else:
        is_whole = not pattern and part == "1/1"
        is_current = stored is not None and correct_are_current(stored.sources)
        metafunc.parametrize("name", list(correct()) if is_whole and not is_current else [])


@functools.cache
def _stored(path: str) -> KillMatrix | None:
    """Return the matrix that a run updates, if it updates one."""
    return KillMatrix.read(Path(path)) if path else None


def _earlier(
    config: pytest.Config, name: str, kind: SubjectKind
) -> tuple[Kills | None, frozenset[str]]:
    """Return the stored result of a mutant or correct implementation, and the laws changed since.

    There is none without a stored matrix, and if the files of the mutant have changed.
    """
    stored = _stored(config.getoption("--attnspec-update"))
    if stored is None:
        return None, frozenset()
    is_correct = name in correct()
    sources = stored.sources
    is_same = correct_are_as_stored(sources) if is_correct else mutant_is_as_stored(name, sources)
    rows = [row for row in stored.results if row.mutant == name and is_same]
    return (rows[0], changed_laws(kind, sources)) if rows else (None, frozenset())


def correct() -> dict[str, Callable[[], Implementation]]:
    """Return functions that load correct implementations, by name."""
    from attnspec import implementations

    on_cpu = ("eager", "sdpa", "sdpa_math", "sdpa_flash", "compiled")
    loaders = {name: partial(implementations.load, name) for name in on_cpu}
    loaders |= {base.__name__.lower(): partial(_plain, base) for base in (Dense, Tiled)}
    return loaders | {
        equivalent.id: partial(getattr, equivalent, "subject") for equivalent in EQUIVALENT
    }


def _plain(base: type[Dense]) -> Implementation:
    return dense(base.__name__.lower(), base())


@pytest.fixture(scope="session", autouse=True)
def _limited(pytestconfig: pytest.Config) -> None:
    # a mutant may allocate memory without end
    requested = pytestconfig.getoption("--attnspec-memory")
    limit_memory(memory_per_worker(requested, workers(pytestconfig), "cpu"))


@pytest.fixture(scope="session", autouse=True)
def _tune_garbage_collector() -> None:
    # modules imported by now are never freed: the collector need not scan them
    gc.collect()
    gc.freeze()
    # most objects created from here on are cached, or freed by reference counting
    gc.set_threshold(*(20 * threshold for threshold in gc.get_threshold()))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# The longest items come first: a long last item would leave the other processes idle.
def test_correct(name: str, request: pytest.FixtureRequest) -> None:
    """Run all laws on one correct implementation, which must break none."""
    subject = correct()[name]()
    if (reason := subject.unavailable()) is not None:
        pytest.skip(f"not available here: {reason}")
    result = false_alarms(name, subject, *_earlier(request.config, name, SubjectKind.ATTENTION))
    request.node.user_properties.append((PROPERTY, result.to_json()))
    assert not result.first, f"{result.first} rejects {name}, which is correct: {result.case}"


def test_mutant(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Run all laws on one mutant, which must break some law."""
    result = kills(mutant, *_earlier(request.config, mutant.id, kind_of(mutant)))
    request.node.user_properties.append((PROPERTY, result.to_json()))
    assert result.first, f"no law kills {mutant.id}: {mutant.title}"
    assert mutant.killed_by not in result.survived, f"{mutant.killed_by} does not kill {mutant.id}"
