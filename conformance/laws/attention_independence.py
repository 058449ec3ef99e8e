"""Laws of ATT, last part: batch elements and heads do not know of each other."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close, check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, drawn, evident
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Mask, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
TINIEST = Case(batch=2, heads=2, kv_heads=2, queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
GROUPED = Case(batch=3, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(batch=2, heads=2, kv_heads=2, queries=17, keys=65, d_head=64, d_value=64, dtype=F32)
HIDDEN = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
PINNED = (
    TINIEST,
    *every(SMALL, dtype=(F32, F64, F16, BF16)),
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
    judges=Judged.ATTENTION,
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=lambda case: case.batch > 1),
    cost=3,
)
def law_batch_elements_are_independent(subject: Subject, case: Case) -> None:
    """ATT-19: a batch element's output does not depend on the others, nor on their number."""
    call = subject.draw(case)
    kept = case.seed % case.batch
    others = torch.arange(case.batch, device=call.query.device) != kept
    out = subject.call(call)
    expected = subject.judge(call, out, "wrong in a batch")
    evident(call, expected)
    tried = [(_replaced(case, call, others, others, dim=0, nan=nan), kept) for nan in (False, True)]
    if subject.refuses(case.but(batch=1)) is None:
        tried.append((_alone(call, kept), 0))
    for each, where in tried:
        again = subject.call(each)[where]
        check_close(
            again,
            expected.out[kept],
            expected.bound[kept],
            what="out",
            message="a batch element depends on the others",
            dtype=case.dtype,
            may_be_nan=None if expected.may_be_nan is None else expected.may_be_nan[kept],
        )
        if subject.implementation.profile.batch_invariant:
            check_equal(
                again, out[kept], what="out", message="the bits depend on the rest of the batch"
            )


@law(
    "ATT-20",
    judges=Judged.ATTENTION,
    pinned=PINNED,
    explore=cases(scales=POSITIVE, only=lambda case: case.heads > 1),
    cost=3,
)
def law_heads_are_independent(subject: Subject, case: Case) -> None:
    """ATT-20: a head's output does not depend on other queries' heads or other groups' keys."""
    call = subject.draw(case)
    kept = case.seed % case.heads
    heads = torch.arange(case.heads, device=call.query.device) != kept
    group = kept // (case.heads // case.kv_heads)
    groups = torch.arange(case.kv_heads, device=call.query.device) != group
    expected = subject.judge(call, subject.call(call), "wrong with several heads")
    evident(call, expected)
    for nan in (False, True):
        again = subject.call(_replaced(case, call, heads, groups, dim=1, nan=nan))
        check_close(
            again[:, kept],
            expected.out[:, kept],
            expected.bound[:, kept],
            what="out",
            message="a head depends on the others",
            dtype=case.dtype,
            may_be_nan=None if expected.may_be_nan is None else expected.may_be_nan[:, kept],
        )


def _replaced(
    case: Case, call: Call, queries: torch.Tensor, keys: torch.Tensor, *, dim: int, nan: bool
) -> Call:
    """The call with other contents, or NaN, where `queries` and `keys` are true along `dim`."""

    def replace(name: str, tensor: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        fresh = (
            torch.full_like(tensor, torch.nan) if nan else 8 * drawn(case, f"other {name}", tensor)
        )
        return torch.where(where.view(-1, *[1] * (3 - dim)), fresh, tensor)

    return call.but(
        query=replace("query", call.query, queries),
        key=replace("key", call.key, keys),
        value=replace("value", call.value, keys),
    )


def _alone(call: Call, kept: int) -> Call:
    """The call of one batch element, as a batch of one."""
    one = slice(kept, kept + 1)
    mask = call.attn_mask
    if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
        mask = mask[one]
    return call.but(query=call.query[one], key=call.key[one], value=call.value[one], attn_mask=mask)
