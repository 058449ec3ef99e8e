"""Laws of ATT, options: a sink takes weight from the keys and has no value."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_oracle,
    check_target,
    drawn,
    evident,
    per_head,
    plain,
    readable,
)
from attnspec.conformance.laws.masking_sides import check_rows
from attnspec.conformance.laws.options_sides import (
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
    sinks_of,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Mask, MaskShape, Values

OTHERS = (Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI)
SUNK = SMALL.but(sinks=True)


@law(
    "ATT-26",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True),
        *every(SUNK, dtype=DTYPES),
        *every(SUNK.but(keys=17), values=Values),
        *every(SUNK, mask=(HIDDEN, BIAS)),
        SUNK.but(is_causal=True),
        SUNK.but(window=(2, 1)),
        *(
            SUNK.but(values=Values.PEAKED, **{name: value})
            for name, value in (("softcap", 1.0), ("alibi", True))
        ),
        GROUPED.but(sinks=True, values=Values.PEAKED),
        TILES.but(sinks=True, values=Values.GROWING, queries=17),
        TILES.but(sinks=True, dtype=BF16, keys=129, queries=5),
    ),
    explore=cases(always=(Feature.SINKS,), sometimes=OTHERS, only=plain),
    needs={Feature.SINKS},
    cost=3,
)
def law_sinks_join_the_denominator(subject: Subject, case: Case) -> None:
    """ATT-26: a sink is one more exponential under the fraction; values of one show what is left.

    The output of values of one is the weight that the keys keep, one less that of the sink.
    """
    call = subject.draw(case)
    expected = subject.judge(call, subject.call(call), "the output is not that beside a sink")
    evident(call, expected)
    ones = call.but(value=torch.ones_like(call.value))
    kept = _without_sink(subject, call)
    target = torch.where(kept.isnan(), torch.nan, kept)[..., None].expand(expected.out.shape)
    check_target(subject, ones, target, "the keys do not keep what the sink leaves them")


def _without_sink(subject: Subject, call: Call) -> torch.Tensor:
    """The weight of all keys together: a logistic function of log-sum-exp less sink."""
    bare = subject.expect(call.but(sinks=None), with_bound=False).lse
    return torch.sigmoid(bare - sinks_of(call).double()[:, None])


@law(
    "ATT-26",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True),
        *every(SUNK, dtype=DTYPES),
        *every(SUNK, keys=(1, 2, 16, 17)),
        SUNK.but(scale=2.0),
        SUNK.but(mask=HIDDEN),
        SUNK.but(is_causal=True),
        SUNK.but(window=(2, 1)),
        SUNK.but(softcap=0.5),
        GROUPED.but(sinks=True),
        TILES.but(sinks=True),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP),
        patterns=UNBIASED,
        scales=POSITIVE,
    ),
    needs={Feature.SINKS},
    cost=2,
)
def law_a_sink_takes_weight_and_has_no_value(subject: Subject, case: Case) -> None:
    """ATT-26: beside a sink z, a query of zeros gives the sum of its n values over n + e^z."""
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    visible = readable(subject, call).double()
    total = visible.sum(-1, keepdim=True) + sinks_of(call).double().exp()[:, None, None]
    target = visible @ per_head(call.value.double(), case.heads) / total
    check_target(subject, call, target, "a sink does not count as e^z of keys without value")


@law(
    "ATT-27",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(heads=2, kv_heads=2, sinks=True),
        TINIEST.but(heads=4, kv_heads=2, sinks=True),
        *every(SUNK, dtype=DTYPES),
        GROUPED.but(sinks=True),
        GROUPED.but(sinks=True, kv_heads=3, dtype=BF16),
        GROUPED.but(sinks=True, kv_heads=1),
        TILES.but(sinks=True, heads=2, kv_heads=2),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.heads > 1,
    ),
    needs={Feature.SINKS},
    cost=4,
)
def law_each_query_head_has_a_sink_of_its_own(subject: Subject, case: Case) -> None:
    """ATT-27: the sink of one query head moves that head, and no other of its group."""
    call = subject.draw(case)
    for head in sorted({0, case.heads - 1, case.heads // 2}):
        sinks = sinks_of(call).clone()
        sinks[head] += 4
        changed = call.but(sinks=sinks)
        out, expected = subject.call(changed), subject.expect(changed)
        target = subject.expect(call, with_bound=False).out.clone()
        alike = call.but(sinks=sinks[head].expand_as(sinks).contiguous())
        target[:, head] = subject.expect(alike, with_bound=False).out[:, head]
        everything = torch.ones(out.shape[:3], dtype=torch.bool, device=out.device)
        message = f"the sink of head {head} does not move head {head} alone"
        check_rows(changed, out, target, expected, everything, message)
        evident(changed, expected)


@law(
    "ATT-28",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True),
        TINIEST.but(sinks=True, mask=EMPTY_ROWS),
        *every(SUNK, dtype=DTYPES),
        *every(SUNK, values=(Values.NEGATIVE, Values.GROWING, Values.OFFSET)),
        *every(SUNK, mask=(HIDDEN, BIAS, EMPTY_ROWS)),
        SUNK.but(mask=Mask(shape=MaskShape.RANK_2), is_causal=True),
        SUNK.but(softcap=1.0),
        GROUPED.but(sinks=True),
        TILES.but(sinks=True, mask=EMPTY_ROWS),
    ),
    explore=cases(always=(Feature.SINKS,), sometimes=OTHERS, scales=POSITIVE, only=plain),
    needs={Feature.SINKS},
    cost=3,
)
def law_a_sink_of_minus_infinity_is_no_sink(subject: Subject, case: Case) -> None:
    """ATT-28: with sinks of minus infinity, in all heads or in one, nothing is taken there."""
    call = subject.draw(case)
    bare = subject.expect(call.but(sinks=None))
    none = call.but(sinks=torch.full_like(sinks_of(call), -torch.inf))
    check_oracle(none, subject.call(none), bare, "a sink of minus infinity takes weight")
    evident(none, bare)
    some = sinks_of(call).clone()
    some[0] = -torch.inf
    one = call.but(sinks=some)
    mixed = subject.expect(one)
    check_oracle(one, subject.call(one), mixed, "a sink of minus infinity beside others is wrong")


@law(
    "ATT-29",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True, mask=EMPTY_ROWS),
        *every(SUNK.but(mask=EMPTY_ROWS), dtype=DTYPES),
        SUNK.but(mask=EMPTY_ROWS, is_causal=True),
        SUNK.but(mask=EMPTY_ROWS, softcap=1.0, alibi=True),
        SUNK.but(queries=13, keys=4, window=(2, 1)),
        SUNK.but(queries=13, keys=4, window=(0, 0), dtype=F16),
        GROUPED.but(sinks=True, mask=EMPTY_ROWS),
        TILES.but(sinks=True, mask=EMPTY_ROWS, dtype=F64),
    ),
    explore=cases(
        always=(Feature.SINKS,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: plain(case) and (case.mask is not None or case.window is not None),
    ),
    needs={Feature.SINKS},
    cost=2,
)
def law_an_empty_row_with_a_sink_gives_zeros(subject: Subject, case: Case) -> None:
    """ATT-29: where a query may read nothing, the sink takes all weight, whatever the profile."""
    call = subject.draw(case)
    empty = ~readable(subject, call).any(-1)
    if not bool(empty.any()):
        raise NotClaimed("every query reads a key")
    for sinks in (call.sinks, drawn(case, "low sinks", call.query[0, :, 0, 0]) - 60):
        given = call.but(sinks=sinks)
        out, expected = subject.call(given), subject.expect(given)
        zeros = torch.zeros_like(expected.out)
        message = "a query that reads nothing but a sink does not give zeros"
        check_rows(given, out, zeros, expected, empty, message)
        check_oracle(given, out, expected, "a row beside an empty one is wrong")
