"""Laws of ROT: pairs of channels, turned by position times frequency."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.rotary.bounds import Turned, join, split
from attnspec.conformance.operators.rotary.case import Places, RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import AXES, RotarySubject
from attnspec.spec.rotary import ScalingKind

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
PINNED = (
    RotaryCase(length=2, d_head=2),
    RotaryCase(),
    RotaryCase(dtype=F32, start=5),
    RotaryCase(batch=2, heads=2, length=5, d_head=8, places=Places.SCATTERED, seed=1),
    RotaryCase(batch=2, heads=2, length=5, d_head=8, places=Places.RESTARTED, start=3, dtype=F32),
    *(
        RotaryCase(heads=2, length=9, d_head=16, start=300, dtype=dtype, seed=2)
        for dtype in (F64, F32, BF16, F16)
    ),
    RotaryCase(length=5, d_head=128, start=1000, dtype=F32, seed=3),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def wide_cases(subject: RotarySubject, **fixed: object) -> st.SearchStrategy[RotaryCase]:
    """Return a strategy that draws cases in the widest claimed type."""
    return cases(subject, dtype=subject.widest, **fixed)


@law("ROT-1", pinned=PINNED, explore=cases)
def law_rotary_equals_the_definition(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-1: each pair is turned by its position times its frequency, from the first channel."""
    subject.judge_case(case, "a rotation differs from position times frequency")


@law("ROT-2", pinned=PINNED, explore=cases)
def law_position_zero_changes_nothing(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-2: a token at position 0 is not turned, bit for bit without a factor of its cosine."""
    x, positions = case.draw(), torch.zeros_like(case.positions())
    got, expected = subject.call(x, positions, case), subject.expect(x, positions, case)
    computed = subject.profile.float64_precision.computed_in(x.dtype)
    has_no_factor = case.scaling is None or case.scaling.magnitude == 1
    is_exact = has_no_factor and computed is x.dtype
    with subject.explaining(x, positions, case, got):
        check_close(
            got,
            expected.value,
            torch.zeros_like(expected.bound) if is_exact else expected.bound,
            what="out",
            message="a token at position 0 is turned",
            axes=AXES,
        )


@law("ROT-3", pinned=PINNED, explore=cases)
def law_lengths_of_pairs_are_kept(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-3: the length of each pair is that before, times the factor of cosine and sine."""
    x, positions = case.draw(), case.positions()
    got, expected = subject.call(x, positions, case), subject.expect(x, positions, case)
    factor = 1.0 if case.scaling is None else case.scaling.magnitude
    bound = _lengths(expected.bound, case, subject)
    with subject.explaining(x, positions, case, got):
        check_close(
            _lengths(got.double(), case, subject),
            abs(factor) * _lengths(x.double(), case, subject),
            bound + 2.0**-50 * _lengths(expected.value, case, subject),
            what="length of a pair",
            message="the length of a pair is not kept",
            axes=(*AXES[:-1], "pair"),
        )


def _lengths(x: torch.Tensor, case: RotaryCase, subject: RotarySubject) -> torch.Tensor:
    a, b = split(x, case.turned, subject.profile.pairing)
    return torch.hypot(a, b)


@law("ROT-4", pinned=WIDE, explore=wide_cases, cost=4.0)
def law_scores_depend_on_distances_only(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-4: queries and keys that all move on by as many positions have the same scores."""
    if case.scaling is not None and case.scaling.kind is ScalingKind.DYNAMIC:
        raise NotClaimed("dynamic has other frequencies in a longer call")
    query, key = case.draw(), case.but(seed=case.seed + 1).draw()
    here = case.positions()
    scores, bounds = [], []
    for positions in (here, here + 7):
        parts = [
            (subject.call(x, positions, case), subject.expect(x, positions, case))
            for x in (query, key)
        ]
        (q, of_query), (k, of_key) = parts
        scores.append(q.double() @ k.double().mT)
        bounds.append(_of_scores(of_query, of_key))
    with subject.explaining(query, here + 7, case, subject.call(query, here + 7, case)):
        check_close(
            scores[1],
            scores[0],
            bounds[0] + bounds[1],
            what="scores 7 positions on",
            message="scores depend on more than the distance of the positions",
            axes=("batch", "head", "query", "key"),
        )


def _of_scores(query: Turned, key: Turned) -> torch.Tensor:
    """Return the largest error of inner products, whose own rounding in float64 is the last."""
    q, k = query.value.abs() + query.bound, key.value.abs() + key.bound
    channels = query.value.shape[-1]
    carried = query.bound @ k.mT + q @ key.bound.mT
    return carried + (channels + 1) * 2.0**-52 * (q @ k.mT)


@law("ROT-5", pinned=WIDE, explore=wide_cases, cost=3.0)
def law_turns_add(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-5: turned by one position and then by another, a token is turned by their sum."""
    if case.scaling is not None:
        raise NotClaimed("a factor of cosine and sine counts twice")
    x, first = case.draw(), case.positions()
    second = first.flip(1) + 11
    once = subject.call(x, first, case)
    got, allowed = subject.call(once, second, case), subject.expect(once, second, case)
    both, of_first = subject.expect(x, first + second, case), subject.expect(x, first, case)
    # the error of a pair is turned, so that each channel errs by its length at most
    pairing = subject.profile.pairing
    error = torch.hypot(*split(of_first.bound, case.turned, pairing))
    kept = torch.zeros_like(x[..., case.turned :], dtype=torch.float64)
    carried = torch.cat([join(error, error, pairing), kept], -1)
    with subject.explaining(once, second, case, got):
        check_close(
            got,
            both.value,
            both.bound + allowed.bound + carried,
            what="out of two turns",
            message="two turns differ from one turn by the sum of the positions",
            axes=AXES,
        )


@law("ROT-6", pinned=tuple(case.but(length=2, start=1) for case in WIDE[1:5]), explore=wide_cases)
def law_pairs_are_the_declared_ones(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-6: a channel is turned into the other of its pair, the second into minus the first."""
    single = case.but(batch=1, heads=case.d_head)
    x = torch.eye(case.d_head, dtype=case.dtype)[None, :, None].repeat(1, 1, case.length, 1)
    positions = single.positions()
    subject.judge(x, positions, single, "a channel is not turned into the other one of its pair")


PARTIAL = tuple(
    RotaryCase(heads=2, length=5, d_head=d_head, rotary_dim=width, start=30, dtype=dtype, seed=4)
    for d_head, width, dtype in ((8, 2, F64), (8, 4, F32), (16, 8, BF16), (80, 32, F32))
)


@law(
    "ROT-7",
    pinned=PARTIAL,
    explore=lambda subject: cases(subject, d_head=80, rotary_dim=20),
    needs={"partial"},
)
def law_channels_beyond_the_turned_ones_are_kept(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-7: the first channels are turned by frequencies of their number, the others are kept."""
    subject.judge_case(case, "channels beyond the turned ones are changed")


@law(
    "ROT-8",
    pinned=tuple(
        case.but(base=base, length=9, start=40)
        for case, base in zip(WIDE[1:5], (500.0, 1e6, 5e5, 2.0), strict=True)
    ),
    explore=lambda subject: cases(subject, base=500_000.0, scaling=None),
    needs={"base"},
)
def law_the_base_is_the_given_one(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-8: frequencies are powers of the base that the call gives."""
    subject.judge_case(case, "frequencies are not powers of the given base")
