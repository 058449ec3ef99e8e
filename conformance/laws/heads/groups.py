"""Laws of HED: heads are separate attentions, and a group shares one key/value head."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject, checked_output
from attnspec.conformance.attention.values import generator
from attnspec.conformance.laws.helpers.calls import (
    check_equal_calls,
    check_target,
    plain,
    readable,
    repeat_kv,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F16, F32, F64, SMALL
from attnspec.conformance.laws.helpers.rows import check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Grouping, Mask, MaskPattern, MaskShape, Values

TINIEST = Case(heads=2, kv_heads=2, queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
TILES = SMALL.but(queries=65, keys=63, d_head=64, d_value=64)
PER_HEAD = Mask(shape=MaskShape.HEADS)
GROUPED = Case(batch=2, heads=4, kv_heads=2, queries=3, keys=5, d_head=8, d_value=8, dtype=F32)
GROUPS = (
    GROUPED.but(batch=1, queries=2, keys=2, d_head=2, d_value=2),
    *vary(GROUPED, dtype=(F64, F16, BF16)),
    GROUPED.but(heads=3, kv_heads=1),
    GROUPED.but(batch=3, heads=6, kv_heads=3),
    GROUPED.but(batch=1, heads=6, kv_heads=2),
    GROUPED.but(heads=12, kv_heads=4, dtype=F16),
    GROUPED.but(heads=7, kv_heads=1, queries=1, keys=17),
    GROUPED.but(heads=24, kv_heads=4, queries=1, keys=16, dtype=BF16),
    GROUPED.but(heads=6, kv_heads=2, mask=PER_HEAD),
    GROUPED.but(heads=6, kv_heads=2, mask=Mask(shape=MaskShape.BATCH)),
    GROUPED.but(heads=6, kv_heads=2, is_causal=True, queries=5),
    GROUPED.but(heads=6, kv_heads=2, queries=65, keys=63, d_head=16, d_value=16),
    GROUPED.but(heads=6, kv_heads=2, d_value=3),
)


@law(
    "HED-1",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(d_value=5),
        SMALL.but(queries=5, keys=5, is_causal=True),
        SMALL.but(heads=12, kv_heads=12, batch=1, d_head=5, d_value=5),
        TILES,
        TILES.but(queries=17, keys=129, values=Values.PEAKED, dtype=BF16),
    ),
    explore=cases(
        masked=False, grouped=False, scales=POSITIVE, only=lambda c: c.heads > 1 and plain(c)
    ),
    cost=4,
)
def law_heads_equal_separate_attentions(subject: Subject, case: Case) -> None:
    """HED-1: channels cut into heads give, head by head, what each run of channels gives alone."""
    call = subject.draw(case)
    packed = {
        name: getattr(call, name).transpose(1, 2).flatten(2).contiguous()
        for name in ("query", "key", "value")
    }
    split = {
        name: tensor.unflatten(2, (case.heads, -1)).transpose(1, 2)
        for name, tensor in packed.items()
    }
    together = call.but(**split)
    expected = subject.expect(together)
    alone = []
    for h in range(case.heads):
        runs = {}
        for name, tensor in packed.items():
            width = tensor.shape[2] // case.heads
            runs[name] = tensor[:, None, :, h * width : (h + 1) * width].contiguous()
        alone.append(subject.expect(call.but(**runs), with_bound=False).out)
    out = subject.call(together)
    rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
    message = "a head does not give what its run of channels gives alone"
    check_rows(together, out, torch.cat(alone, dim=1), expected, rows, message)
    require_evidence(together, expected)


@law(
    "HED-2",
    pinned=GROUPS,
    explore=cases(grouped=True, scales=POSITIVE, only=plain),
    cost=2,
)
def law_shared_heads_equal_repeated_heads(subject: Subject, case: Case) -> None:
    """HED-2: grouped heads give what repeating each key/value head for its group gives."""
    call = subject.draw(case)
    repeated = call.but(
        key=repeat_kv(subject, call.key, case.heads),
        value=repeat_kv(subject, call.value, case.heads),
    )
    expected = subject.expect(repeated)
    message = "a query head does not read the key/value head of its group"
    check_oracle(call, subject.call(call), expected, message)
    require_evidence(call, expected)


@law(
    "HED-2",
    pinned=GROUPS,
    explore=cases(grouped=True, scales=POSITIVE, only=plain),
    cost=2,
)
def law_a_head_reads_its_own_group(subject: Subject, case: Case) -> None:
    """HED-2: query head h reads the declared key/value head, seen in values that name their head.

    It is h // group if groups are consecutive, and h % kv_heads if they are interleaved.
    """
    call = subject.draw(case)
    group = case.heads // case.kv_heads
    is_interleaved = subject.implementation.profile.grouping is Grouping.INTERLEAVED
    name = 1.0 + torch.arange(case.kv_heads, device=call.value.device)
    named = name.to(call.value.dtype)[:, None, None].expand_as(call.value).contiguous()
    head = torch.arange(case.heads, device=name.device)
    read = head % case.kv_heads if is_interleaved else head // group
    target = (1.0 + read).double()[:, None, None].expand(*call.query.shape[:-1], case.d_value)
    rows = readable(subject, call).any(-1, keepdim=True)
    message = "a query head reads a key/value head of another group"
    named_call = call.but(value=named)
    check_target(subject, named_call, torch.where(rows, target, torch.nan), message)


@law(
    "HED-2",
    pinned=(GROUPS[0], GROUPED, GROUPED.but(heads=6, kv_heads=2, is_causal=True, queries=5)),
    cost=2,
)
def law_groups_that_are_permitted_need_not_be_used(subject: Subject, case: Case) -> None:
    """HED-2: with `enable_gqa` and as many key/value heads as query heads, each reads its own.

    A call with groups comes before, whose sizes must not be those of the next.
    """
    grouped = subject.draw(case)
    message = "a query head does not read the key/value head of its group"
    check_oracle(grouped, subject.call(grouped), subject.expect(grouped), message)
    call = subject.draw(case.but(kv_heads=case.heads))
    expected = subject.expect(call)
    out = checked_output(subject.run(call, enable_gqa=True), call)
    message = "a query head does not read its own key/value head if enable_gqa is true"
    check_oracle(call, out, expected, message)
    require_evidence(call, expected)


@law(
    "HED-3",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(mask=PER_HEAD),
        SMALL.but(queries=7, keys=5, is_causal=True, mask=None),
        SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)),
        *GROUPS[4:9],
        TILES.but(keys=65, queries=17),
    ),
    explore=cases(scales=POSITIVE, only=lambda case: case.heads > 1 and plain(case)),
    cost=3,
)
def law_permuting_heads_permutes_the_output(subject: Subject, case: Case) -> None:
    """HED-3: heads in another order give the same outputs in that order."""
    call = subject.draw(case)
    group = case.heads // case.kv_heads
    groups = torch.randperm(case.kv_heads, generator=generator(case.seed, "order of groups"))
    within = torch.randperm(group, generator=generator(case.seed, "order in a group"))
    heads = (groups[:, None] * group + within).flatten().to(call.query.device)
    if subject.implementation.profile.grouping is Grouping.INTERLEAVED:
        heads = (within[:, None] * case.kv_heads + groups).flatten().to(heads.device)
    groups = groups.to(heads.device)
    permuted = with_reordered_heads(call, heads, groups)
    message = "heads in another order do not give their own outputs"
    inverse = heads.argsort()
    check_equal_calls(subject, call, permuted, message, undo=lambda out: out[:, inverse])


def with_reordered_heads(call: Call, heads: torch.Tensor, groups: torch.Tensor) -> Call:
    """Return the call with its query heads and key/value heads in another order."""
    mask = call.attn_mask
    if mask is not None and mask.dim() >= 3 and mask.shape[-3] > 1:
        mask = mask.index_select(-3, heads)
    return call.but(
        query=call.query[:, heads],
        key=call.key[:, groups],
        value=call.value[:, groups],
        attn_mask=mask,
    )
