"""Laws of ATT, first part: the output is a weighted mean of the values that a query may read."""

import math

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_target,
    drawn,
    evident,
    grid,
    judged,
    per_head,
    plain,
    readable,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.values import generator
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
UNEQUAL = SMALL.but(d_head=8, d_value=3)
GROUPED = Case(batch=2, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(queries=65, keys=129, d_head=64, d_value=64, dtype=F32, values=Values.PEAKED)
HIDDEN = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
UNBIASED = tuple(each for each in MaskPattern if each is not MaskPattern.BIAS)

FAMILIES = SMALL.but(queries=4, keys=19, d_head=16, d_value=16)
VALUE_CASES = (
    TINIEST,
    TINIEST.but(queries=1, keys=1, d_head=1, d_value=1, dtype=F64),
    *every(SMALL, dtype=(F32, F64, F16, BF16)),
    *every(FAMILIES, values=Values),
    # the other types share the families, the smallest values are for the coarsest type as well;
    # an offset is positive or negative, as the seed is even or odd
    *every(FAMILIES.but(dtype=F64, seed=1), values=(*tuple(Values)[0::3], Values.OFFSET)),
    *every(FAMILIES.but(dtype=F16, seed=2), values=tuple(Values)[1::3]),
    *every(FAMILIES.but(dtype=BF16, seed=3), values=tuple(Values)[2::3]),
    *every(FAMILIES.but(dtype=BF16, seed=3), values=(Values.TINY, Values.DENORMAL)),
    UNEQUAL,
    GROUPED,
    GROUPED.but(dtype=BF16, values=Values.PEAKED),
    SMALL.but(queries=7, keys=5, is_causal=True),
    SMALL.but(mask=HIDDEN, dtype=F16),
    SMALL.but(mask=BIAS, values=Values.ONE_HOT),
    SMALL.but(queries=17, keys=16, d_head=128, d_value=128),
    *every(TILES, dtype=(F32, F64, F16, BF16)),
    TILES.but(queries=129, keys=63, d_head=80, d_value=80),
    TILES.but(queries=3, keys=257, values=Values.ONE_HOT, dtype=BF16),
    TILES.but(queries=33, keys=256, values=Values.GROWING, is_causal=True),
    # what most kernels meet first, and so split up in a way of its own
    SMALL.but(queries=16, keys=16),
    TILES.but(queries=64, keys=64, dtype=BF16),
)


@law(
    "ATT-1",
    judges=Judged.ATTENTION,
    pinned=VALUE_CASES,
    wide=[
        FAMILIES.but(dtype=dtype, seed=seed, values=values)
        for seed, dtype in ((1, F64), (2, F16), (3, BF16))
        for values in Values
    ],
    explore=cases(empty=True, only=plain),
)
def law_output_equals_the_definition(subject: Subject, case: Case) -> None:
    """ATT-1: every element is within its bound of the softmax-weighted mean of readable values."""
    call = subject.draw(case)
    expected = subject.judge(call, subject.call(call), "the output is not that of the definition")
    evident(call, expected)


@law(
    "ATT-2",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        UNEQUAL,
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True, dtype=F16),
        GROUPED.but(queries=17, keys=33, dtype=F16),
        TILES,
    ),
    wide=(
        TILES.but(dtype=BF16, queries=5, keys=257),
        TILES.but(values=Values.GROWING, queries=5, keys=255),
    ),
    explore=cases(scales=POSITIVE, empty=True, only=plain),
)
def law_weights_sum_to_one(subject: Subject, case: Case) -> None:
    """ATT-2: where all values are equal, each output is that value."""
    call = subject.draw(case)
    channel = torch.arange(case.d_value, device=call.value.device)
    constant = ((-2.0) ** (channel % 4)).to(call.value.dtype)
    call = call.but(value=constant.expand_as(call.value).contiguous())
    target = constant.double().expand(*call.query.shape[:-1], case.d_value).clone()
    target[~readable(subject, call).any(-1)] = torch.nan
    check_target(subject, call, target, "equal values do not come back: weights do not sum to one")


@law(
    "ATT-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED.but(values=Values.PEAKED),
        *every(SMALL.but(keys=17), values=(Values.NEGATIVE, Values.OFFSET, Values.CANCELLATION)),
    ),
    wide=(TILES.but(queries=17, keys=65),),
    explore=cases(scales=POSITIVE),
)
def law_output_lies_among_the_readable_values(subject: Subject, case: Case) -> None:
    """ATT-3: each output lies between the least and the greatest readable value of its channel."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(call)
    visible = readable(subject, call)
    low, high = _extremes(visible, per_head(call.value.double(), case.heads))
    nearest = torch.maximum(torch.minimum(out.double(), high), low)
    may_say = visible.any(-1, keepdim=True) & ~nearest.isnan()
    check_close(
        out,
        torch.where(may_say, nearest, expected.out),
        expected.bound,
        what="out",
        message="the output lies outside the values that its query may read",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    evident(call, expected)


def _extremes(visible: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest readable value per query and channel, one head at a time."""
    shape = (*visible.shape[:-1], value.shape[-1])
    low, high = torch.full(shape, torch.inf).to(value), torch.full(shape, -torch.inf).to(value)
    for b in range(shape[0]):
        for h in range(shape[1]):
            seen, rows = visible[b, h, :, :, None], value[b, h]
            low[b, h] = torch.where(seen, rows, torch.inf).amin(1)
            high[b, h] = torch.where(seen, rows, -torch.inf).amax(1)
    return low, high


