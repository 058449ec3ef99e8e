"""Laws of PAG: lengths and tables that do not fit are refused, if that is claimed."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.operators.paged.invalid import invalid_tables
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.spec.packed import CAUSAL

WRONG = (
    PagedCase(queries=(1, 1), keys=(5, 7)),
    PagedCase(queries=(2, 1, 3), keys=(9, 4, 6), dtype=torch.float32, window=CAUSAL),
)


@law("PAG-17", pinned=WRONG, needs={"validates"}, cost=4.0)
def law_tables_that_do_not_fit_are_refused(subject: PagedSubject, case: PagedCase) -> None:
    """PAG-17: lengths and tables that do not fit raise, in a process of their own, unwritten."""
    case = subject.expressible(case)
    appends = (False, True) if "append" in subject.implementation.features else (False,)
    for append in appends:
        call = case.but(append=append).draw(subject.profile)
        subject.judge(call, "a call whose lengths fit is wrong")
        for problem, wrong in invalid_tables(call, subject.profile.index_type).items():
            subject.judge_refused(wrong, problem)
