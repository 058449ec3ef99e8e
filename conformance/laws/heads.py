"""Laws of HED: heads are separate attentions, and a group of them shares one key/value head."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_sides,
    check_target,
    evident,
    per_head,
    plain,
    readable,
)
from attnspec.conformance.laws.masking_sides import check_oracle, check_rows
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.values import generator
from attnspec.spec import Case, Feature, Mask, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(heads=2, kv_heads=2, queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
TILES = SMALL.but(queries=65, keys=63, d_head=64, d_value=64)
PER_HEAD = Mask(shape=MaskShape.HEADS)
GROUPED = Case(batch=2, heads=4, kv_heads=2, queries=3, keys=5, d_head=8, d_value=8, dtype=F32)
GROUPS = (
    GROUPED.but(batch=1, queries=2, keys=2, d_head=2, d_value=2),
    *every(GROUPED, dtype=(F64, F16, BF16)),
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
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
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
def law_split_heads_are_separate_heads(subject: Subject, case: Case) -> None:
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
    evident(together, expected)


@law(
    "HED-2",
    judges=Judged.ATTENTION,
    pinned=GROUPS,
    explore=cases(grouped=True, scales=POSITIVE, only=plain),
    needs={Feature.GQA},
    cost=2,
)
def law_shared_heads_equal_repeated_heads(subject: Subject, case: Case) -> None:
    """HED-2: grouped heads give what repeating each key/value head for its group gives."""
    call = subject.draw(case)
    repeated = call.but(key=per_head(call.key, case.heads), value=per_head(call.value, case.heads))
    expected = subject.expect(repeated)
    message = "shared key/value heads are not those of the query head's group"
    check_oracle(call, subject.call(call), expected, message)
    evident(call, expected)


@law(
    "HED-2",
    judges=Judged.ATTENTION,
    pinned=GROUPS,
    explore=cases(grouped=True, scales=POSITIVE, only=plain),
    needs={Feature.GQA},
    cost=2,
)
def law_a_head_reads_its_own_group(subject: Subject, case: Case) -> None:
    """HED-2: query head h reads key/value head h // group, seen in values that name their head."""
    call = subject.draw(case)
    group = case.heads // case.kv_heads
    name = 1.0 + torch.arange(case.kv_heads, device=call.value.device)
    named = name.to(call.value.dtype)[:, None, None].expand_as(call.value).contiguous()
    head = torch.arange(case.heads, device=name.device)
    target = (
        (1.0 + head // group).double()[:, None, None].expand(*call.query.shape[:-1], case.d_value)
    )
    rows = readable(subject, call).any(-1, keepdim=True)
    message = "a query head reads a key/value head of another group"
    named_call = call.but(value=named)
    check_target(subject, named_call, torch.where(rows, target, torch.nan), message)


@law(
    "HED-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
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
    groups = groups.to(heads.device)
    permuted = _reordered(call, heads, groups)
    message = "heads in another order do not give their own outputs"
    back = heads.argsort()
    check_sides(subject, call, permuted, message, back=lambda out: out[:, back])


def _reordered(call: Call, heads: torch.Tensor, groups: torch.Tensor) -> Call:
    """The call with its query heads and its key/value heads in another order."""
    mask = call.attn_mask
    if mask is not None and mask.dim() >= 3 and mask.shape[-3] > 1:
        mask = mask.index_select(-3, heads)
    return call.but(
        query=call.query[:, heads],
        key=call.key[:, groups],
        value=call.value[:, groups],
        attn_mask=mask,
    )
