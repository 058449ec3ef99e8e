"""Laws of CAC: decoding with a cache equals one call of the whole sequence."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.decoding.decoder import Decoder
from attnspec.conformance.attention.decoding.machine import FEATURES, machine, sessions
from attnspec.conformance.attention.decoding.session import (
    Again,
    Append,
    Memory,
    Reorder,
    Restart,
    RollBack,
    Session,
    Spelling,
)
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32, F64
from attnspec.conformance.laws.law import law
from attnspec.spec import Values

ONE = Append(1)
TINIEST = Session(d_head=2, d_value=2, dtype=F32, steps=(ONE, ONE))
SMALL = Session(batch=2, heads=3, kv_heads=3, d_head=8, d_value=8, dtype=F32)
GROUPED = SMALL.but(heads=6, kv_heads=2, d_head=16, d_value=16)
LONG = SMALL.but(batch=1, d_head=64, d_value=64, seed=1)
STEPS = (ONE,) * 5
CHUNKS = (Append(3), Append(1), Append(5), Append(2))
VARIATIONS: dict[str, tuple[object, ...]] = {
    "dtype": (F64, F16),
    "memory": (Memory.FRESH, Memory.BUFFER, Memory.MASKED),
    "spelling": (Spelling.BOOL, Spelling.SLICES),
    "values": (Values.GROWING,),
}
MORE_VARIATIONS: dict[str, tuple[object, ...]] = {
    "dtype": (BF16,),
    "memory": (Memory.HEADS_INSIDE,),
    "spelling": (Spelling.FLOAT,),
    "values": (Values.PEAKED,),
}
ROLLBACKS = (Append(4), RollBack(2), Append(2), RollBack(1), ONE)
BEAMS = (Append(3), Reorder((1, 0)), Again(1), ONE, Reorder((1, 1, 0)), Append(2))


@law(
    "CAC-1",
    pinned=(
        TINIEST,
        SMALL.but(steps=(Append(4), *STEPS)),
        *vary(SMALL.but(steps=(Append(2), ONE, ONE)), **VARIATIONS),
        GROUPED.but(steps=(Append(3), ONE, ONE)),
    ),
    wide=(
        *vary(SMALL.but(steps=(Append(2), ONE, ONE)), **MORE_VARIATIONS),
        LONG.but(steps=(Append(63), ONE, ONE, ONE)),
        GROUPED.but(steps=(Append(129), ONE), memory=Memory.BUFFER),
    ),
    explore=sessions(only=()),
    cost=5,
)
def law_step_by_step_equals_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-1: one query at a time over the keys so far gives the rows of the whole sequence."""
    Decoder(subject, _token_by_token(session)).play("decoding step by step is wrong")


def _token_by_token(session: Session) -> Session:
    """Return the session with every chunk after the first appended token by token."""
    first, *later = session.steps
    tokens = [ONE for step in later for _ in range(getattr(step, "tokens", 0))]
    unrolled: Session = session.but(steps=(first, *tokens[:8]))  # type: ignore[assignment]
    return unrolled


