"""Laws of CAC, first part: a sequence that is asked for bit by bit is the sequence as a whole."""

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.decoder import Decoder
from attnspec.conformance.law import Judged, law
from attnspec.conformance.session import (
    Again,
    Append,
    Memory,
    Reorder,
    Restart,
    RollBack,
    Session,
    Spelling,
)
from attnspec.conformance.session_machine import FEATURES, machine, sessions
from attnspec.conformance.strategies import every
from attnspec.conformance.subject import Subject
from attnspec.spec import Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ONE = Append(1)
TINIEST = Session(d_head=2, d_value=2, dtype=F32, steps=(ONE, ONE))
SMALL = Session(batch=2, heads=3, kv_heads=3, d_head=8, d_value=8, dtype=F32)
GROUPED = SMALL.but(heads=6, kv_heads=2, d_head=16, d_value=16)
LONG = SMALL.but(batch=1, d_head=64, d_value=64, seed=1)
STEPS = (ONE,) * 5
CHUNKS = (Append(3), Append(1), Append(5), Append(2))
WAYS: dict[str, tuple[object, ...]] = {
    "dtype": (F64, F16),
    "memory": (Memory.FRESH, Memory.BUFFER, Memory.MASKED),
    "spelling": (Spelling.BOOL, Spelling.SLICES),
    "values": (Values.GROWING,),
}
MORE_WAYS: dict[str, tuple[object, ...]] = {
    "dtype": (BF16,),
    "memory": (Memory.HEADS_INSIDE,),
    "spelling": (Spelling.FLOAT,),
    "values": (Values.PEAKED,),
}
BACK = (Append(4), RollBack(2), Append(2), RollBack(1), ONE)
BEAMS = (Append(3), Reorder((1, 0)), Again(1), ONE, Reorder((1, 1, 0)), Append(2))


@law(
    "CAC-1",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        SMALL.but(steps=(Append(4), *STEPS)),
        *every(SMALL.but(steps=(Append(2), ONE, ONE)), **WAYS),
        GROUPED.but(steps=(Append(3), ONE, ONE)),
    ),
    wide=(
        *every(SMALL.but(steps=(Append(2), ONE, ONE)), **MORE_WAYS),
        LONG.but(steps=(Append(63), ONE, ONE, ONE)),
        GROUPED.but(steps=(Append(129), ONE), memory=Memory.BUFFER),
    ),
    explore=sessions(only=()),
    cost=5,
)
def law_step_by_step_is_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-1: one query at a time over the keys so far gives the rows of the whole sequence."""
    Decoder(subject, _singly(session)).play("decoding step by step is not right")


def _singly(session: Session) -> Session:
    """The session with every chunk but the first taken token by token."""
    first, *later = session.steps
    singly = [ONE for step in later for _ in range(getattr(step, "tokens", 0))]
    taken: Session = session.but(steps=(first, *singly[:8]))  # type: ignore[assignment]
    return taken


@law(
    "CAC-2",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(steps=(ONE, Append(2))),
        SMALL.but(steps=CHUNKS),
        *every(SMALL.but(steps=(Append(2), Append(3))), **WAYS),
        GROUPED.but(steps=(Append(2), Append(7))),
    ),
    wide=(
        *every(SMALL.but(steps=(Append(2), Append(3))), **MORE_WAYS),
        LONG.but(steps=(Append(16), Append(17), Append(15), Append(18))),
        LONG.but(steps=(Append(65), Append(64)), spelling=Spelling.BOOL),
    ),
    explore=sessions(),
    cost=5,
)
def law_chunks_are_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-2: a sequence in chunks of any sizes gives the rows of the whole sequence."""
    Decoder(subject, session).play("a chunk behind a cache is not right")


