"""A law of SEQ: outputs of parts of the keys are rounded as often as the profile says."""

import torch

from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.packed.subject import PackedSubject

F16, BF16 = torch.float16, torch.bfloat16
RISING = tuple(
    PackedCase(queries=queries, keys=keys, d_head=8, dtype=dtype)
    for queries, keys in (((1,), (600,)), ((1, 2), (257, 1024)), ((1, 2), (40, 2048)))
    for dtype in (BF16, F16)
)


@law("SEQ-22", pinned=RISING, cost=2.0)
def law_outputs_of_parts_are_rounded_as_often_as_declared(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-22: the mean of values that rise by little from part to part is within the bound."""
    call = subject.expressible(case).draw(subject.profile)
    values = [rising(keys, call.value) for keys in case.keys]
    call = call.but(query=torch.zeros_like(call.query), value=torch.cat(values))
    subject.judge(call, "outputs of parts of the keys are rounded more often than declared")


def rising(keys: int, like: torch.Tensor) -> torch.Tensor:
    """Return values (keys, heads, channels) that rise from 1 on, in each channel twice as steeply.

    A running mean that is rounded after each part stays where it is, as soon as what a part adds is
    less than half a unit in the last place.

    Args:
        keys: the number of keys.
        like: has the heads, channels and type.
    """
    rise = torch.finfo(like.dtype).eps * 2.0 ** torch.arange(like.shape[-1], dtype=torch.float64)
    share = torch.arange(keys, dtype=torch.float64) / max(keys - 1, 1)
    rows = 1 + share[:, None, None] * rise.clamp(max=1.0)
    return rows.expand(keys, *like.shape[1:]).to(like.dtype)
