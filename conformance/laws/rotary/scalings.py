"""Laws of ROT: frequencies for texts longer than those of training."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.rotary.case import SCALINGS, Places, RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.spec.rotary import RotaryScaling, ScalingKind

F32, BF16 = torch.float32, torch.bfloat16


def _pinned(kind: ScalingKind, *, start: int = 100) -> tuple[RotaryCase, ...]:
    plain = RotaryCase(heads=2, length=9, d_head=16, start=start, seed=1)
    scaled = [plain.but(scaling=each) for each in SCALINGS if each.kind is kind]
    narrow = [scaled[0].but(dtype=dtype, d_head=64) for dtype in (F32, BF16)]
    return (*scaled, *narrow)


def _of(kind: ScalingKind) -> list[RotaryScaling]:
    return [each for each in SCALINGS if each.kind is kind]


@law(
    "ROT-9",
    pinned=_pinned(ScalingKind.LINEAR),
    explore=lambda subject: cases(
        subject, scaling=_of(ScalingKind.LINEAR)[1], d_head=16, rotary_dim=None
    ),
    needs={"linear"},
)
def law_linear_scaling_divides_every_frequency(subject: RotarySubject, case: RotaryCase) -> None:
    """ROT-9: with `linear`, a frequency is divided by the factor, as if positions lay closer."""
    subject.judge_case(case, "frequencies are not divided by the factor of linear")


DYNAMIC = _of(ScalingKind.DYNAMIC)[0]


@law(
    "ROT-10",
    pinned=(
        *_pinned(ScalingKind.DYNAMIC),
        RotaryCase(length=4, d_head=16, scaling=DYNAMIC, seed=2),
        RotaryCase(length=16, d_head=16, scaling=DYNAMIC, seed=2),
        RotaryCase(length=17, d_head=16, scaling=DYNAMIC, seed=2),
        RotaryCase(length=3, d_head=16, scaling=DYNAMIC, start=60, places=Places.RESTARTED),
    ),
    explore=lambda subject: cases(subject, scaling=DYNAMIC, d_head=20, rotary_dim=None),
    needs={"dynamic"},
)
def law_dynamic_scaling_follows_the_length_of_the_call(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-10: with `dynamic`, the base grows with the largest position of the call."""
    subject.judge_case(case, "the base does not follow the length of the call")


@law(
    "ROT-11",
    pinned=_pinned(ScalingKind.YARN),
    explore=lambda subject: cases(
        subject, scaling=_of(ScalingKind.YARN)[0], d_head=64, rotary_dim=None
    ),
    needs={"yarn"},
)
def law_yarn_mixes_frequencies_and_multiplies_cosine_and_sine(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-11: with `yarn`, low frequencies are divided, high ones kept, and results multiplied."""
    subject.judge_case(case, "frequencies or the factor of cosine and sine are not those of yarn")


@law(
    "ROT-12",
    pinned=tuple(
        each.but(base=500_000.0) if not index else each
        for index, each in enumerate(_pinned(ScalingKind.LLAMA3, start=3000))
    ),
    explore=lambda subject: cases(
        subject, scaling=_of(ScalingKind.LLAMA3)[1], d_head=128, rotary_dim=None
    ),
    needs={"llama3"},
)
def law_llama3_scaling_divides_frequencies_with_few_turns(
    subject: RotarySubject, case: RotaryCase
) -> None:
    """ROT-12: with `llama3`, frequencies with few turns in the original length are divided."""
    subject.judge_case(case, "frequencies are not those of llama3")
