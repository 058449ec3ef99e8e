"""Laws of MSK, second part: what a mask says, however it is spelled, shaped and combined."""

import itertools

import torch
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_target,
    evident,
    per_head,
    readable,
)
from attnspec.conformance.laws.masking_sides import (
    additive,
    causal,
    check_oracle,
    check_rows,
    masked,
    spelled_out,
    unmoved,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.values import generator, normal
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32, mask=Mask())
FULL = Mask(shape=MaskShape.FULL)
SMALL = Case(
    batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32, mask=FULL
)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=65, keys=63, d_head=64, d_value=64)
ADDED = Mask(kind=MaskKind.FLOAT)
MASKS = (
    *(Mask(shape=shape) for shape in MaskShape),
    *(
        Mask(pattern=each, shape=MaskShape.FULL)
        for each in MaskPattern
        if each is not MaskPattern.BIAS
    ),
)
BIASES = (
    TINIEST.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
    *every(
        SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)),
        dtype=(F32, F64, F16, BF16),
        scale=(0.5, 2.0),
    ),
    *every(
        SMALL.but(queries=17),
        mask=[
            Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=shape) for shape in MaskShape
        ],
    ),
)
FLAT = (Values.NORMAL, Values.TIES, Values.TINY, Values.INTEGERS)


def _both(subject: Subject) -> SearchStrategy[Case] | None:
    """Draw cases of a mask with the causal flag, unless they are all refused."""
    if all(subject.refuses(TINIEST.but(is_causal=True, mask=mask)) for mask in MASKS):
        return None
    both = cases(masked=True, causal=True, scales=POSITIVE, only=masked)(subject)
    return both.filter(causal)


