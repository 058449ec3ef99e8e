"""Laws of NUM: errors within their bounds that are still too large for chance give a warning."""

from attnspec.conformance.attention.quality import (
    check_quality,
    eligible,
    spread_of_gradients,
    spread_of_output,
)
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.tally import record_figure
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.cases import BF16, F16
from attnspec.conformance.laws.helpers.gradients import differentiate_and_judge, incoming_gradient
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

GENERIC = Case(heads=2, kv_heads=2, queries=65, keys=129, d_head=32, d_value=32, dtype=BF16)
LENGTHS = (63, 64, 65, 127, 129)
GENERIC_CASES = cases(
    families=(Values.NORMAL,),
    lengths=LENGTHS,
    scales=(None,),
    masked=False,
    causal=False,
    grouped=False,
    only=lambda case: case.dtype in (F16, BF16) and min(case.d_head, case.d_value) >= 8,
)


@law(
    "NUM-17",
    pinned=(
        *vary(GENERIC, dtype=(BF16, F16)),
        GENERIC.but(queries=129, keys=65, d_head=64, d_value=64, seed=1),
        GENERIC.but(queries=129, is_causal=True, seed=2),
        GENERIC.but(heads=6, seed=3),
    ),
    explore=GENERIC_CASES,
    cost=8,
)
def law_the_errors_of_the_output_look_random(subject: Subject, case: Case) -> None:
    """NUM-17: on generic inputs, the RMS error is no larger than that of independent roundings."""
    profile = subject.implementation.profile
    if reason := eligible(case, profile):
        raise NotClaimed(reason)
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.judge(call, out, "the error exceeds its bound")
    share = check_quality(out, expected.out, spread_of_output(call, profile), what="the output")
    record_figure("errors of the output, in those of independent roundings", share)


@law(
    "NUM-17",
    pinned=(
        *vary(GENERIC.but(backward=True), dtype=(BF16, F16)),
        GENERIC.but(queries=129, keys=65, d_head=64, d_value=64, seed=1, backward=True),
        GENERIC.but(queries=129, is_causal=True, seed=2, backward=True),
    ),
    explore=lambda subject: GENERIC_CASES(subject).map(lambda case: case.but(backward=True)),
    cost=12,
)
def law_the_errors_of_gradients_look_random(subject: Subject, case: Case) -> None:
    """NUM-17: the RMS error of gradients is no larger than that of independent roundings."""
    profile = subject.implementation.profile
    if reason := eligible(case, profile, backward=True):
        raise NotClaimed(reason)
    call = subject.draw(case)
    grad = incoming_gradient(case)
    gradients, expected = differentiate_and_judge(
        subject, call, grad, ("query", "key", "value"), "the error exceeds its bound"
    )
    for name, spread in spread_of_gradients(call, grad, profile).items():
        exact = getattr(expected, name).exact
        share = check_quality(gradients[name], exact, spread, what=f"the gradient of {name}")
        record_figure("errors of gradients, in those of independent roundings", share)
