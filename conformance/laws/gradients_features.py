"""Laws of GRD: gradients through softcap, sinks, window and ALiBi, alone and in pairs."""

import itertools
from typing import Any

import torch

from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import plain, readable
from attnspec.conformance.laws.gradients_sides import (
    BACKWARD,
    DTYPES,
    FEATURES,
    GROUPED,
    LENGTHS,
    SMALL,
    TINIEST,
    check_part,
    evident_gradients,
    expected_of,
    gradients_of,
    incoming,
    judged_gradients,
    zero_empty_rows,
)
from attnspec.conformance.laws.gradients_sums import added
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
BOOL = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"mask": BIAS, "mask_gradient": True},
    {"mask": BOOL},
    {"is_causal": True},
    {"kv_heads": 2},
    {"window": (3, 1)},
    {"softcap": 1.5},
    {"sinks": True},
    {"alibi": True},
    {"scale": 0.7},
)
BASE = SMALL.but(heads=6, kv_heads=6, keys=9)
PAIRS = tuple(
    BASE.but(**one, **two, seed=number)
    for number, (one, two) in enumerate(itertools.combinations(OPTIONS, 2))
    if not one.keys() & two.keys()
)


@law(
    "GRD-18",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=1.0),
        *every(SMALL.but(softcap=2.0), dtype=DTYPES),
        *every(SMALL, softcap=(0.5, 5.0, 50.0)),
        *every(SMALL.but(softcap=2.0), values=(Values.PEAKED, Values.NEGATIVE, Values.TINY)),
        SMALL.but(softcap=1.0, mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=1.0, scale=2.0),
        GROUPED.but(softcap=1.0, is_causal=True),
        SMALL.but(softcap=2.0, queries=17, keys=65),
    ),
    explore=cases(
        always=(*BACKWARD, Feature.SOFTCAP),
        sometimes=(Feature.WINDOW, Feature.SINKS, Feature.ALIBI),
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD, Feature.SOFTCAP},
    cost=3,
)
def law_gradients_go_through_the_softcap(subject: Subject, case: Case) -> None:
    """GRD-18: a softcap multiplies the gradient of a score by 1 - tanh², and not that of a bias."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    message = "wrong with a softcap"
    _, expected = judged_gradients(subject, call, incoming(case), wrt, message)
    evident_gradients(expected, wrt)


@law(
    "GRD-19",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True),
        *every(SMALL.but(sinks=True), dtype=DTYPES),
        *every(SMALL.but(sinks=True), seed=range(1, 4)),
        GROUPED.but(sinks=True, is_causal=True),
        SMALL.but(sinks=True, mask=BIAS, mask_gradient=True),
        SMALL.but(sinks=True, softcap=2.0),
        SMALL.but(sinks=True, queries=17, keys=65),
        SMALL.but(sinks=True, queries=65, keys=17),
    ),
    explore=cases(
        always=(*BACKWARD, Feature.SINKS),
        sometimes=(Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI),
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD, Feature.SINKS},
    cost=4,
)
def law_sinks_take_their_share_of_gradients(subject: Subject, case: Case) -> None:
    """GRD-19: a sink takes weight, so that Σ dV is what came in, less the sink's share."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    grad = incoming(case)
    found, expected = judged_gradients(subject, call, grad, wrt, "wrong with sinks")
    if call.sinks is None:
        raise ValueError("the law of sinks needs a case with sinks")
    # a weight that the oracle has rounded: a few units of float64 of one at most
    kept = -torch.expm1(call.sinks.double()[None, :, None] - subject.expect(call).lse)
    shape = (case.batch, case.kv_heads, -1, case.d_value)
    given, rounding = added((kept[..., None] * grad.double()).reshape(shape), 2)
    if not bool(subject.expect(call).lse_bound.isfinite().all()):
        raise NotClaimed("the scores are out of range")
    total, own = added(found["value"].double(), 2)
    value = expected_of(expected, "value")
    size = grad.double().abs().reshape(shape).sum(2, keepdim=True)
    logs = 2 + subject.expect(call).lse.abs().max() if case.queries else 2
    bound = value.bound.sum(2, keepdim=True) + own + rounding
    bound = bound + 2.0**-52 * (case.keys + 64) * logs * size
    message = "the gradients of the values do not add up to what came in less the sink's share"
    check_part(total, "value", given, bound, message)


@law(
    "GRD-20",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(window=(0, 1)),
        TINIEST.but(alibi=True),
        *every(SMALL.but(window=(2, 1)), dtype=DTYPES),
        *every(SMALL.but(alibi=True), dtype=DTYPES),
        *every(SMALL, window=((1, 0), (0, None), (None, 2), (0, 0))),
        SMALL.but(window=(2, 0), is_causal=True, alibi=True),
        GROUPED.but(alibi=True),
        GROUPED.but(window=(3, 3)),
        SMALL.but(alibi=True, mask=BIAS, mask_gradient=True),
        SMALL.but(alibi=True, queries=17, keys=65),
        SMALL.but(window=(16, 0), queries=65, keys=65),
        SMALL.but(window=(3, 2), queries=65, keys=70),
    ),
    explore=cases(
        always=(*BACKWARD, Feature.WINDOW, Feature.ALIBI),
        sometimes=(Feature.SOFTCAP, Feature.SINKS),
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_gradients_go_through_windows_and_slopes(subject: Subject, case: Case) -> None:
    """GRD-20: windows and ALiBi are felt in gradients through the weights, and not otherwise."""
    call = subject.draw(case, backward=True)
    if call.window is None and call.alibi_slopes is None:
        raise NotClaimed("neither a window nor slopes are claimed")
    if not (zero_empty_rows(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row that is not zero is not said")
    wrt = gradients_of(subject, case)
    message = "wrong with a window or slopes"
    judged_gradients(subject, call, incoming(case), wrt, message)


@law(
    "GRD-21",
    judges=Judged.ATTENTION,
    pinned=PAIRS,
    explore=cases(always=(*BACKWARD, *FEATURES), lengths=(1, 2, 5, 9, 17, 33), only=plain),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_options_meet_in_the_gradients(subject: Subject, case: Case) -> None:
    """GRD-21: gradients are right where any two options of a call meet."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    judged_gradients(subject, call, incoming(case), wrt, "wrong where options meet")
