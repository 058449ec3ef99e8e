"""A state machine of decoding: Hypothesis chooses the steps of a decoder one by one."""

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.decoding.session import (
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
from attnspec.conformance.attention.strategies import POSITIVE, cases
from attnspec.conformance.attention.subject import Subject
from attnspec.spec import Case, Feature, Values

LONGEST = 48
"""Length of the longest sequence drawn, in tokens."""

CHUNKS = (1, 1, 2, 3, 4, 5, 8, 17)
"""Numbers of tokens appended at once; one, as in decoding, is twice as likely."""

FAMILIES = (Values.NORMAL, Values.PEAKED, Values.GROWING, Values.TIES, Values.INTEGERS)
FEATURES = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
"""The features that a drawn session may use."""

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
    for always in ((), *((feature,) for feature in FEATURES))
}


def decoders(subject: Subject, *always: Feature) -> SearchStrategy[Session]:
    """Return a strategy of sessions without steps."""

    def build(case: Case, memory: Memory, spelling: Spelling) -> Session:
        values = {item.name: getattr(case, item.name) for item in fields(Case)}
        return Session(**values, memory=memory, spelling=spelling)

    decoder_cases = _DECODERS[always](subject)
    return st.builds(build, decoder_cases, st.sampled_from(Memory), st.sampled_from(Spelling))


def sessions(*always: Feature, only: tuple[type[Step], ...] = (Append,)) -> Any:
    """Return a function from a subject to a strategy of sessions with some kinds of steps.

    Args:
        always: the features that every session uses.
        only: the kinds of steps that may be taken besides appending.
    """

    @st.composite
    def drawn(draw: Any, subject: Subject) -> Session:
        session: Session = draw(decoders(subject, *always))
        for _ in range(draw(st.integers(1, 6))):
            session = extended(session, draw(next_step(states(session)[-1], only)))
        return session

    return drawn


def next_step(now: State, only: tuple[type[Step], ...]) -> SearchStrategy[Step]:
    """Return a strategy of the possible steps of the given kinds, and of appending."""
    chunks = [tokens for tokens in CHUNKS if now.length + tokens <= LONGEST] or [1]
    steps: dict[type[Step], SearchStrategy[Step]] = {Append: st.sampled_from(chunks).map(Append)}
    if now.length:
        steps[Again] = st.integers(1, now.length).map(Again)
        steps[RollBack] = st.integers(1, now.length).map(RollBack)
        element = st.integers(0, now.batch - 1)
        steps[Reorder] = st.lists(element, min_size=1, max_size=4).map(tuple).map(Reorder)
        steps[Restart] = st.just(Restart())
    return st.one_of([step for kind, step in steps.items() if kind in (Append, *only)])


def extended(session: Session, step: Step) -> Session:
    """Return the session with one more step."""
    extended: Session = session.but(steps=(*session.steps, step))  # type: ignore[assignment]
    return extended


class DecodingMachine(RuleBasedStateMachine):
    """A state machine that builds a session rule by rule and tries it at the end."""

    def __init__(self, subject: Subject, attempt: Callable[[Any], None]) -> None:
        super().__init__()
        self.subject, self.attempt = subject, attempt
        self.session = Session()
        self.outside = sys.exc_info()[1]

    @property
    def now(self) -> State:
        """The current numbers of tokens and batch elements."""
        return states(self.session)[-1]

    def take(self, step: Step) -> None:
        """Add a step to the session."""
        self.session = extended(self.session, step)

    @initialize(data=st.data(), tokens=st.sampled_from(CHUNKS))
    def begin(self, data: st.DataObject, tokens: int) -> None:
        """Choose the decoder and its first chunk."""
        self.session = data.draw(decoders(self.subject))
        self.take(Append(tokens))

    # Every rule is always applicable; if it has nothing to do, it does nothing. So leaving out a
    # step makes no other step impossible, which lets examples shrink.

    @rule(tokens=st.sampled_from(CHUNKS))
    def append(self, tokens: int) -> None:
        """Append tokens, and compute their queries."""
        if self.now.length + tokens <= LONGEST:
            self.take(Append(tokens))

    @rule(queries=st.integers(1, 17))
    def ask_again(self, queries: int) -> None:
        """Compute earlier queries again."""
        if self.now.length:
            self.take(Again(min(queries, self.now.length)))

    @rule(tokens=st.integers(1, 17))
    def roll_back(self, tokens: int) -> None:
        """Drop the last tokens."""
        if self.now.length:
            self.take(RollBack(min(tokens, self.now.length)))

    @rule(order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, order: list[int]) -> None:
        """Permute the batch, or continue one element several times."""
        if self.now.length:
            self.take(Reorder(tuple(element % self.now.batch for element in order)))

    @rule()
    def restart(self) -> None:
        """Start another sequence."""
        if self.now.length:
            self.take(Restart())

    def teardown(self) -> None:
        """Try the session, unless an exception interrupted it."""
        if self.session.steps and sys.exc_info()[1] is self.outside:
            self.attempt(self.session)


def machine(subject: Subject) -> Callable[[Callable[[Any], None]], RuleBasedStateMachine]:
    """Return the `explore` of a law that follows a decoder through any steps."""
    return lambda attempt: DecodingMachine(subject, attempt)
