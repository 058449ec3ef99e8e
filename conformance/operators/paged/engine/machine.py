"""A state machine of a serving engine: Hypothesis chooses its steps one by one."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from attnspec.conformance.operators.paged.case import PAGE_SIZES
from attnspec.conformance.operators.paged.engine.serving import (
    Add,
    Decode,
    Evict,
    Extend,
    Fork,
    Free,
    RollBack,
    Serving,
    State,
    Step,
    states,
)
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.spec.packed import CAUSAL, EVERYWHERE

MOST_SEQUENCES, LONGEST = 5, 40
CHUNKS = (1, 2, 3, 5, 8, 17)


class EngineMachine(RuleBasedStateMachine):
    """A state machine that builds a run rule by rule and tries it at the end."""

    def __init__(self, subject: PagedSubject, attempt: Callable[[Any], None]) -> None:
        super().__init__()
        self.subject, self.attempt = subject, attempt
        self.serving = Serving()
        self.outside = sys.exc_info()[1]

    @property
    def now(self) -> State:
        """The current sequences."""
        return states(self.serving)[-1]

    def take(self, step: Step) -> None:
        """Add a step to the run."""
        self.serving = replace(self.serving, steps=(*self.serving.steps, step))

    @initialize(data=st.data(), chunks=st.lists(st.sampled_from(CHUNKS), min_size=2, max_size=3))
    def begin(self, data: st.DataObject, chunks: list[int]) -> None:
        """Choose the pages, and add the first sequences."""
        implementation = self.subject.implementation
        kv_heads = data.draw(st.sampled_from([1, 2]))
        group = data.draw(st.sampled_from([1, 3])) if "gqa" in implementation.features else 1
        self.serving = Serving(
            page_size=data.draw(st.sampled_from(implementation.page_sizes or PAGE_SIZES)),
            heads=group * kv_heads,
            kv_heads=kv_heads,
            dtype=data.draw(st.sampled_from(implementation.dtypes)),
            window=CAUSAL if "causal" in implementation.features else EVERYWHERE,
            seed=data.draw(st.integers(0, 2**16 - 1)),
        )
        for tokens in chunks:
            self.take(Add(tokens))

    # Every rule is always applicable; if it has nothing to do, it does nothing. So leaving out a
    # step makes no other step impossible, which lets examples shrink.

    @rule(tokens=st.sampled_from(CHUNKS))
    def add(self, tokens: int) -> None:
        """Add a sequence, and prefill it."""
        if len(self.now.lengths) < MOST_SEQUENCES:
            self.take(Add(tokens))

    @rule(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def decode(self, numbers: list[int]) -> None:
        """Append a token to some sequences."""
        count = len(self.now.lengths)
        if count:
            self.take(Decode(tuple(dict.fromkeys(each % count for each in numbers))))

    @rule()
    def decode_all(self) -> None:
        """Append a token to every sequence, the last one first."""
        count = len(self.now.lengths)
        if count:
            self.take(Decode(tuple(reversed(range(count)))))

    @rule(number=st.integers(0, 4), tokens=st.sampled_from(CHUNKS))
    def extend(self, number: int, tokens: int) -> None:
        """Prefill a further chunk of a sequence."""
        lengths = self.now.lengths
        if lengths and lengths[number % len(lengths)] + tokens <= LONGEST:
            self.take(Extend(number % len(lengths), tokens))

    @rule(number=st.integers(0, 4))
    def fork(self, number: int) -> None:
        """Continue a sequence as another one."""
        count = len(self.now.lengths)
        if 0 < count < MOST_SEQUENCES:
            self.take(Fork(number % count))

    @rule(number=st.integers(0, 4), tokens=st.integers(1, 9))
    def roll_back(self, number: int, tokens: int) -> None:
        """Drop the last tokens of a sequence, all but one at most."""
        lengths = self.now.lengths
        if lengths and lengths[number % len(lengths)] > 1:
            number %= len(lengths)
            self.take(RollBack(number, min(tokens, lengths[number] - 1)))

    @rule(number=st.integers(0, 4), comes_back=st.booleans())
    def leave(self, number: int, comes_back: bool) -> None:
        """End a sequence, or move it out of the pool."""
        count = len(self.now.lengths)
        if count:
            self.take(Evict(number % count) if comes_back else Free(number % count))

    @rule()
    def bring_back(self) -> None:
        """Bring the sequence back that was evicted first."""
        if self.now.evicted and len(self.now.lengths) < MOST_SEQUENCES:
            self.take(Add(0))

    def teardown(self) -> None:
        """Try the run, unless an exception interrupted it."""
        if self.serving.steps and sys.exc_info()[1] is self.outside:
            self.attempt(self.serving)


def machine(subject: PagedSubject) -> Callable[[Callable[[Any], None]], RuleBasedStateMachine]:
    """Return the `explore` of a law that follows an engine through any steps."""
    return lambda attempt: EngineMachine(subject, attempt)
