"""Laws of ATT, options: a sink takes weight from the keys and has no value."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import (
    check_target,
    normal_like,
    plain,
    readable,
    repeat_kv,
    require_evidence,
)
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F16,
    F64,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
    UNBIASED,
)
from attnspec.conformance.laws.helpers.options import sinks_of
from attnspec.conformance.laws.helpers.rows import check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, MaskShape, Values

OTHER_OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI)
WITH_SINKS = SMALL.but(sinks=True)


@law(
    "ATT-26",
    pinned=(
        TINIEST.but(sinks=True),
        *vary(WITH_SINKS, dtype=DTYPES),
        *vary(WITH_SINKS.but(keys=17), values=Values),
        *vary(WITH_SINKS, mask=(HIDDEN, BIAS)),
        WITH_SINKS.but(is_causal=True),
        WITH_SINKS.but(window=(2, 1)),
        *(
            WITH_SINKS.but(values=Values.PEAKED, **{name: value})
            for name, value in (("softcap", 1.0), ("alibi", True))
        ),
        GROUPED.but(sinks=True, values=Values.PEAKED),
        TILES.but(sinks=True, values=Values.GROWING, queries=17),
        TILES.but(sinks=True, dtype=BF16, keys=129, queries=5),
    ),
    explore=cases(always=(Feature.SINKS,), sometimes=OTHER_OPTIONS, only=plain),
    cost=3,
)
def law_sinks_are_added_to_the_denominator(subject: Subject, case: Case) -> None:
    """ATT-26: a sink adds an exponential to the denominator; values of one show the weight left.

    With values of one the output is the weight of all keys, one less the weight of the sink.
    """
    call = subject.draw(case)
    expected = subject.judge(
        call, subject.call(call), "the output with a sink differs from the definition"
    )
    require_evidence(call, expected)
    ones = call.but(value=torch.ones_like(call.value))
    weight = _weight_of_keys(subject, call)
    target = torch.where(weight.isnan(), torch.nan, weight)[..., None].expand(expected.out.shape)
    check_target(
        subject, ones, target, "the weights of the keys do not sum to one less the sink's weight"
    )


def _weight_of_keys(subject: Subject, call: Call) -> torch.Tensor:
    """Return the weight of all keys together: a logistic function of log-sum-exp less sink."""
    bare = subject.expect(call.but(sinks=None), with_bound=False).lse
    return torch.sigmoid(bare - sinks_of(call).double()[:, None])


@law(
    "ATT-26",
    pinned=(
        TINIEST.but(sinks=True),
        *vary(WITH_SINKS, dtype=DTYPES),
        *vary(WITH_SINKS, keys=(1, 2, 16, 17)),
        WITH_SINKS.but(scale=2.0),
        WITH_SINKS.but(mask=HIDDEN),
        WITH_SINKS.but(is_causal=True),
        WITH_SINKS.but(window=(2, 1)),
        WITH_SINKS.but(softcap=0.5),
        GROUPED.but(sinks=True),
        TILES.but(sinks=True),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP),
        patterns=UNBIASED,
        scales=POSITIVE,
    ),
    cost=2,
)
def law_a_sink_takes_weight_and_has_no_value(subject: Subject, case: Case) -> None:
    """ATT-26: beside a sink z, a query of zeros gives the sum of its n values over n + e^z."""
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    visible = readable(subject, call).double()
    total = visible.sum(-1, keepdim=True) + sinks_of(call).double().exp()[:, None, None]
    target = visible @ repeat_kv(subject, call.value.double(), case.heads) / total
    check_target(subject, call, target, "a sink does not count as e^z of keys without value")


@law(
    "ATT-27",
    pinned=(
        TINIEST.but(heads=2, kv_heads=2, sinks=True),
        TINIEST.but(heads=4, kv_heads=2, sinks=True),
        *vary(WITH_SINKS, dtype=DTYPES),
        GROUPED.but(sinks=True),
        GROUPED.but(sinks=True, kv_heads=3, dtype=BF16),
        GROUPED.but(sinks=True, kv_heads=1),
        TILES.but(sinks=True, heads=2, kv_heads=2),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.heads > 1,
    ),
    cost=4,
)
def law_each_query_head_has_a_sink_of_its_own(subject: Subject, case: Case) -> None:
    """ATT-27: the sink of one query head changes that head, and no other of its group."""
    call = subject.draw(case)
    for head in sorted({0, case.heads - 1, case.heads // 2}):
        sinks = sinks_of(call).clone()
        sinks[head] += 4
        changed = call.but(sinks=sinks)
        out, expected = subject.call(changed), subject.expect(changed)
        target = subject.expect(call, with_bound=False).out.clone()
        with_equal_sinks = call.but(sinks=sinks[head].expand_as(sinks).contiguous())
        target[:, head] = subject.expect(with_equal_sinks, with_bound=False).out[:, head]
        rows = torch.ones(out.shape[:3], dtype=torch.bool, device=out.device)
        message = f"the sink of head {head} does not change exactly head {head}"
        check_rows(changed, out, target, expected, rows, message)
        require_evidence(changed, expected)


@law(
    "ATT-28",
    pinned=(
        TINIEST.but(sinks=True),
        TINIEST.but(sinks=True, mask=EMPTY_ROWS),
        *vary(WITH_SINKS, dtype=DTYPES),
        *vary(WITH_SINKS, values=(Values.NEGATIVE, Values.GROWING, Values.OFFSET)),
        *vary(WITH_SINKS, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        WITH_SINKS.but(mask=Mask(shape=MaskShape.RANK_2), is_causal=True),
        WITH_SINKS.but(softcap=1.0),
        GROUPED.but(sinks=True),
        TILES.but(sinks=True, mask=EMPTY_ROWS),
    ),
    explore=cases(always=(Feature.SINKS,), sometimes=OTHER_OPTIONS, scales=POSITIVE, only=plain),
    cost=3,
)
def law_a_sink_of_minus_infinity_is_no_sink(subject: Subject, case: Case) -> None:
    """ATT-28: sinks of minus infinity, in all heads or in one, take no weight."""
    call = subject.draw(case)
    bare = subject.expect(call.but(sinks=None))
    all_removed = call.but(sinks=torch.full_like(sinks_of(call), -torch.inf))
    check_oracle(
        all_removed, subject.call(all_removed), bare, "a sink of minus infinity takes weight"
    )
    require_evidence(all_removed, bare)
    sinks = sinks_of(call).clone()
    sinks[0] = -torch.inf
    one_removed = call.but(sinks=sinks)
    expected = subject.expect(one_removed)
    check_oracle(
        one_removed,
        subject.call(one_removed),
        expected,
        "the output is wrong if one of several sinks is minus infinity",
    )


@law(
    "ATT-29",
    pinned=(
        TINIEST.but(sinks=True, mask=EMPTY_ROWS),
        *vary(WITH_SINKS.but(mask=EMPTY_ROWS), dtype=DTYPES),
        WITH_SINKS.but(mask=EMPTY_ROWS, is_causal=True),
        WITH_SINKS.but(mask=EMPTY_ROWS, softcap=1.0, alibi=True),
        WITH_SINKS.but(queries=13, keys=4, window=(2, 1)),
        WITH_SINKS.but(queries=13, keys=4, window=(0, 0), dtype=F16),
        GROUPED.but(sinks=True, mask=EMPTY_ROWS),
        TILES.but(sinks=True, mask=EMPTY_ROWS, dtype=F64),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        only=lambda case: plain(case) and (case.mask is not None or case.window is not None),
    ),
    cost=2,
)
def law_an_empty_row_with_a_sink_gives_zeros(subject: Subject, case: Case) -> None:
    """ATT-29: if a query may read nothing, the sink takes all weight, whatever the profile."""
    call = subject.draw(case)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads a key")
    for sinks in (call.sinks, normal_like(case, "low sinks", call.query[0, :, 0, 0]) - 60):
        changed = call.but(sinks=sinks)
        out, expected = subject.call(changed), subject.expect(changed)
        zeros = torch.zeros_like(expected.out)
        message = "a query that reads nothing but a sink does not give zeros"
        check_rows(changed, out, zeros, expected, empty, message)
        check_oracle(changed, out, expected, "a row beside an empty one is wrong")