@law(
    "ATT-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        UNEQUAL,
        SMALL.but(mask=HIDDEN),
        GROUPED,
        TILES.but(queries=17, keys=65),
    ),
    explore=cases(scales=POSITIVE),
    cost=3,
)
def law_output_is_linear_in_the_values(subject: Subject, case: Case) -> None:
    """ATT-4: for values 2u - w the output is twice that for u less that for w."""
    message = "the output is not linear in the values"
    call = subject.draw(case)
    # on the grid 2u - w is exact, so that the three calls are exactly related
    u, w = grid(drawn(case, "value", call.value)), grid(drawn(case, "other value", call.value))
    of_u, by_u = judged(subject, call.but(value=u), "the output is wrong for plain values")
    of_w, by_w = judged(subject, call.but(value=w), "the output is wrong for plain values")
    of_both, by_both = judged(subject, call.but(value=2 * u - w), message)
    combined = 2 * of_u.double() - of_w.double()
    check_close(
        of_both,
        torch.where(combined.isfinite(), combined, by_both.out),
        2 * by_u.bound + by_w.bound + by_both.bound,
        what="out",
        message=message,
        dtype=case.dtype,
        may_be_nan=by_both.may_be_nan,
    )
    evident(call, by_u, by_w, by_both)


@law(
    "ATT-5",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        UNEQUAL.but(d_value=7),
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED.but(values=Values.PEAKED),
        GROUPED.but(keys=33, values=Values.TIES, dtype=BF16),
        TILES.but(queries=17, keys=65),
    ),
    wide=(TILES.but(queries=5, keys=129, dtype=BF16),),
    explore=cases(scales=POSITIVE, only=lambda case: case.keys <= 4 * case.d_value),
    cost=3,
)
def law_identity_values_reveal_the_weights(subject: Subject, case: Case) -> None:
    """ATT-5: one-hot values bring back the definition's weights, none negative, one in sum."""
    call = subject.draw(case)
    total = torch.zeros(call.query.shape[:-1], dtype=torch.float64, device=call.query.device)
    slack = torch.zeros_like(total)
    for start in range(0, case.keys, case.d_value):
        call = call.but(value=_identity(call.value, start))
        weights = subject.call(call)
        # a sum of products of numbers that are not negative is not negative, however it is rounded
        if bool((weights < 0).any()):
            raise Violation(f"a weight is negative: {weights.min().item():.6g}")
        expected = subject.judge(call, weights, "the weights are not those of the definition")
        total += weights.double().sum(-1)
        slack += expected.bound.sum(-1)
        evident(call, expected)
    full = readable(subject, call).any(-1)
    check_close(
        total[full],
        torch.ones_like(total[full]),
        slack[full],
        what="sum of weights",
        message="the weights do not sum to one",
        dtype=F64,
    )


def _identity(value: torch.Tensor, start: int) -> torch.Tensor:
    """Values that are zero but for a one in channel c of key start + c."""
    hot = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    channel = torch.arange(min(value.shape[-1], value.shape[-2] - start), device=value.device)
    hot[..., start + channel, channel] = 1.0
    return hot


@law(
    "ATT-6",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        UNEQUAL,
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED,
        TILES,
    ),
    wide=(TILES.but(queries=5, keys=257, dtype=BF16),),
    explore=cases(scales=POSITIVE, patterns=UNBIASED),
)
def law_zero_query_gives_the_mean(subject: Subject, case: Case) -> None:
    """ATT-6: a query of zeros gives the mean of the values that it may read."""
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    visible = readable(subject, call).double()
    # an empty row is 0 / 0: NaN, and so left to the definition
    mean = visible @ per_head(call.value.double(), case.heads) / visible.sum(-1, keepdim=True)
    check_target(subject, call, mean, "a query of zeros does not give the mean of its values")


@law(
    "ATT-7",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL.but(d_head=16, d_value=16), dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED,
        TILES,
        TILES.but(queries=129, keys=255, dtype=BF16),
    ),
    explore=cases(
        scales=POSITIVE,
        patterns=UNBIASED,
        only=lambda case: case.keys <= 2**case.d_head,
    ),
)
def law_dominant_key_gives_its_value(subject: Subject, case: Case) -> None:
    """ATT-7: a key whose score is far above all others brings back its value."""
    call = subject.draw(case)
    visible = readable(subject, call)
    lottery = torch.rand(visible.shape, generator=generator(case.seed, "dominant")).to(
        visible.device
    )
    dominant = torch.where(visible, lottery, -1.0).argmax(-1)
    call, margin = _code_keys(case, call, dominant)
    value = per_head(call.value.double(), case.heads)
    target = value.gather(2, dominant[..., None].expand(*dominant.shape, case.d_value))
    target = torch.where(visible.any(-1, keepdim=True), target, torch.nan)
    spread = value.amax(2, keepdim=True) - value.amin(2, keepdim=True)
    rest = min((case.keys - 1) * math.exp(-margin), 1.0)
    check_target(
        subject, call, target, "the dominant key does not give its value", slack=rest * spread
    )


def _code_keys(case: Case, call: Call, dominant: torch.Tensor) -> tuple[Call, float]:
    """Make key j the digits of j as signs, and each query a multiple of its dominant key.

    Returns:
        The call; and the least distance from the dominant score to the next one, exactly.
    """
    digits = max((case.keys - 1).bit_length(), 1)
    key = torch.arange(case.keys, device=call.key.device)[:, None]
    channel = torch.arange(case.d_head, device=call.key.device)
    code = 1.0 - 2.0 * (key >> (channel % digits) & 1)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    apart = 2 * scale * (case.d_head // digits)
    # wide types tell small weights from zero; narrow ones need scores that are not too large
    wanted = {F64: 48.0, F32: 24.0}.get(case.dtype, 8.0) / apart
    level = torch.tensor(wanted, dtype=case.dtype).item()
    query = (level * code).to(case.dtype)[dominant]
    return call.but(key=code.to(case.dtype).expand_as(call.key).clone(), query=query), apart * level
