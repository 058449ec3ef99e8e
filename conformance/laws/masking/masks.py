"""Laws of MSK: masks of every kind, shape and combination hide the keys that they must."""

import itertools

import torch
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator, normal
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers import cases as shared
from attnspec.conformance.laws.helpers.calls import (
    check_target,
    readable,
    repeat_kv,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    F16,
    F64,
    FLAT,
    HIDDEN,
    UNBIASED,
)
from attnspec.conformance.laws.helpers.rows import (
    additive_mask,
    check_changed_key,
    check_equal_call,
    check_readable_keys_have_weight,
    has_causal_flag,
    has_mask,
    with_explicit_mask,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

TINIEST = shared.TINIEST.but(mask=Mask())
SMALL = shared.SMALL.but(mask=HIDDEN)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=65, keys=63, d_head=64, d_value=64)
FLOAT = Mask(kind=MaskKind.FLOAT)
MASKS = (
    *(Mask(shape=shape) for shape in MaskShape),
    *(Mask(pattern=pattern, shape=MaskShape.FULL) for pattern in UNBIASED),
)
BIASES = (
    TINIEST.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
    *vary(
        SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)),
        dtype=DTYPES,
        scale=(0.5, 2.0),
    ),
    *vary(
        SMALL.but(queries=17),
        mask=[
            Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=shape) for shape in MaskShape
        ],
    ),
    # rows of a mask in memory of which vectors are loaded
    SMALL.but(
        keys=67,
        mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.RANK_2),
        layouts=Layouts(mask=Layout.PADDED_TO_EIGHT),
    ),
)


def _masked_causal_cases(subject: Subject) -> SearchStrategy[Case] | None:
    """Draw cases of a mask with the causal flag, unless all of them are refused."""
    if all(subject.refuses(TINIEST.but(is_causal=True, mask=mask)) for mask in MASKS):
        return None
    drawn = cases(masked=True, causal=True, scales=POSITIVE, only=has_mask)(subject)
    return drawn.filter(has_causal_flag)


@law(
    "MSK-3",
    pinned=(
        TINIEST.but(is_causal=True),
        *vary(SMALL.but(is_causal=True), dtype=DTYPES),
        *vary(SMALL.but(is_causal=True, queries=7), mask=MASKS),
        SMALL.but(is_causal=True, mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
        SMALL.but(
            is_causal=True,
            keys=5,
            mask=Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS),
        ),
        GROUPED.but(is_causal=True),
    ),
    wide=(TILES.but(is_causal=True),),
    explore=_masked_causal_cases,
    cost=2,
)
def law_mask_and_causal_flag_both_apply(subject: Subject, case: Case) -> None:
    """MSK-3: with a mask and the causal flag, a key is read only if both allow it."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(with_explicit_mask(subject, call))
    message = "the mask and the causal flag do not both apply"
    check_equal_call(subject, call, out, expected, message)
    require_evidence(call, expected)


@law(
    "MSK-4",
    pinned=(
        TINIEST.but(mask=None, d_head=4, d_value=4),
        TINIEST.but(d_head=4, d_value=4),
        TINIEST.but(mask=None, is_causal=True, d_head=4, d_value=4),
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL.but(mask=None, is_causal=True), dtype=DTYPES),
        *vary(SMALL, mask=MASKS),
        SMALL.but(queries=1, mask=None),
        SMALL.but(mask=None),
        GROUPED.but(d_head=17, d_value=17),
        TILES.but(mask=None, is_causal=True, keys=65, d_head=65, d_value=65),
        TILES.but(queries=17),
    ),
    wide=(
        TILES.but(
            mask=None, is_causal=True, queries=16, keys=128, d_head=128, d_value=128, dtype=BF16
        ),
    ),
    explore=cases(families=FLAT, scales=POSITIVE, only=lambda case: case.keys <= case.d_value),
    cost=2,
)
def law_a_query_reads_exactly_its_keys(subject: Subject, case: Case) -> None:
    """MSK-4: each key that a query may read has weight, and no other key has any."""
    check_readable_keys_have_weight(subject, case)


@law(
    "MSK-4",
    pinned=(
        TINIEST.but(mask=None),
        TINIEST,
        TINIEST.but(mask=None, is_causal=True),
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(mask=None, is_causal=True),
        GROUPED,
        TILES.but(mask=None, is_causal=True, queries=33, keys=65),
    ),
    wide=(SMALL.but(mask=None),),
    explore=cases(families=FLAT, scales=POSITIVE),
    cost=5,
)
def law_a_key_affects_only_queries_that_read_it(subject: Subject, case: Case) -> None:
    """MSK-4: changing a key and its value changes every row that may read them, and no other."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    for key in sorted({0, case.keys // 2, case.keys - 1}):
        unread = f"key {key} changes a query that may not read it"
        read = f"key {key} does not change a query that may read it"
        check_changed_key(subject, call, out, expected, key, unread, read)


