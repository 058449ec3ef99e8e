"""Laws of SEQ: lengths that do not fit are refused, if that is claimed."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.packed.invalid import invalid_packs
from attnspec.conformance.operators.packed.subject import PackedSubject
from attnspec.spec.packed import CAUSAL

WRONG = (
    PackedCase(queries=(2, 3), keys=(2, 3)),
    PackedCase(queries=(1, 2, 4), keys=(3, 5, 4), heads=2, kv_heads=2, dtype=torch.float32),
    PackedCase(queries=(1, 1), keys=(6, 9), window=CAUSAL, dtype=torch.float32),
)


@law("SEQ-19", pinned=WRONG, needs={"validates"}, cost=4.0)
def law_lengths_that_do_not_fit_are_refused(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-19: offsets and maxima that do not fit raise, each call in a process of its own."""
    call = subject.expressible(case).draw(subject.profile)
    subject.judge(call, "a call whose lengths fit is wrong")
    for problem, wrong in invalid_packs(call, subject.profile.index_type).items():
        subject.judge_refused(wrong, problem)