@law(
    "MSK-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(is_causal=True),
        *every(SMALL.but(is_causal=True), dtype=(F32, F64, F16, BF16)),
        *every(SMALL.but(is_causal=True, queries=7), mask=MASKS),
        SMALL.but(is_causal=True, mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)),
        SMALL.but(
            is_causal=True,
            keys=5,
            mask=Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS),
        ),
        GROUPED.but(is_causal=True),
    ),
    wide=(TILES.but(is_causal=True),),
    explore=_both,
    needs={Feature.MASK, Feature.CAUSAL},
    cost=2,
)
def law_mask_and_causal_flag_both_apply(subject: Subject, case: Case) -> None:
    """MSK-3: with a mask and the causal flag, a key is read only where both allow it."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(spelled_out(subject, call))
    check_oracle(call, out, expected, "the mask and the causal flag do not both apply")
    evident(call, expected)


@law(
    "MSK-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=None, d_head=4, d_value=4),
        TINIEST.but(d_head=4, d_value=4),
        TINIEST.but(mask=None, is_causal=True, d_head=4, d_value=4),
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        *every(SMALL.but(mask=None, is_causal=True), dtype=(F32, F64, F16, BF16)),
        *every(SMALL, mask=MASKS),
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
    call = subject.draw(case)
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    call = call.but(value=eye.expand_as(call.value).contiguous())
    weights = subject.call(call)
    expected = subject.expect(call)
    visible = readable(subject, call)
    rows = visible.any(-1)
    seen = torch.zeros(weights.shape, dtype=torch.bool, device=weights.device)
    seen[..., : case.keys] = visible
    target = torch.where(seen, expected.out, 0.0)
    check_rows(call, weights, target, expected, rows, "a key has weight that it must not have")
    blind = seen & ~(weights > 0) & (expected.out > 2 * expected.bound)
    if bool(blind.any()):
        b, h, i, j = blind.nonzero()[0].tolist()
        where = f"batch {b}, head {h}: query {i} does not read key {j}"
        raise Violation(f"a key that may be read has no weight: {where}")
    evident(call, expected)


@law(
    "MSK-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=None),
        TINIEST,
        TINIEST.but(mask=None, is_causal=True),
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=None, is_causal=True),
        GROUPED,
        TILES.but(mask=None, is_causal=True, queries=33, keys=65),
    ),
    wide=(SMALL.but(mask=None),),
    explore=cases(families=FLAT, scales=POSITIVE),
    cost=5,
)
def law_only_the_readers_of_a_key_feel_it(subject: Subject, case: Case) -> None:
    """MSK-4: another key and value in one place move every row that may read it, and no other."""
    call = subject.draw(case)
    out, expected = subject.call(call), subject.expect(call)
    visible = readable(subject, call)
    for place in sorted({0, case.keys // 2, case.keys - 1}):
        key, value = call.key.clone(), call.value.clone()
        key[:, :, place] = key[:, :, place].flip(-1)
        value[:, :, place] += 64
        changed = call.but(key=key, value=value)
        again, also = subject.call(changed), subject.expect(changed)
        readers = visible[..., place]
        message = f"a query feels key {place}, which it may not read"
        check_rows(
            changed, again, expected.out, expected, unmoved(subject, visible, readers), message
        )
        certain = ((also.out - expected.out).abs() > 2 * (also.bound + expected.bound)).any(-1)
        still = ((again.double() - out.double()).abs() <= also.bound + expected.bound).all(-1)
        deaf = readers & certain & still
        if bool(deaf.any()):
            b, h, i = deaf.nonzero()[0].tolist()
            where = f"batch {b}, head {h}, query {i}"
            raise Violation(f"a query does not feel key {place}, which it may read: {where}")
        check_oracle(changed, again, also, f"wrong after a change of key {place}")


@law(
    "MSK-6",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        *every(SMALL, mask=MASKS),
        GROUPED,
    ),
    wide=(TILES,),
    explore=cases(
        masked=True,
        causal=False,
        scales=POSITIVE,
        patterns=tuple(each for each in MaskPattern if each is not MaskPattern.BIAS),
        only=masked,
    ),
    needs={Feature.MASK},
    cost=2,
)
def law_bool_and_additive_masks_agree(subject: Subject, case: Case) -> None:
    """MSK-6: true and false say the same as 0 and minus infinity."""
    kept = case.mask or Mask()
    bools = subject.draw(case, mask=Mask(pattern=kept.pattern, shape=kept.shape))
    floats = subject.draw(
        case, mask=Mask(kind=MaskKind.FLOAT, pattern=kept.pattern, shape=kept.shape)
    )
    expected = subject.expect(bools)
    check_oracle(floats, subject.call(floats), expected, "an additive mask differs from a bool one")
    check_oracle(bools, subject.call(bools), expected, "a bool mask differs from an additive one")
    evident(bools, expected)


@law(
    "MSK-6",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=None, is_causal=True),
        *every(SMALL.but(mask=None, is_causal=True), dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=None, is_causal=True, queries=17, keys=5),
        GROUPED.but(mask=None, is_causal=True),
        TILES.but(mask=None, is_causal=True),
    ),
    explore=cases(masked=False, causal=True, scales=POSITIVE, only=causal),
    needs={Feature.MASK, Feature.CAUSAL},
    cost=3,
)
def law_the_causal_flag_equals_its_triangle(subject: Subject, case: Case) -> None:
    """MSK-6: the causal flag says the same as the bool and the additive mask of its triangle."""
    call = subject.draw(case)
    subject.draw(case, is_causal=False, mask=ADDED)  # not claimed where masks are refused
    triangle = readable(subject, call)[0, 0]
    expected = subject.expect(call.but(is_causal=False, attn_mask=triangle))
    for spelling, mask in (
        ("causal flag", None),
        ("bool triangle", triangle),
        ("additive triangle", additive(triangle, case.dtype)),
    ):
        each = call.but(is_causal=mask is None, attn_mask=mask)
        check_oracle(each, subject.call(each), expected, f"the {spelling} is not what it says")
    evident(call, expected)


@law(
    "MSK-7",
    judges=Judged.ATTENTION,
    pinned=(TINIEST, *every(SMALL, dtype=(F32, F64, F16, BF16)), GROUPED, TILES),
    explore=cases(masked=True, causal=False, scales=POSITIVE, only=masked),
    needs={Feature.MASK},
    cost=3,
)
def law_true_means_readable(subject: Subject, case: Case) -> None:
    """MSK-7: a query for which one key is true gives its value; all true hides nothing."""
    call = subject.draw(case)
    query = torch.arange(case.queries, device=call.query.device)
    only = (query * 5 + case.seed + 1) % case.keys
    visible = torch.arange(case.keys, device=query.device) == only[:, None]
    target = per_head(call.value.double(), case.heads)[:, :, only]
    for mask in (visible, additive(visible, case.dtype)):
        message = "a query that may read one key does not give its value"
        check_target(subject, call.but(attn_mask=mask), target, message)
    everything = call.but(attn_mask=torch.ones_like(visible))
    expected = subject.expect(call.but(attn_mask=None))
    check_oracle(everything, subject.call(everything), expected, "a mask of true hides something")


@law(
    "MSK-8",
    judges=Judged.ATTENTION,
    pinned=BIASES,
    explore=cases(
        masked=True,
        causal=False,
        scales=(0.5, 2.0, None),
        patterns=(MaskPattern.BIAS,),
        only=masked,
    ),
    needs={Feature.MASK},
    cost=2,
)
def law_a_float_mask_joins_the_scaled_scores(subject: Subject, case: Case) -> None:
    """MSK-8: a query of zeros has the softmax of the float mask as weights, whatever the scale."""
    call = subject.draw(case)
    check_oracle(call, subject.call(call), subject.expect(call), "wrong with a bias")
    bias = call.attn_mask
    if bias is None:
        raise ValueError("the law of biases needs a case with a mask")
    weights = bias.double().softmax(-1).expand(*call.query.shape[:-1], case.keys)
    target = weights @ per_head(call.value.double(), case.heads)
    message = "a float mask is not simply added to the scaled scores"
    check_target(subject, call.but(query=torch.zeros_like(call.query)), target, message)


@law(
    "MSK-9",
    judges=Judged.ATTENTION,
    pinned=(
        # of the seeds below those by which a planted bug is seen first
        *every(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=(0, 1, 2, 4)),
        *every(SMALL, seed=(9, 10, 12)),
        SMALL.but(batch=3, seed=1, dtype=F64),
        SMALL.but(batch=3, seed=2, dtype=F16),
        GROUPED.but(seed=3, dtype=BF16),
        TILES.but(seed=2),
    ),
    wide=(
        # seven seeds try every shape, the next seven with the other kind of mask
        *every(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(7)),
        *every(SMALL, seed=range(7, 14)),
    ),
    explore=cases(masked=True, scales=POSITIVE, only=masked),
    needs={Feature.MASK},
    cost=12,
)
def law_masks_broadcast(subject: Subject, case: Case) -> None:
    """MSK-9: a mask of rank 2 to 4 with axes of size one says what its expansion says."""
    call = subject.draw(case)
    whole = (*call.query.shape[:3], case.keys)
    by_rank = {2: MaskShape.RANK_2, 3: MaskShape.RANK_3, 4: MaskShape.FULL}
    for shape in _shapes(whole)[case.seed % 7 :: 7]:
        mask = _random_mask(case, shape)
        kind = MaskKind.BOOL if mask.dtype == torch.bool else MaskKind.FLOAT
        recipe = Mask(kind=kind, shape=by_rank[len(shape)])
        if subject.refuses(case.but(mask=recipe)) is not None:
            continue
        spelled = call.but(attn_mask=mask.expand(whole).contiguous())
        expected = subject.expect(spelled)
        for each in (mask, mask.expand(whole)):
            given = call.but(attn_mask=each)
            message = f"a mask of shape {tuple(shape)} is not broadcast to {whole}"
            check_oracle(given, subject.call(given), expected, message)


def _shapes(whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every shape of rank 2 to 4 that broadcasts to the whole one."""
    return [
        tuple(size if kept else 1 for size, kept in zip(whole[-rank:], keep, strict=True))
        for rank in (2, 3, 4)
        for keep in itertools.product((True, False), repeat=rank)
    ]


def _random_mask(case: Case, shape: tuple[int, ...]) -> torch.Tensor:
    """A mask with contents of its own in every place: bool, or a bias with some keys hidden."""
    purpose = f"mask {shape}"
    hidden = torch.rand(shape, generator=generator(case.seed, purpose)) < 0.3
    if len(shape) % 2 == case.seed % 2:
        return (~hidden).to(case.device)
    bias = normal(case, purpose, *shape).masked_fill(hidden, -torch.inf)
    return bias.to(case.dtype).to(case.device)
