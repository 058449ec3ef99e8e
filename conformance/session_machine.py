"""A state machine of decoding: Hypothesis decides step by step what a decoder does next."""

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.laws.attention_sides import POSITIVE
from attnspec.conformance.session import (
    Again,
    Append,
    Memory,
    Reorder,
    Restart,
    RollBack,
    Session,
    Spelling,
    State,
    Step,
    states,
)
from attnspec.conformance.strategies import cases
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Feature, Values

LONGEST = 48
"""Tokens that a drawn sequence holds at most."""

CHUNKS = (1, 1, 2, 3, 4, 5, 8, 17)
"""How many tokens come at once; one, as in decoding, twice as often."""

FAMILIES = (Values.NORMAL, Values.PEAKED, Values.GROWING, Values.TIES, Values.INTEGERS)
FEATURES = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
"""The features of which decoding has more to say than of others."""

_DECODERS = {
    always: cases(
        lengths=(1,),
        masked=False,
        causal=False,
        scales=POSITIVE,
        families=FAMILIES,
        always=always,
        sometimes=FEATURES,
    )
    for always in ((), *((each,) for each in FEATURES))
}


def decoders(subject: Subject, *always: Feature) -> SearchStrategy[Session]:
    """Draw sessions in which nothing has happened yet."""

    def begun(case: Case, memory: Memory, spelling: Spelling) -> Session:
        given = {item.name: getattr(case, item.name) for item in fields(Case)}
        return Session(**given, memory=memory, spelling=spelling)

    drawn = _DECODERS[always](subject)
    return st.builds(begun, drawn, st.sampled_from(Memory), st.sampled_from(Spelling))


def sessions(*always: Feature, only: tuple[type[Step], ...] = (Append,)) -> Any:
    """Return a function from a subject to a strategy of sessions of some steps only.

    Args:
        always: the features that are used in all of them.
        only: the steps that may be taken besides appending.
    """

    @st.composite
    def drawn(draw: Any, subject: Subject) -> Session:
        session: Session = draw(decoders(subject, *always))
        for _ in range(draw(st.integers(1, 6))):
            session = extended(session, draw(next_step(states(session)[-1], only)))
        return session

    return drawn


def next_step(now: State, only: tuple[type[Step], ...]) -> SearchStrategy[Step]:
    """Draw a step that can be taken, among the kinds given, and appending."""
    room = [each for each in CHUNKS if now.length + each <= LONGEST] or [1]
    ways: dict[type[Step], SearchStrategy[Step]] = {Append: st.sampled_from(room).map(Append)}
    if now.length:
        ways[Again] = st.integers(1, now.length).map(Again)
        ways[RollBack] = st.integers(1, now.length).map(RollBack)
        place = st.integers(0, now.batch - 1)
        ways[Reorder] = st.lists(place, min_size=1, max_size=4).map(tuple).map(Reorder)
        ways[Restart] = st.just(Restart())
    return st.one_of([way for kind, way in ways.items() if kind in (Append, *only)])


def extended(session: Session, step: Step) -> Session:
    """The session with one step more."""
    extended: Session = session.but(steps=(*session.steps, step))  # type: ignore[assignment]
    return extended


class DecodingMachine(RuleBasedStateMachine):
    """Write a session rule by rule, and hand it over to be tried when it ends."""

    def __init__(self, subject: Subject, attempt: Callable[[Any], None]) -> None:
        super().__init__()
        self.subject, self.attempt = subject, attempt
        self.session = Session()
        self.outside = sys.exc_info()[1]

    @property
    def now(self) -> State:
        """How many tokens and batch elements there are."""
        return states(self.session)[-1]

    def take(self, step: Step) -> None:
        """Take a step."""
        self.session = extended(self.session, step)

    @initialize(data=st.data(), tokens=st.sampled_from(CHUNKS))
    def begin(self, data: st.DataObject, tokens: int) -> None:
        """Choose the decoder and its first chunk."""
        self.session = data.draw(decoders(self.subject))
        self.take(Append(tokens))

    # Every rule can always be followed, and where it has nothing to do it does nothing: so a step
    # can be left out without any other becoming impossible, which is how examples shrink.

    @rule(tokens=st.sampled_from(CHUNKS))
    def append(self, tokens: int) -> None:
        """Add tokens, and ask for them."""
        if self.now.length + tokens <= LONGEST:
            self.take(Append(tokens))

    @rule(queries=st.integers(1, 17))
    def ask_again(self, queries: int) -> None:
        """Ask for tokens that were asked for before."""
        if self.now.length:
            self.take(Again(min(queries, self.now.length)))

    @rule(tokens=st.integers(1, 17))
    def roll_back(self, tokens: int) -> None:
        """Drop the last tokens."""
        if self.now.length:
            self.take(RollBack(min(tokens, self.now.length)))

    @rule(order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, order: list[int]) -> None:
        """Permute the batch, or let one element go on in several places."""
        if self.now.length:
            self.take(Reorder(tuple(each % self.now.batch for each in order)))

    @rule()
    def restart(self) -> None:
        """Begin with another sequence."""
        if self.now.length:
            self.take(Restart())

    def teardown(self) -> None:
        """Try the session, unless it was broken off."""
        if self.session.steps and sys.exc_info()[1] is self.outside:
            self.attempt(self.session)


def machine(subject: Subject) -> Callable[[Callable[[Any], None]], RuleBasedStateMachine]:
    """The `explore` of a law that follows a decoder through any steps."""
    return lambda attempt: DecodingMachine(subject, attempt)
