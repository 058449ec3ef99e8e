"""Laws of ATT, sizes: any number of value channels, and lengths of zero and one."""

import torch

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close, check_equal
from attnspec.conformance.laws.helpers.calls import plain, readable, repeat_kv, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    F16,
    F32,
    F64,
    GROUPED,
    SMALL,
    TINIEST,
    UNBIASED,
    UNEQUAL,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

TILES = Case(queries=17, keys=129, d_head=64, d_value=64, dtype=F32)


@law(
    "ATT-8",
    pinned=(
        TINIEST,
        UNEQUAL,
        *vary(SMALL.but(d_head=5, d_value=13), dtype=DTYPES),
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
    expected = subject.judge(
        call, subject.call(call), "the output is wrong with this number of value channels"
    )
    require_evidence(call, expected)
    channel = slice(case.seed % case.d_value, case.seed % case.d_value + 1)
    alone = call.value[..., channel]
    noise = torch.full_like(call.value, torch.nan)
    noise[..., channel] = alone
    changes = [(call.but(value=noise), channel)]
    if subject.refuses(case.but(d_value=1)) is None:
        changes.append((call.but(value=alone.contiguous()), slice(None)))
    for changed, index in changes:
        check_close(
            subject.call(changed)[..., index],
            expected.out[..., channel],
            expected.bound[..., channel],
            what="out",
            message="a channel of the output depends on other channels of the values",
            dtype=case.dtype,
        )


@law(
    "ATT-9",
    pinned=(
        *vary(TINIEST, keys=(1, 0), queries=(1, 0)),
        TINIEST.but(queries=1, keys=1, d_head=1, d_value=1),
        *vary(SMALL.but(keys=1), dtype=(F64, F16, BF16)),
        *vary(SMALL.but(queries=1), dtype=(F64, F16, BF16)),
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
    expected = subject.judge(call, out, "the output is wrong for a length of zero or one")
    if case.keys == 0:
        message = "without keys the output must be zero"
        check_equal(out, torch.zeros_like(out), what="out", message=message)
    if case.keys == 1:
        value = repeat_kv(subject, call.value.double(), case.heads)
        visible = readable(subject, call)
        check_close(
            out,
            torch.where(visible, value, expected.out),
            expected.bound,
            what="out",
            message="a single key does not give its value",
            dtype=case.dtype,
            may_be_nan=expected.may_be_nan,
        )


@law(
    "ATT-9",
    pinned=(
        *vary(TINIEST.but(keys=0), dtype=DTYPES),
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
