"""Laws of ATT: batch elements and heads are independent of each other."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close, check_equal
from attnspec.conformance.laws.helpers.calls import kv_head_of, normal_like, require_evidence
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F32, HIDDEN, SMALL
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

TINIEST = Case(batch=2, heads=2, kv_heads=2, queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
GROUPED = Case(batch=3, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(batch=2, heads=2, kv_heads=2, queries=17, keys=65, d_head=64, d_value=64, dtype=F32)
PINNED = (
    TINIEST,
    *vary(SMALL, dtype=DTYPES),
    SMALL.but(seed=1),
    SMALL.but(mask=HIDDEN),
    SMALL.but(queries=7, keys=5, is_causal=True),
    GROUPED,
    GROUPED.but(kv_heads=1, seed=1),
    GROUPED.but(batch=2, seed=3, dtype=BF16),
    TILES.but(values=Values.PEAKED),
)


@law(
    "ATT-19",
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=lambda case: case.batch > 1),
    cost=3,
)
def law_batch_elements_are_independent(subject: Subject, case: Case) -> None:
    """ATT-19: a batch element's output does not depend on the others, nor on their number."""
    call = subject.draw(case)
    element = case.seed % case.batch
    others = torch.arange(case.batch, device=call.query.device) != element
    out = subject.call(call)
    expected = subject.judge(call, out, "the output is wrong in a batch")
    require_evidence(call, expected)
    changes = [
        (_with_other_contents(case, call, others, others, dim=0, nan=nan), element)
        for nan in (False, True)
    ]
    if subject.refuses(case.but(batch=1)) is None:
        changes.append((_batch_element(call, element), 0))
    for changed, index in changes:
        again = subject.call(changed)[index]
        check_close(
            again,
            expected.out[element],
            expected.bound[element],
            what="out",
            message="a batch element depends on the others",
            dtype=case.dtype,
            may_be_nan=None if expected.may_be_nan is None else expected.may_be_nan[element],
        )
        if subject.implementation.profile.batch_invariant:
            check_equal(
                again, out[element], what="out", message="the bits depend on the rest of the batch"
            )


@law(
    "ATT-20",
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=lambda case: case.heads > 1),
    cost=3,
)
def law_heads_are_independent(subject: Subject, case: Case) -> None:
    """ATT-20: a head does not depend on the queries of other heads or the keys of other groups."""
    call = subject.draw(case)
    head = case.seed % case.heads
    heads = torch.arange(case.heads, device=call.query.device) != head
    group = int(kv_head_of(subject, call)[head])
    groups = torch.arange(case.kv_heads, device=call.query.device) != group
    expected = subject.judge(call, subject.call(call), "the output is wrong with several heads")
    require_evidence(call, expected)
    for nan in (False, True):
        again = subject.call(_with_other_contents(case, call, heads, groups, dim=1, nan=nan))
        check_close(
            again[:, head],
            expected.out[:, head],
            expected.bound[:, head],
            what="out",
            message="a head depends on the others",
            dtype=case.dtype,
            may_be_nan=None if expected.may_be_nan is None else expected.may_be_nan[:, head],
        )


def _with_other_contents(
    case: Case, call: Call, queries: torch.Tensor, keys: torch.Tensor, *, dim: int, nan: bool
) -> Call:
    """Return the call with other contents, or NaN, at true `queries` and `keys` along `dim`."""

    def replace(name: str, tensor: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        fresh = (
            torch.full_like(tensor, torch.nan)
            if nan
            else 8 * normal_like(case, f"other {name}", tensor)
        )
        return torch.where(where.view(-1, *[1] * (3 - dim)), fresh, tensor)

    return call.but(
        query=replace("query", call.query, queries),
        key=replace("key", call.key, keys),
        value=replace("value", call.value, keys),
    )


def _batch_element(call: Call, element: int) -> Call:
    """Return the call of one batch element, as a batch of one."""
    only = slice(element, element + 1)
    mask = call.attn_mask
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
        mask = mask[only]
    return call.but(
        query=call.query[only], key=call.key[only], value=call.value[only], attn_mask=mask
    )