@law(
    "CAC-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(steps=(Append(2), RollBack(1), ONE)),
        TINIEST.but(steps=(Append(2), RollBack(1), ONE), memory=Memory.BUFFER),
        *every(SMALL.but(steps=BACK), **WAYS),
        SMALL.but(steps=(Append(3), Restart(), Append(3), Append(2)), memory=Memory.BUFFER),
    ),
    wide=(
        *every(SMALL.but(steps=BACK), **MORE_WAYS),
        GROUPED.but(steps=BACK, memory=Memory.BUFFER),
        LONG.but(steps=(Append(33), RollBack(16), Append(16)), memory=Memory.HEADS_INSIDE),
    ),
    explore=sessions(only=(RollBack, Restart)),
    cost=5,
)
def law_a_rollback_leaves_no_trace(subject: Subject, session: Session) -> None:
    """CAC-3: keys that were dropped, and whose places others took, are not felt."""
    Decoder(subject, session).play("what was dropped from the cache is felt")


@law(
    "CAC-6",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(batch=2, steps=(Append(2), Reorder((1, 0)), Again(1))),
        TINIEST.but(batch=2, steps=(Append(2), Reorder((1, 0)), ONE), memory=Memory.BUFFER),
        *every(SMALL.but(steps=BEAMS), **WAYS),
        SMALL.but(batch=1, steps=(Append(3), Reorder((0, 0, 0)), Append(2))),
    ),
    wide=(
        *every(SMALL.but(steps=BEAMS), **MORE_WAYS),
        GROUPED.but(batch=3, steps=(Append(2), Reorder((2, 0, 1)), ONE), memory=Memory.BUFFER),
        GROUPED.but(batch=4, steps=(Append(17), Reorder((3, 3, 1, 0)), Again(2))),
    ),
    explore=sessions(only=(Reorder, Again)),
    cost=5,
)
def law_reordered_elements_keep_their_keys(subject: Subject, session: Session) -> None:
    """CAC-6: when batch elements change places, each goes on with the keys that it had."""
    Decoder(subject, session).play("an element that changed places is not right")


def _placed(subject: Subject) -> SearchStrategy[Session] | None:
    """Draw sessions of each of these features that a subject claims."""
    found = [each for each in FEATURES if subject.claims(each)]
    return st.sampled_from(found).flatmap(lambda each: sessions(each)(subject)) if found else None


PLACED = (
    SMALL.but(window=(2, 0), steps=CHUNKS),
    SMALL.but(softcap=1.0, steps=CHUNKS),
    SMALL.but(sinks=True, steps=CHUNKS),
    SMALL.but(alibi=True, steps=CHUNKS),
)


@law(
    "CAC-8",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST.but(steps=(ONE, ONE, ONE)), window=[(1, 0)], softcap=[0.5]),
        *every(TINIEST.but(steps=(ONE, ONE, ONE)), sinks=[True], alibi=[True]),
        *(each for base in PLACED for each in (base, *every(base, spelling=list(Spelling)[1:]))),
        SMALL.but(window=(2, 0), softcap=1.0, sinks=True, alibi=True, steps=CHUNKS),
        GROUPED.but(window=(3, None), sinks=True, steps=CHUNKS, memory=Memory.HEADS_INSIDE),
        GROUPED.but(alibi=True, softcap=2.0, steps=CHUNKS, dtype=BF16),
    ),
    wide=(GROUPED.but(window=(16, 0), steps=(Append(33), ONE, Append(17)), memory=Memory.MASKED),),
    explore=_placed,
    cost=5,
)
def law_windows_and_slopes_count_from_the_place_of_a_query(
    subject: Subject, session: Session
) -> None:
    """CAC-8: window, ALiBi, softcap and sinks do behind a cache what they do without one."""
    Decoder(subject, session).play("a feature is not the same behind a cache")


@law(
    "CAC-9",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        SMALL.but(
            memory=Memory.BUFFER,
            steps=(
                Append(3),
                ONE,
                RollBack(2),
                Append(2),
                Reorder((1, 1)),
                ONE,
                Again(3),
                Restart(),
                Append(2),
                ONE,
            ),
        ),
        GROUPED.but(
            memory=Memory.MASKED, steps=(ONE, Append(4), Reorder((1, 0, 1)), RollBack(3), ONE)
        ),
    ),
    explore=machine,
    cost=3,
)
def law_a_session_of_decoding_is_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-9: whatever a decoder did before, each of its calls gives the rows of the whole."""
    Decoder(subject, session).play("decoding is not right")
