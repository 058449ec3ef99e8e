"""Laws of LEN: gradients of calls whose batch elements have unequal numbers of keys."""

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import BIAS, DTYPES, F16, HIDDEN, OPTIONS
from attnspec.conformance.laws.helpers.gradients import (
    GROUPED,
    SMALL,
    TINIEST,
    check_zero,
    differentiate_and_judge,
    empty_rows_are_zero,
    incoming_gradient,
    require_evidence_of_gradients,
)
from attnspec.conformance.laws.helpers.lengths import has_keys
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, KeyLengths

RAGGED = SMALL.but(key_lengths=KeyLengths.RAGGED)


@law(
    "LEN-7",
    pinned=(
        TINIEST.but(batch=2, key_lengths=KeyLengths.RAGGED),
        *vary(RAGGED, dtype=DTYPES),
        *vary(RAGGED, seed=range(1, 4)),
        RAGGED.but(is_causal=True, keys=15),
        RAGGED.but(mask=HIDDEN, keys=15),
        RAGGED.but(mask=BIAS),
        RAGGED.but(key_lengths=KeyLengths.EMPTY),
        RAGGED.but(window=(3, 0), keys=15, query_offset=True),
        RAGGED.but(softcap=2.0),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, seed=1),
        GROUPED.but(key_lengths=KeyLengths.RAGGED, queries=65, keys=130, dtype=F16),
    ),
    explore=cases(
        always=(Feature.KEY_LENGTHS, Feature.BACKWARD),
        sometimes=(*OPTIONS, Feature.QUERY_OFFSET),
        scales=POSITIVE,
        only=plain,
    ),
    cost=3,
)
def law_keys_beyond_the_length_have_no_gradient(subject: Subject, case: Case) -> None:
    """LEN-7: dK and dV are exactly zero beyond the length, and the other gradients are right."""
    call = subject.draw(case)
    if case.key_lengths is KeyLengths.EMPTY and not empty_rows_are_zero(subject):
        raise NotClaimed("the gradient of an empty row is defined only if the row gives zero")
    grad = incoming_gradient(case)
    message = "the gradient is wrong where batch elements have unequal lengths"
    gradients, expected = differentiate_and_judge(subject, call, grad, WRT, message)
    beyond = ~has_keys(call)
    for name in ("key", "value"):
        where = beyond.expand(gradients[name].shape)
        check_zero(gradients[name], name, where, "a key beyond the length has a gradient")
    require_evidence_of_gradients(expected)