@law(
    "CAC-2",
    pinned=(
        TINIEST.but(steps=(ONE, Append(2))),
        SMALL.but(steps=CHUNKS),
        *vary(SMALL.but(steps=(Append(2), Append(3))), **VARIATIONS),
        GROUPED.but(steps=(Append(2), Append(7))),
    ),
    wide=(
        *vary(SMALL.but(steps=(Append(2), Append(3))), **MORE_VARIATIONS),
        LONG.but(steps=(Append(16), Append(17), Append(15), Append(18))),
        LONG.but(steps=(Append(65), Append(64)), spelling=Spelling.BOOL),
    ),
    explore=sessions(),
    cost=5,
)
def law_chunks_equal_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-2: a sequence in chunks of any sizes gives the rows of the whole sequence."""
    Decoder(subject, session).play("a chunk after cached tokens is wrong")


@law(
    "CAC-3",
    pinned=(
        TINIEST.but(steps=(Append(2), RollBack(1), ONE)),
        TINIEST.but(steps=(Append(2), RollBack(1), ONE), memory=Memory.BUFFER),
        *vary(SMALL.but(steps=ROLLBACKS), **VARIATIONS),
        SMALL.but(steps=(Append(3), Restart(), Append(3), Append(2)), memory=Memory.BUFFER),
    ),
    wide=(
        *vary(SMALL.but(steps=ROLLBACKS), **MORE_VARIATIONS),
        GROUPED.but(steps=ROLLBACKS, memory=Memory.BUFFER),
        LONG.but(steps=(Append(33), RollBack(16), Append(16)), memory=Memory.HEADS_INSIDE),
    ),
    explore=sessions(only=(RollBack, Restart)),
    cost=5,
)
def law_a_rollback_leaves_no_trace(subject: Subject, session: Session) -> None:
    """CAC-3: keys that were dropped or overwritten do not change the output."""
    Decoder(subject, session).play("tokens dropped from the cache change the output")


@law(
    "CAC-6",
    pinned=(
        TINIEST.but(batch=2, steps=(Append(2), Reorder((1, 0)), Again(1))),
        TINIEST.but(batch=2, steps=(Append(2), Reorder((1, 0)), ONE), memory=Memory.BUFFER),
        *vary(SMALL.but(steps=BEAMS), **VARIATIONS),
        SMALL.but(batch=1, steps=(Append(3), Reorder((0, 0, 0)), Append(2))),
        # so many wide keys that a kernel may keep them packed
        SMALL.but(
            batch=2,
            d_head=64,
            d_value=64,
            steps=(Append(130), ONE, Reorder((1, 0)), ONE),
            memory=Memory.BUFFER,
        ),
    ),
    wide=(
        *vary(SMALL.but(steps=BEAMS), **MORE_VARIATIONS),
        GROUPED.but(batch=3, steps=(Append(2), Reorder((2, 0, 1)), ONE), memory=Memory.BUFFER),
        GROUPED.but(batch=4, steps=(Append(17), Reorder((3, 3, 1, 0)), Again(2))),
    ),
    explore=sessions(only=(Reorder, Again)),
    cost=5,
)
def law_reordered_elements_keep_their_keys(subject: Subject, session: Session) -> None:
    """CAC-6: when batch elements are reordered, each continues with the keys that it had."""
    Decoder(subject, session).play("an element of a reordered batch is wrong")


def _sessions_with_features(subject: Subject) -> SearchStrategy[Session] | None:
    """Draw sessions with window, softcap, sinks or ALiBi, as far as they are claimed."""
    claimed = [feature for feature in FEATURES if subject.claims(feature)]
    if not claimed:
        return None
    return st.sampled_from(claimed).flatmap(lambda feature: sessions(feature)(subject))


WITH_FEATURES = (
    SMALL.but(window=(2, 0), steps=CHUNKS),
    SMALL.but(softcap=1.0, steps=CHUNKS),
    SMALL.but(sinks=True, steps=CHUNKS),
    SMALL.but(alibi=True, steps=CHUNKS),
)


@law(
    "CAC-8",
    pinned=(
        *vary(TINIEST.but(steps=(ONE, ONE, ONE)), window=[(1, 0)], softcap=[0.5]),
        *vary(TINIEST.but(steps=(ONE, ONE, ONE)), sinks=[True], alibi=[True]),
        *(
            session
            for base in WITH_FEATURES
            for session in (base, *vary(base, spelling=list(Spelling)[1:]))
        ),
        SMALL.but(window=(2, 0), softcap=1.0, sinks=True, alibi=True, steps=CHUNKS),
        GROUPED.but(window=(3, None), sinks=True, steps=CHUNKS, memory=Memory.HEADS_INSIDE),
        GROUPED.but(alibi=True, softcap=2.0, steps=CHUNKS, dtype=BF16),
    ),
    wide=(GROUPED.but(window=(16, 0), steps=(Append(33), ONE, Append(17)), memory=Memory.MASKED),),
    explore=_sessions_with_features,
    cost=5,
)
def law_windows_and_slopes_count_from_the_position_of_a_query(
    subject: Subject, session: Session
) -> None:
    """CAC-8: window, ALiBi, softcap and sinks act the same with a cache and without one."""
    Decoder(subject, session).play("a feature is wrong with a cache")


@law(
    "CAC-9",
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
def law_a_decoding_session_equals_all_at_once(subject: Subject, session: Session) -> None:
    """CAC-9: whatever a decoder did before, each of its calls gives the rows of the whole."""
    Decoder(subject, session).play("decoding is wrong")