@law(
    "MSK-6",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL, mask=MASKS),
        GROUPED,
    ),
    wide=(TILES,),
    explore=cases(
        masked=True,
        causal=False,
        scales=POSITIVE,
        patterns=UNBIASED,
        only=has_mask,
    ),
    cost=2,
)
def law_bool_and_additive_masks_agree(subject: Subject, case: Case) -> None:
    """MSK-6: true and false say the same as 0 and minus infinity."""
    recipe = case.mask or Mask()
    bools = subject.draw(case, mask=Mask(pattern=recipe.pattern, shape=recipe.shape))
    floats = subject.draw(
        case, mask=Mask(kind=MaskKind.FLOAT, pattern=recipe.pattern, shape=recipe.shape)
    )
    expected = subject.expect(bools)
    for call, message in (
        (floats, "an additive mask differs from a bool one"),
        (bools, "a bool mask differs from an additive one"),
    ):
        check_equal_call(subject, call, subject.call(call), expected, message)
    require_evidence(bools, expected)


@law(
    "MSK-6",
    pinned=(
        TINIEST.but(mask=None, is_causal=True),
        *vary(SMALL.but(mask=None, is_causal=True), dtype=DTYPES),
        SMALL.but(mask=None, is_causal=True, queries=17, keys=5),
        GROUPED.but(mask=None, is_causal=True),
        TILES.but(mask=None, is_causal=True),
    ),
    explore=cases(masked=False, causal=True, scales=POSITIVE, only=has_causal_flag),
    needs={Feature.MASK},
    cost=3,
)
def law_the_causal_flag_equals_its_triangle(subject: Subject, case: Case) -> None:
    """MSK-6: the causal flag says the same as the bool and the additive mask of its triangle."""
    call = subject.draw(case)
    triangle = readable(subject, call)[0, 0]
    masks = {
        "bool triangle": (MaskKind.BOOL, triangle),
        "additive triangle": (MaskKind.FLOAT, additive_mask(triangle, case.dtype)),
    }
    claimed = {
        name: mask
        for name, (kind, mask) in masks.items()
        if _claims_mask(subject, case.but(is_causal=False), kind)
    }
    if not claimed:
        raise NotClaimed("neither a bool nor a float mask of the triangle is claimed")
    expected = subject.expect(call.but(is_causal=False, attn_mask=triangle))
    for spelling, mask in {"causal flag": None, **claimed}.items():
        spelled = call.but(is_causal=mask is None, attn_mask=mask)
        message = f"the {spelling} is misread"
        check_equal_call(subject, spelled, subject.call(spelled), expected, message)
    require_evidence(call, expected)


@law(
    "MSK-7",
    pinned=(TINIEST, *vary(SMALL, dtype=DTYPES), GROUPED, TILES),
    explore=cases(masked=True, causal=False, scales=POSITIVE, only=has_mask),
    cost=3,
)
def law_true_means_readable(subject: Subject, case: Case) -> None:
    """MSK-7: a query for which one key is true gives its value; all true hides nothing."""
    if not _claims_mask(subject, case, MaskKind.BOOL):
        raise NotClaimed("no bool mask is claimed")
    call = subject.draw(case)
    query = torch.arange(case.queries, device=call.query.device)
    only = (query * 5 + case.seed + 1) % case.keys
    visible = torch.arange(case.keys, device=query.device) == only[:, None]
    target = repeat_kv(subject, call.value.double(), case.heads)[:, :, only]
    masks = [visible]
    if _claims_mask(subject, case, MaskKind.FLOAT):
        masks.append(additive_mask(visible, case.dtype))
    for mask in masks:
        message = "a query that may read one key does not give its value"
        check_target(subject, call.but(attn_mask=mask), target, message)
    everything = call.but(attn_mask=torch.ones_like(visible))
    expected = subject.expect(call.but(attn_mask=None))
    check_oracle(everything, subject.call(everything), expected, "a mask of true hides a key")


