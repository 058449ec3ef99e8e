"""The laws of CAC: sessions of decoding, and the machine that explores them."""

from dataclasses import replace
from typing import Any

import pytest

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.decoding.machine import DecodingMachine, machine
from attnspec.conformance.attention.decoding.session import (
    Again,
    Append,
    Memory,
    Reorder,
    Restart,
    RollBack,
    Session,
    State,
    states,
)
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.cache.steps import TINIEST
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import BUDGETS, Effort
from attnspec.conformance.runner.explore import explore
from attnspec.spec import (
    Feature,
)

SESSION = laws.load()["a-decoding-session-equals-all-at-once"]
CORRECT = replace(dense("correct", Dense()), features=frozenset(Feature) - {Feature.DROPOUT})
MUTANTS = mutants.load()


def test_a_session_describes_its_steps() -> None:
    steps = (Append(2), RollBack(1), Reorder((0, 0)), Again(1), Restart(), Append(1))
    session = TINIEST.but(steps=steps)
    assert str(session) == (
        "batch=1 heads=1 d_head=2 d_value=2 dtype=float32; cache in fresh tensors; "
        "visible by flag; append 2, then roll back 1, then reorder the batch to 0, 0, "
        "then ask again for the last 1, then restart, then append 1"
    )
    assert isinstance(session, Session)
    assert states(session)[-3:] == [State(1, 2), State(0, 1), State(1, 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (RollBack(1),),
        (Append(0),),
        (Append(1), RollBack(2)),
        (Append(1), Again(2)),
        (Append(1), Reorder((1,))),
        (Append(1), Reorder(())),
    ],
)
def test_a_step_that_cannot_be_taken_is_refused(steps: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="cannot "):
        Session(steps=steps)


@pytest.mark.slow
def test_the_machine_takes_every_kind_of_step() -> None:
    seen: list[Session] = []
    budget = replace(BUDGETS[Effort.STANDARD], examples=100)
    explore(seen.append, machine(Subject(CORRECT)), budget, 1)
    assert len(seen) >= 20
    assert {type(step) for each in seen for step in each.steps} == {
        Append,
        Again,
        RollBack,
        Reorder,
        Restart,
    }
    assert {each.memory for each in seen} == set(Memory)
    assert max(len(each.steps) for each in seen) >= 8


@pytest.mark.slow
def test_the_machine_shrinks_to_the_steps_that_matter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stateful(subject: Subject, session: Session) -> None:
        """CAC-9: no token is appended after a rollback."""
        kinds = [type(step) for step in session.steps]
        if RollBack in kinds and Append in kinds[kinds.index(RollBack) :]:
            raise Violation("appended after a rollback")

    # enough examples for one failure, whichever constants Hypothesis takes from loaded modules
    law = replace(SESSION, check=stateful, pinned=(), explore=machine, cost=0.1)
    record = check(law, Subject(CORRECT), Effort.STANDARD)
    assert record.outcome is Outcome.FAILED
    assert record.case.endswith("append 1, then roll back 1, then append 1")
    assert not capsys.readouterr().out


@pytest.mark.rotating(parts=4)
@pytest.mark.slow
def test_exploration_alone_finds_stale_state() -> None:
    for name in ("own-prefix-packed-once", "own-halves-unweighted"):
        law = replace(SESSION, pinned=())
        record = check(law, Subject(MUTANTS[name].subject), Effort.STANDARD)
        assert record.outcome in (Outcome.FAILED, Outcome.FLAKY)
        assert "append" in record.case
        assert "attention(query, key, value" in record.snippet or len(record.case) > 200


def test_an_interrupted_session_is_not_tried() -> None:
    tried: list[Session] = []
    broken = DecodingMachine(Subject(CORRECT), tried.append)
    broken.session = TINIEST  # type: ignore[assignment]
    try:
        raise KeyError
    except KeyError:
        broken.teardown()
    assert not tried
    broken.teardown()
    assert tried == [TINIEST]
