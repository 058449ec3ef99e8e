"""A law of PAG: outputs of parts of the keys are rounded as often as the profile says."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.packed.parts import rising
from attnspec.conformance.operators.paged.case import PagedCase
from attnspec.conformance.operators.paged.subject import PagedSubject

F16, BF16 = torch.float16, torch.bfloat16
RISING = tuple(
    PagedCase(queries=(1, 1), keys=keys, d_head=8, page_size=size, dtype=dtype)
    for keys, size in (((40, 64), 4), ((257, 2048), 16), ((257, 2048), 64))
    for dtype in (BF16, F16)
)


@law("PAG-20", pinned=RISING, cost=2.0)
def law_outputs_of_pages_are_rounded_as_often_as_declared(
    subject: PagedSubject, case: PagedCase
) -> None:
    """PAG-20: the mean of values that rise by little from page to page is within the bound."""
    call = subject.expressible(case).draw(subject.profile)
    value = call.value.clone()
    for b, keys in enumerate(case.keys):
        value[call.slots(b, 0, keys)] = rising(keys, value[0])
    call = call.but(query=torch.zeros_like(call.query), value=value)
    subject.judge(call, "outputs of parts of the keys are rounded more often than declared")