def _claims_mask(subject: Subject, case: Case, kind: MaskKind) -> bool:
    """Return whether a subject claims a mask (queries, keys) of a kind, with the rest of a case."""
    return subject.refuses(case.but(mask=Mask(kind=kind, shape=MaskShape.RANK_2))) is None


@law(
    "MSK-8",
    pinned=BIASES,
    explore=cases(
        masked=True,
        causal=False,
        scales=(0.5, 2.0, None),
        patterns=(MaskPattern.BIAS,),
        only=has_mask,
    ),
    cost=2,
)
def law_a_float_mask_is_added_to_the_scaled_scores(subject: Subject, case: Case) -> None:
    """MSK-8: a query of zeros has the softmax of the float mask as weights, whatever the scale."""
    call = subject.draw(case)
    check_oracle(call, subject.call(call), subject.expect(call), "the output is wrong with a bias")
    bias = call.attn_mask
    if bias is None:
        raise ValueError("the law of biases needs a case with a mask")
    weights = bias.double().expand(*call.query.shape[:-1], case.keys).softmax(-1)
    target = weights @ repeat_kv(subject, call.value.double(), case.heads)
    message = "a float mask is not added to the scaled scores"
    check_target(subject, call.but(query=torch.zeros_like(call.query)), target, message)


@law(
    "MSK-9",
    pinned=(
        # of the seeds below, the first that detect a mutant
        *vary(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=(0, 1, 2, 4)),
        *vary(SMALL, seed=(9, 10, 12)),
        SMALL.but(batch=3, seed=1, dtype=F64),
        SMALL.but(batch=3, seed=2, dtype=F16),
        GROUPED.but(seed=3, dtype=BF16),
        TILES.but(seed=2),
        # rows of several loads: a mask of all elements and heads, and one of all queries
        *vary(TILES.but(batch=2, heads=2, kv_heads=2, queries=33, keys=70), seed=(3, 4)),
    ),
    wide=(
        # seven seeds try every shape, the next seven the other kind of mask
        *vary(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(7)),
        *vary(SMALL, seed=range(7, 14)),
    ),
    explore=cases(masked=True, scales=POSITIVE, only=has_mask),
    cost=12,
)
def law_masks_broadcast(subject: Subject, case: Case) -> None:
    """MSK-9: a mask of rank 2 to 4 with axes of size one says what its expansion says."""
    call = subject.draw(case)
    whole = (*call.query.shape[:3], case.keys)
    by_rank = {2: MaskShape.RANK_2, 3: MaskShape.RANK_3, 4: MaskShape.FULL}
    for shape in broadcast_shapes(whole)[case.seed % 7 :: 7]:
        mask = random_mask(case, shape)
        kind = MaskKind.BOOL if mask.dtype == torch.bool else MaskKind.FLOAT
        recipe = Mask(kind=kind, shape=by_rank[len(shape)])
        if subject.refuses(case.but(mask=recipe)) is not None:
            continue
        expanded = call.but(attn_mask=mask.expand(whole).contiguous())
        expected = subject.expect(expanded)
        for broadcast in (mask, mask.expand(whole)):
            changed = call.but(attn_mask=broadcast)
            message = f"a mask of shape {tuple(shape)} is not broadcast to {whole}"
            check_oracle(changed, subject.call(changed), expected, message)


def broadcast_shapes(whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every shape of rank 2 to 4 that broadcasts to the whole one."""
    return [
        tuple(size if is_kept else 1 for size, is_kept in zip(whole[-rank:], choice, strict=True))
        for rank in (2, 3, 4)
        for choice in itertools.product((True, False), repeat=rank)
    ]


def random_mask(case: Case, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw a mask of independent elements: bool, or a bias with some keys hidden."""
    purpose = f"mask {shape}"
    hidden = torch.rand(shape, generator=generator(case.seed, purpose)) < 0.3
    if len(shape) % 2 == case.seed % 2:
        return (~hidden).to(case.device)
    bias = normal(case, purpose, *shape).masked_fill(hidden, -torch.inf)
    return bias.to(case.dtype).to(case.device)
