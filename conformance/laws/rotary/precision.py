"""Laws of ROT: angles of large positions, and the rounding of results."""

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.rotary.bounds import split
from attnspec.conformance.operators.rotary.case import Places, RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.spec.rotary import Pairing

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
LARGEST = 1_000_000
"""The largest position of a law."""


@law(
    "ROT-13",
    pinned=tuple(
        RotaryCase(length=9, d_head=d_head, start=start, dtype=dtype)
        for dtype in (BF16, F16, F32)
        for start, d_head in ((252, 4), (1020, 8), (4093, 64), (65_532, 16))
    ),
    explore=lambda subject: cases(subject, places=Places.COUNTED, scaling=None, length=9),
)
def law_neighbouring_positions_do_not_merge(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-13: from one position to the next every pair turns on by its frequency."""
    x = torch.zeros(case.batch, case.heads, case.length, case.d_head, dtype=case.dtype)
    first, _ = split(x, case.turned, subject.profile.pairing)
    first.fill_(1)  # a view of x: every pair is (1, 0)
    positions = case.positions()
    got, expected = subject.call(x, positions, case), subject.expect(x, positions, case)
    pairing, width = subject.profile.pairing, case.turned
    error = torch.hypot(*split(expected.bound, width, pairing))
    length = torch.hypot(*split(expected.value, width, pairing)) + error
    before, after = slice(None, -1), slice(1, None)
    bound = error[:, :, after] * length[:, :, before] + error[:, :, before] * length[:, :, after]
    with subject.explaining(x, positions, case, got):
        check_close(
            _steps(got, width, pairing),
            _steps(expected.value, width, pairing),
            torch.cat([bound, bound], -1) + 2.0**-50,
            what="cosine and sine of steps",
            message="a pair does not turn on by its frequency from one position to the next",
            axes=("batch", "head", "step", "pair"),
        )


def _steps(out: torch.Tensor, width: int, pairing: Pairing) -> torch.Tensor:
    """Return cosine and sine of the angle of each pair between neighbouring tokens."""
    a, b = split(out.double(), width, pairing)
    cosine = a[:, :, 1:] * a[:, :, :-1] + b[:, :, 1:] * b[:, :, :-1]
    sine = b[:, :, 1:] * a[:, :, :-1] - a[:, :, 1:] * b[:, :, :-1]
    return torch.cat([cosine, sine], -1)


@law(
    "ROT-14",
    pinned=tuple(
        RotaryCase(length=5, d_head=d_head, start=start - 5, dtype=dtype, seed=3)
        for dtype in (F64, F32)
        for start, d_head in ((10_000, 16), (100_000, 64), (LARGEST, 16), (LARGEST, 128))
    ),
    explore=lambda subject: cases(
        subject, dtype=subject.widest, start=LARGEST - 64, places=Places.SCATTERED
    ),
)
def law_angles_of_large_positions_are_accurate(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-14: up to position 1 000 000, angles have the accuracy of the declared type."""
    subject.judge_case(case, "angles have not the accuracy of the declared type")


@law(
    "ROT-15",
    pinned=tuple(
        RotaryCase(heads=2, length=9, d_head=64, start=start, dtype=dtype, seed=5)
        for dtype in (BF16, F16)
        for start in (0, 50, 1000)
    ),
)
def law_rotations_of_16_bits_are_rounded_as_declared(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-15: operands of 16 bits are rounded once, at the end, or in every step, as declared."""
    if case.dtype.itemsize > 2:
        raise NotClaimed("no type of 16 bits is claimed")
    subject.judge_case(case, "results of 16 bits are rounded more often than declared")
