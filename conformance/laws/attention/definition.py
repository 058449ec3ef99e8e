"""Laws of ATT: the output is a weighted mean of the values that a query may read."""

import math

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import (
    call_and_judge,
    check_target,
    normal_like,
    plain,
    readable,
    repeat_kv,
    require_evidence,
    round_to_grid,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F32,
    F64,
    GROUPED,
    HIDDEN,
    SMALL,
    TINIEST,
    UNBIASED,
    UNEQUAL,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

TILES = Case(queries=65, keys=129, d_head=64, d_value=64, dtype=F32, values=Values.PEAKED)

FAMILIES = SMALL.but(queries=4, keys=19, d_head=16, d_value=16)
VALUE_CASES = (
    TINIEST,
    TINIEST.but(queries=1, keys=1, d_head=1, d_value=1, dtype=F64),
    *vary(SMALL, dtype=DTYPES),
    *vary(FAMILIES, values=Values),
    # the other dtypes share the families; the coarsest gets the smallest values as well;
    # the seed decides the sign of an offset: positive if even, negative if odd
    *vary(FAMILIES.but(dtype=F64, seed=1), values=(*tuple(Values)[0::3], Values.OFFSET)),
    *vary(FAMILIES.but(dtype=F16, seed=2), values=tuple(Values)[1::3]),
    *vary(FAMILIES.but(dtype=BF16, seed=3), values=tuple(Values)[2::3]),
    *vary(FAMILIES.but(dtype=BF16, seed=3), values=(Values.TINY, Values.DENORMAL)),
    UNEQUAL,
    GROUPED,
    GROUPED.but(dtype=BF16, values=Values.PEAKED),
    SMALL.but(queries=7, keys=5, is_causal=True),
    SMALL.but(mask=HIDDEN, dtype=F16),
    SMALL.but(mask=BIAS, values=Values.ONE_HOT),
    SMALL.but(queries=17, keys=16, d_head=128, d_value=128),
    *vary(TILES, dtype=DTYPES),
    TILES.but(queries=129, keys=63, d_head=80, d_value=80),
    TILES.but(queries=3, keys=257, values=Values.ONE_HOT, dtype=BF16),
    TILES.but(queries=33, keys=256, values=Values.GROWING, is_causal=True),
    # the lengths of one tile of most kernels, which split the work differently there
    SMALL.but(queries=16, keys=16),
    TILES.but(queries=64, keys=64, dtype=BF16),
)


@law(
    "ATT-1",
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
    expected = subject.judge(call, subject.call(call), "the output differs from the definition")
    require_evidence(call, expected)


@law(
    "ATT-1",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        # whole tiles of keys are zero
        TILES.but(keys=192),
        TILES.but(queries=1, keys=257, dtype=F16),
        TILES.but(queries=192, keys=192, is_causal=True, dtype=BF16),
    ),
    explore=cases(only=plain),
)
def law_keys_of_zeros_are_keys(subject: Subject, case: Case) -> None:
    """ATT-1: a key of zeros has a score of zero, not no score, also where it fills a tile."""
    call = subject.draw(case)
    key = call.key.clone()
    key[:, :, case.keys // 3 :] = 0
    call = call.but(key=key)
    check_oracle(call, subject.call(call), subject.expect(call), "keys of zeros do not count")


@law(
    "ATT-2",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
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
    """ATT-2: if all values are equal, each output is that value."""
    call = subject.draw(case)
    channel = torch.arange(case.d_value, device=call.value.device)
    constant = ((-2.0) ** (channel % 4)).to(call.value.dtype)
    call = call.but(value=constant.expand_as(call.value).contiguous())
    target = constant.double().expand(*call.query.shape[:-1], case.d_value).clone()
    target[~readable(subject, call).any(-1)] = torch.nan
    check_target(subject, call, target, "equal values do not come back: weights do not sum to one")


@law(
    "ATT-3",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(mask=HIDDEN),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED.but(values=Values.PEAKED),
        *vary(SMALL.but(keys=17), values=(Values.NEGATIVE, Values.OFFSET, Values.CANCELLATION)),
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
    low, high = _extremes(visible, repeat_kv(subject, call.value.double(), case.heads))
    nearest = torch.maximum(torch.minimum(out.double(), high), low)
    is_judged = visible.any(-1, keepdim=True) & ~nearest.isnan()
    check_close(
        out,
        torch.where(is_judged, nearest, expected.out),
        expected.bound,
        what="out",
        message="the output lies outside the values that its query may read",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    require_evidence(call, expected)


def _extremes(visible: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and greatest readable value per query and channel, head by head."""
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
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
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
    u, w = (
        round_to_grid(normal_like(case, "value", call.value)),
        round_to_grid(normal_like(case, "other value", call.value)),
    )
    out_u, expected_u = call_and_judge(
        subject, call.but(value=u), "the output is wrong for plain values"
    )
    out_w, expected_w = call_and_judge(
        subject, call.but(value=w), "the output is wrong for plain values"
    )
    out_both, expected_both = call_and_judge(subject, call.but(value=2 * u - w), message)
    combined = 2 * out_u.double() - out_w.double()
    check_close(
        out_both,
        torch.where(combined.isfinite(), combined, expected_both.out),
        2 * expected_u.bound + expected_w.bound + expected_both.bound,
        what="out",
        message=message,
        dtype=case.dtype,
        may_be_nan=expected_both.may_be_nan,
    )
    require_evidence(call, expected_u, expected_w, expected_both)


@law(
    "ATT-5",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
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
    """ATT-5: one-hot values give the weights of the definition, none negative, one in sum."""
    call = subject.draw(case)
    total = torch.zeros(call.query.shape[:-1], dtype=torch.float64, device=call.query.device)
    slack = torch.zeros_like(total)
    for start in range(0, case.keys, case.d_value):
        call = call.but(value=_identity_values(call.value, start))
        weights = subject.call(call)
        # a sum of products of nonnegative numbers is nonnegative, however it is rounded
        if bool((weights < 0).any()):
            raise Violation(f"a weight is negative: {weights.min().item():.6g}")
        expected = subject.judge(call, weights, "the weights differ from the definition")
        total += weights.double().sum(-1)
        slack += expected.bound.sum(-1)
        require_evidence(call, expected)
    full = readable(subject, call).any(-1)
    check_close(
        total[full],
        torch.ones_like(total[full]),
        slack[full],
        what="sum of weights",
        message="the weights do not sum to one",
        dtype=F64,
    )


def _identity_values(value: torch.Tensor, start: int) -> torch.Tensor:
    """Return values that are zero except for a one in channel c of key start + c."""
    hot = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    channel = torch.arange(min(value.shape[-1], value.shape[-2] - start), device=value.device)
    hot[..., start + channel, channel] = 1.0
    return hot


@law(
    "ATT-6",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
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
    # an empty row is 0 / 0, which is NaN: the definition judges it
    mean = (
        visible
        @ repeat_kv(subject, call.value.double(), case.heads)
        / visible.sum(-1, keepdim=True)
    )
    check_target(subject, call, mean, "a query of zeros does not give the mean of its values")


@law(
    "ATT-7",
    pinned=(
        TINIEST,
        *vary(SMALL.but(d_head=16, d_value=16), dtype=DTYPES),
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
    """ATT-7: a key whose score is far above all others gives its value."""
    call = subject.draw(case)
    visible = readable(subject, call)
    chances = torch.rand(visible.shape, generator=generator(case.seed, "dominant")).to(
        visible.device
    )
    dominant = torch.where(visible, chances, -1.0).argmax(-1)
    call, margin = with_coded_keys(case, call, dominant)
    value = repeat_kv(subject, call.value.double(), case.heads)
    target = value.gather(2, dominant[..., None].expand(*dominant.shape, case.d_value))
    target = torch.where(visible.any(-1, keepdim=True), target, torch.nan)
    spread = value.amax(2, keepdim=True) - value.amin(2, keepdim=True)
    rest = min((case.keys - 1) * math.exp(-margin), 1.0)
    check_target(
        subject, call, target, "the dominant key does not give its value", slack=rest * spread
    )


def with_coded_keys(case: Case, call: Call, dominant: torch.Tensor) -> tuple[Call, float]:
    """Make key j the binary digits of j as signs, each query a multiple of its dominant key.

    Returns:
        The call, and the exact least distance from the dominant score to the next one.
    """
    digits = max((case.keys - 1).bit_length(), 1)
    key = torch.arange(case.keys, device=call.key.device)[:, None]
    channel = torch.arange(case.d_head, device=call.key.device)
    # in the type of the case: in float32, the query would be rounded beside the level
    code = (1.0 - 2.0 * (key >> (channel % digits) & 1)).to(case.dtype)
    scale = case.d_head**-0.5 if case.scale is None else case.scale
    step = 2 * scale * (case.d_head // digits)
    # wide dtypes resolve small weights; narrow ones need scores that are not too large
    exact_level = {F64: 48.0, F32: 24.0}.get(case.dtype, 8.0) / step
    level = torch.tensor(exact_level, dtype=case.dtype).item()
    query = (level * code)[dominant]
    return call.but(key=code.expand_as(call.key).clone(), query=query), step * level
