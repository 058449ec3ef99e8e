"""Laws of ROT: positions of padded and packed sequences and of a cache, memory, and state."""

import itertools

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close, check_equal
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.rotary.definition import PINNED, wide_cases
from attnspec.conformance.operators.rotary.case import SCALINGS, Places, RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import AXES, RotarySubject
from attnspec.spec.rotary import ScalingKind

F32, BF16 = torch.float32, torch.bfloat16
WHOLE = RotaryCase(batch=3, heads=2, length=7, d_head=8, seed=1)


@law(
    "ROT-16",
    pinned=tuple(
        WHOLE.but(places=places, start=start, dtype=dtype)
        for places, start in (
            (Places.COUNTED, 20),
            (Places.PADDED, 4),
            (Places.RESTARTED, 5),
            (Places.RESTARTED, 0),
            (Places.SCATTERED, 9),
        )
        for dtype in (torch.float64, F32)
    ),
    explore=cases,
)
def law_tokens_are_turned_by_their_own_positions(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-16: a token is turned by its own position, wherever it lies in its sequence and batch."""
    subject.judge_case(case, "a token is turned by another position than its own")


@law(
    "ROT-17",
    pinned=(WHOLE, WHOLE.but(dtype=F32, start=13), WHOLE.but(dtype=BF16, places=Places.PADDED)),
    explore=lambda subject: cases(subject, length=5, scaling=None),
    cost=6.0,
)
def law_tokens_of_later_calls_are_turned_as_in_one_call(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-17: keys that are turned as they enter a cache are those of one call."""
    x, positions = case.draw(), case.positions()
    whole, expected = subject.call(x, positions, case), subject.expect(x, positions, case)
    prompt = max(case.length - 3, 1)
    ends = [0, prompt, *range(prompt + 1, case.length + 1)]
    for start, end in itertools.pairwise(ends):
        part = slice(start, end)
        got = subject.judge(
            x[:, :, part],
            positions[:, part],
            case.but(length=end - start),
            "tokens behind a cache are turned by wrong positions",
        )
        check_close(
            got,
            whole[:, :, part].double(),
            2 * expected.bound[:, :, part],
            what="out of a part of the tokens",
            message="tokens behind a cache are turned otherwise than in one call",
            axes=AXES,
        )


@law("ROT-18", pinned=PINNED[3:8], explore=wide_cases, cost=2.0)
def law_x_is_read_by_its_strides_and_stays_as_it_is(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-18: x may lie between other numbers and in another order of axes, and stays."""
    drawn, positions = case.draw(), case.positions()
    gaps = torch.full((*drawn.transpose(1, 2).shape[:-1], 3 * case.d_head), 7.0, dtype=case.dtype)
    strided = gaps[..., case.d_head : 2 * case.d_head].transpose(1, 2)
    strided.copy_(drawn)
    before = gaps.clone(), positions.clone()
    subject.judge(strided, positions, case, "x is not read by its strides")
    for name, now, then in zip(("x", "positions"), (gaps, positions), before, strict=True):
        check_equal(
            now,
            then,
            what=name,
            message=f"the call writes into the memory around {name}",
            axes=("batch", "token", "head", "channel"),
        )


def _all(subject: RotarySubject) -> st.SearchStrategy[RotaryCase]:
    return cases(subject, dtype=subject.widest, length=9)


@law(
    "ROT-19",
    pinned=(
        WHOLE.but(start=3),
        WHOLE.but(places=Places.PADDED, dtype=F32),
        RotaryCase(
            length=9,
            d_head=8,
            scaling=next(each for each in SCALINGS if each.kind is ScalingKind.DYNAMIC),
        ),
        RotaryCase(
            length=9,
            d_head=8,
            start=20,
            scaling=next(each for each in SCALINGS if each.kind is ScalingKind.DYNAMIC),
        ),
    ),
    explore=_all,
    cost=3.0,
)
def law_an_earlier_call_changes_no_later_rotation(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-19: a call gives its own result after calls of other positions and longer ones."""
    x, positions = case.draw(), case.positions()
    for earlier in (positions + 50, positions.flip(1) + 2):
        subject.call(x, earlier, case)
    subject.judge(x, positions, case, "an earlier call changes the result of a later one")
