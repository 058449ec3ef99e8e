"""Laws of PAG: appending to pages, and an engine that serves many sequences."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.paged.case import PagedCase, Places, cases
from attnspec.conformance.operators.paged.engine.machine import machine
from attnspec.conformance.operators.paged.engine.player import Player
from attnspec.conformance.operators.paged.engine.serving import (
    Add,
    Decode,
    Evict,
    Fork,
    Free,
    RollBack,
    Serving,
)
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.spec.packed import CAUSAL

F32 = torch.float32
APPENDED = (
    PagedCase(queries=(1,), keys=(1,), page_size=2, append=True),
    PagedCase(queries=(1, 1), keys=(5, 4), append=True),
    PagedCase(queries=(3, 6), keys=(6, 9), append=True, window=CAUSAL),
    PagedCase(queries=(9, 1), keys=(9, 17), append=True, dtype=F32, page_size=4, window=CAUSAL),
    PagedCase(queries=(1, 2), keys=(6, 8), append=True, places=Places.SHARED, columns=3),
    PagedCase(queries=(2, 3), keys=(4, 5), append=True, page_size=1, heads=2, kv_heads=2),
)


@law(
    "PAG-14",
    pinned=APPENDED,
    explore=lambda subject: cases(subject, append=True),
    needs={"append"},
)
def law_appending_writes_exactly_its_slots(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-14: new tokens are written behind the first seqused_k tokens, and nothing else is."""
    case = subject.expressible(case)
    subject.judge_pools(case.draw(subject.profile), "appending writes to wrong slots")


@law(
    "PAG-15",
    pinned=APPENDED,
    explore=lambda subject: cases(subject, append=True),
    needs={"append"},
)
def law_appended_tokens_are_attended(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-15: a call that appends attends to the tokens of before and to the new ones."""
    case = subject.expressible(case)
    subject.judge_case(case, "a call does not attend to the tokens that it appends")


SERVED = (
    Serving(steps=(Add(2),), page_size=2),
    Serving(steps=(Add(3), Add(5), Decode((0, 1)))),
    Serving(steps=(Add(5), Fork(0), Decode((1,)), Decode((0,)))),
    Serving(
        steps=(Add(6), Add(3), RollBack(0, 3), Decode((0, 1)), Free(1), Add(4), Decode((0, 1)))
    ),
    Serving(steps=(Add(9), Evict(0), Add(4), Add(0), Decode((0, 1)), Decode((0,))), dtype=F32),
    Serving(
        steps=(Add(4), Fork(0), Free(0), Add(7), Decode((0, 1)), Fork(1), RollBack(0, 2)),
        heads=4,
        kv_heads=2,
        dtype=F32,
    ),
)


@law("PAG-16", pinned=SERVED, explore=machine)
def law_an_engine_serves_every_sequence_as_if_it_were_alone(
    subject: PagedSubject, case: Serving
) -> None:
    """PAG-16: through any steps of an engine, each sequence is attention over its own history."""
    Player(subject, case).play("a sequence that an engine serves is wrong")
