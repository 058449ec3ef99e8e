"""A law of PAG: every class of calls, and every two of them together."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.paged import regimes
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.conformance.operators.regimes import note_call


@law("PAG-18", pinned=regimes.PINNED, wide=regimes.cases, cost=3.0)
def law_paged_attention_is_right_in_every_two_regimes(
    subject: PagedSubject, case: PagedCase
) -> None:
    """PAG-18: in any two classes of phases, lengths, heads, windows and types, it is right."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "a call of such lengths, heads, options or type is wrong")
    rows = subject.expect(call)
    exact, bound = (torch.cat([getattr(each, name) for each in rows]) for name in ("out", "bound"))
    note_call(regimes.call_without_memory(case), exact, bound, regimes.AXES)
