"""A law of SEQ: every class of calls, and every two of them together."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.packed import regimes
from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.packed.subject import PackedSubject
from attnspec.conformance.operators.regimes import note_call


@law("SEQ-20", pinned=regimes.PINNED, wide=regimes.cases, cost=3.0)
def law_packed_attention_is_right_in_every_two_regimes(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-20: in any two classes of phases, lengths, heads, windows and types, it is right."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "a call of such lengths, heads, options or type is wrong")
    if case.backward:
        subject.judge_gradients(call, case.draw_gradient(), "a gradient of such a call is wrong")
    rows = subject.expect(call)
    exact, bound = (torch.cat([getattr(each, name) for each in rows]) for name in ("out", "bound"))
    note_call(regimes.call_without_memory(case), exact, bound, regimes.AXES)
