"""Laws of ATT, sizes: any number of value channels, and lengths of zero and one."""

import torch

from attnspec.conformance.compare import check_close, check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    evident,
    per_head,
    plain,
    readable,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, MaskPattern

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
UNEQUAL = SMALL.but(d_head=8, d_value=3)
GROUPED = Case(batch=2, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(queries=17, keys=129, d_head=64, d_value=64, dtype=F32)
UNBIASED = tuple(each for each in MaskPattern if each is not MaskPattern.BIAS)


@law(
    "ATT-8",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        UNEQUAL,
        *every(SMALL.but(d_head=5, d_value=13), dtype=(F32, F64, F16, BF16)),
        SMALL.but(d_head=16, d_value=1),
        SMALL.but(d_head=16, d_value=16),
        GROUPED.but(d_head=4, d_value=65),
        TILES,
    ),
    explore=cases(scales=POSITIVE),
    cost=3,
)
def law_value_channels_are_independent(subject: Subject, case: Case) -> None:
    """ATT-8: any number of value channels, each the same whatever the others hold."""
    call = subject.draw(case)
    expected = subject.judge(call, subject.call(call), "wrong with this number of value channels")
    evident(call, expected)
    kept = slice(case.seed % case.d_value, case.seed % case.d_value + 1)
    alone = call.value[..., kept]
    noise = torch.full_like(call.value, torch.nan)
    noise[..., kept] = alone
    tried = [(call.but(value=noise), kept)]
    if subject.refuses(case.but(d_value=1)) is None:
        tried.append((call.but(value=alone.contiguous()), slice(None)))
    for each, where in tried:
        check_close(
            subject.call(each)[..., where],
            expected.out[..., kept],
            expected.bound[..., kept],
            what="out",
            message="a channel of the output depends on other channels of the values",
            dtype=case.dtype,
        )


@law(
    "ATT-9",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST, keys=(1, 0), queries=(1, 0)),
        TINIEST.but(queries=1, keys=1, d_head=1, d_value=1),
        *every(SMALL.but(keys=1), dtype=(F64, F16, BF16)),
        *every(SMALL.but(queries=1), dtype=(F64, F16, BF16)),
        SMALL.but(keys=0, queries=17),
        SMALL.but(queries=0, keys=17),
        SMALL.but(queries=0, keys=0),
        GROUPED.but(keys=1),
        GROUPED.but(queries=1, keys=257, d_value=4),
        SMALL.but(keys=1, is_causal=True),
        SMALL.but(keys=0, is_causal=True),
    ),
    explore=cases(scales=POSITIVE, lengths=(1,), empty=True, patterns=UNBIASED, only=plain),
)
def law_lengths_zero_and_one(subject: Subject, case: Case) -> None:
    """ATT-9: no keys give zeros, no queries an empty output, one key its value."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.judge(call, out, "wrong for a length of zero or one")
    if case.keys == 0:
        message = "without keys the output must be zero"
        check_equal(out, torch.zeros_like(out), what="out", message=message)
    if case.keys == 1:
        value = per_head(call.value.double(), case.heads)
        there = readable(subject, call)
        check_close(
            out,
            torch.where(there, value, expected.out),
            expected.bound,
            what="out",
            message="a single key does not give its value",
            dtype=case.dtype,
            may_be_nan=expected.may_be_nan,
        )


@law(
    "ATT-9",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST.but(keys=0), dtype=(F32, F64, F16, BF16)),
        TINIEST.but(keys=0, queries=1, d_head=1, d_value=1),
        SMALL.but(keys=0, queries=17),
        GROUPED.but(keys=0),
    ),
)
def law_no_keys_give_zeros_whatever_the_queries(subject: Subject, case: Case) -> None:
    """ATT-9: without keys the output is zero, also for queries at the end of the number range."""
    call = subject.draw(case)
    largest = torch.finfo(call.query.dtype).max
    out = subject.call(call.but(query=torch.full_like(call.query, largest)))
    check_equal(
        out,
        torch.zeros_like(out),
        what="out",
        message="without keys the output must be zero, and here it depends on the queries",
    )
