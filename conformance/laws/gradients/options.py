"""Laws of GRD: gradients through softcap, sinks, window and ALiBi, alone and in pairs."""

import itertools
from typing import Any

import torch

from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.gradients.sums import sum_with_error
from attnspec.conformance.laws.helpers.calls import in_groups, plain, readable
from attnspec.conformance.laws.helpers.cases import DTYPES, HIDDEN, LENGTHS, OPTIONS
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    BIAS,
    GROUPED,
    SMALL,
    TINIEST,
    check_gradient,
    differentiate_and_judge,
    empty_rows_are_zero,
    expected_gradient,
    incoming_gradient,
    operands_with_gradient,
    require_evidence_of_gradients,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Values

OPTION_VALUES: tuple[dict[str, Any], ...] = (
    {"mask": BIAS, "mask_gradient": True},
    {"mask": HIDDEN},
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
    for number, (one, two) in enumerate(itertools.combinations(OPTION_VALUES, 2))
    if not one.keys() & two.keys()
)


@law(
    "GRD-18",
    pinned=(
        TINIEST.but(softcap=1.0),
        *vary(SMALL.but(softcap=2.0), dtype=DTYPES),
        *vary(SMALL, softcap=(0.5, 5.0, 50.0)),
        *vary(SMALL.but(softcap=2.0), values=(Values.PEAKED, Values.NEGATIVE, Values.TINY)),
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
    cost=3,
)
def law_gradients_go_through_the_softcap(subject: Subject, case: Case) -> None:
    """GRD-18: a softcap multiplies the gradient of a score by 1 - tanh², and not that of a bias.

    It multiplies that of a bias too if the profile says that it comes after the bias.
    """
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    message = "the gradient is wrong with a softcap"
    _, expected = differentiate_and_judge(subject, call, incoming_gradient(case), wrt, message)
    require_evidence_of_gradients(expected, wrt)


@law(
    "GRD-19",
    pinned=(
        TINIEST.but(sinks=True),
        *vary(SMALL.but(sinks=True), dtype=DTYPES),
        *vary(SMALL.but(sinks=True), seed=range(1, 4)),
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
    cost=4,
)
def law_gradients_account_for_sinks(subject: Subject, case: Case) -> None:
    """GRD-19: a sink takes weight, so that Σ dV is Σ dO less the sink's share."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    grad = incoming_gradient(case)
    gradients, expected = differentiate_and_judge(
        subject, call, grad, wrt, "the gradient is wrong with sinks"
    )
    if call.sinks is None:
        raise ValueError("the law of sinks needs a case with sinks")
    # the oracle has rounded this weight: its error is a few float64 units of one at most
    weight_of_keys = -torch.expm1(call.sinks.double()[None, :, None] - subject.expect(call).lse)

    def by_group(tensor: torch.Tensor) -> torch.Tensor:
        return in_groups(subject, tensor, case.kv_heads).flatten(2, 3)

    incoming, incoming_error = sum_with_error(
        by_group(weight_of_keys[..., None] * grad.double()), 2
    )
    if not bool(subject.expect(call).lse_bound.isfinite().all()):
        raise NotClaimed("the scores are out of range")
    total, error = sum_with_error(gradients["value"].double(), 2)
    value = expected_gradient(expected, "value")
    size = by_group(grad.double().abs()).sum(2, keepdim=True)
    logs = 2 + subject.expect(call).lse.abs().max() if case.queries else 2
    bound = value.bound.sum(2, keepdim=True) + error + incoming_error
    bound = bound + 2.0**-52 * (case.keys + 64) * logs * size
    message = "the gradients of the values do not add up to the incoming one less the sink's share"
    check_gradient(total, "value", incoming, bound, message)


@law(
    "GRD-20",
    pinned=(
        TINIEST.but(window=(0, 1)),
        TINIEST.but(alibi=True),
        *vary(SMALL.but(window=(2, 1)), dtype=DTYPES),
        *vary(SMALL.but(alibi=True), dtype=DTYPES),
        *vary(SMALL, window=((1, 0), (0, None), (None, 2), (0, 0))),
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
    cost=3,
)
def law_gradients_go_through_windows_and_slopes(subject: Subject, case: Case) -> None:
    """GRD-20: windows and ALiBi change gradients through the weights, and not otherwise."""
    call = subject.draw(case, backward=True)
    if call.window is None and call.alibi_slopes is None:
        raise NotClaimed("neither a window nor slopes are claimed")
    if not (empty_rows_are_zero(subject) or bool(readable(subject, call).any(-1).all())):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    wrt = operands_with_gradient(subject, case)
    message = "the gradient is wrong with a window or slopes"
    differentiate_and_judge(subject, call, incoming_gradient(case), wrt, message)


@law(
    "GRD-21",
    pinned=PAIRS,
    explore=cases(always=(*BACKWARD, *OPTIONS), lengths=(1, 2, 5, 9, 17, 33), only=plain),
    cost=3,
)
def law_gradients_are_right_with_options_combined(subject: Subject, case: Case) -> None:
    """GRD-21: gradients are right if any two options of a call are combined."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    differentiate_and_judge(
        subject, call, incoming_gradient(case), wrt, "the gradient is wrong if options are combined"
    )
