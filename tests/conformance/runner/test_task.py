"""Tasks: the order in which workers get them."""

import pytest

from attnspec.conformance import laws
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.targets import resolve
from attnspec.conformance.runner.task import Task, shared, tasks


def planned(*targets: str) -> list[Task]:
    subjects = [each for target in targets for each in resolve(target, claims=Claims())]
    return tasks(subjects, ["ATT", "MSK", "NUM"])


def shares(items: list[Task], workers: int) -> list[list[Task]]:
    """Return the shares with which workers of pytest-xdist begin under `--dist=worksteal`."""
    cut, left = [], list(items)
    for others in range(workers, 0, -1):
        count = len(left) // others
        cut.append(left[:count])
        left = left[count:]
    return cut


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("targets", [["eager"], ["eager", "sdpa"]])
def test_long_laws_are_dealt_among_the_shares(targets, workers):
    before = planned(*targets)
    items = shared(before, workers)
    assert sorted(each.id for each in items) == sorted(each.id for each in before)
    laws_of_shares = [
        [each.law.name for each in share if each.law.is_long] for share in shares(items, workers)
    ]
    counts = [len(set(names)) for names in laws_of_shares]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == len({each.law.name for each in before if each.law.is_long})
    *earlier, last = shares(items, workers)
    assert all(share[-1].law.is_long for share in earlier)
    assert last[0].law.is_long
    assert not last[-1].law.is_long
    assert items[0].id == before[0].id  # a simple mistake is found by the first law


def test_two_workers_divide_the_laws_of_gradients_from_the_others():
    ends, begins = shares(shared(planned("eager"), 2), 2)
    forward = {each.law.name for each in ends if each.law.clauses[0].startswith("NUM-")}
    backward = {each.law.name for each in begins if each.law.is_long}
    assert {"every-two-regimes-equal-the-definition"} <= forward
    assert {"gradients-in-every-two-regimes-equal-the-definition"} <= backward


def test_the_order_stays_for_one_worker_and_where_no_law_is_long():
    before = planned("eager")
    assert shared(before, 1) == before
    short = [each for each in before if not each.law.is_long]
    assert [each.id for each in shared(short, 2)] == [each.id for each in short]


def test_the_long_laws_come_last_if_the_first_failure_stops_the_run():
    before = planned("eager")
    items = shared(before, 2, stops=True)
    is_long = [each.law.is_long for each in items]
    assert is_long == sorted(is_long)
    assert sorted(each.id for each in items) == sorted(each.id for each in before)
    assert items[0].id == before[0].id


def test_the_long_laws_are_those_that_choose_their_cases():
    long = {each.clauses[0] for each in laws.load().values() if each.is_long}
    of_operators = {
        "LNM-14",
        "ACT-11",
        "RMS-14",
        "ROT-21",
        "GLU-9",
        "MOE-16",
        "MOE-17",
        "SEQ-20",
        "PAG-18",
    }
    assert long == {"NUM-18", "NUM-19", "NUM-20", "NUM-21", "LEN-10"} | of_operators
