"""The laws of CAC: right attention passes them, each planted bug is caught by those it names."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.effort import BUDGETS, Effort
from attnspec.conformance.explore import explore
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.cache import TINIEST
from attnspec.conformance.mutants.cache import Behind
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.record import Outcome
from attnspec.conformance.session import (
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
from attnspec.conformance.session_machine import DecodingMachine, machine
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    chapter_text,
)
from attnspec.spec.clauses import parse

LAWS = {name: law for name, law in registered().items() if law.clauses[0].startswith("CAC-")}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=torch.float32)
"""One query, one key: a sequence that has only begun."""

SESSION = "a-session-of-decoding-is-all-at-once"


class BehindTiled(Behind, Tiled):
    """Tile by tile, and the last query stands at the last key."""


class Blocking(Dense):
    """Replace what no query reads."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> Any:
        return super().__call__(query, key.nan_to_num(), value.nan_to_num(), **options)


def _claiming(name: str, attention: Dense, *without: Feature, **profile: object) -> Implementation:
    base = dense(name, attention)
    features = frozenset(Feature) - {Feature.DROPOUT, *without}
    return replace(base, features=features, profile=replace(base.profile, **profile))


LOWER_RIGHT = CausalAlignment.LOWER_RIGHT
BASES = {
    "dense": _claiming("dense", Dense()),
    "tiled": _claiming("tiled", Tiled()),
    "lower_right": _claiming("lower_right", Behind(), causal_alignment=LOWER_RIGHT),
    "lower_right_tiled": _claiming(
        "lower_right_tiled", BehindTiled(), causal_alignment=LOWER_RIGHT
    ),
    "blocking": _claiming("blocking", Blocking(), masked_nonfinite=MaskedNonfinite.BLOCKED),
    "no_mask": _claiming("no_mask", Dense(), Feature.MASK),
    "no_flag": _claiming("no_flag", Dense(), Feature.CAUSAL, empty_row=EmptyRow.NAN),
    "plain": replace(dense("plain", Dense()), features=frozenset()),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_under_every_profile(base: Implementation, law: Law) -> None:
    if not law.needs <= base.features:
        return
    said = pinned_on(law, Subject(base))
    least = 0.0 if base.name == "plain" else 0.4 if base.name.startswith("no_") else 1.0
    assert said >= least * len(law.pinned)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    call = subject.draw(EASY)
    subject.judge(call, subject.call(call), "wrong")


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) <= {name for mutant in MUTANTS.values() for name in mutant.kills}


def test_chapter_and_laws_name_each_other() -> None:
    chapter = parse("cache", chapter_text("cache"))
    named = {law: each.id for each in chapter for law in each.held_by}
    assert named == {law.check.__name__: law.clauses[0] for law in LAWS.values()}


def test_a_session_says_in_words_what_is_done() -> None:
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


def test_the_machine_takes_every_kind_of_step() -> None:
    seen: list[Session] = []
    budget = replace(BUDGETS[Effort.STANDARD], examples=100)
    explore(seen.append, machine(Subject(BASES["dense"])), budget, 1)
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


def test_the_machine_shrinks_to_the_steps_that_matter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stateful(subject: Subject, session: Session) -> None:
        """CAC-9: no token is appended after a rollback."""
        kinds = [type(step) for step in session.steps]
        if RollBack in kinds and Append in kinds[kinds.index(RollBack) :]:
            raise Violation("appended after a rollback")

    # so many that one of them does so, whatever Hypothesis makes of the modules that are loaded
    law = replace(LAWS[SESSION], check=stateful, pinned=(), explore=machine, cost=0.1)
    record = check(law, Subject(BASES["dense"]), Effort.STANDARD)
    assert record.outcome is Outcome.FAILED
    assert record.case.endswith("append 1, then roll back 1, then append 1")
    assert not capsys.readouterr().out


def test_exploration_alone_finds_what_is_remembered_too_long() -> None:
    for name in ("own-prefix-packed-once", "own-halves-unweighted"):
        law = replace(LAWS[SESSION], pinned=())
        record = check(law, Subject(planted()[name].subject), Effort.STANDARD)
        assert record.outcome in (Outcome.FAILED, Outcome.FLAKY)
        assert "append" in record.case
        assert "attention(query, key, value" in record.snippet or len(record.case) > 200


def test_a_session_that_was_broken_off_is_not_tried() -> None:
    tried: list[Session] = []
    broken = DecodingMachine(Subject(BASES["dense"]), tried.append)
    broken.session = TINIEST  # type: ignore[assignment]
    try:
        raise KeyError
    except KeyError:
        broken.teardown()
    assert not tried
    broken.teardown()
    assert tried == [TINIEST]
