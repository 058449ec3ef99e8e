"""Laws of NUM: errors within their bounds that look like a mistake all the same give a warning."""

import torch

from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.gradients_sides import incoming, judged_gradients
from attnspec.conformance.quality import (
    check_quality,
    eligible,
    spread_of_gradients,
    spread_of_output,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed, figure
from attnspec.spec import Case, Feature, Values

F16, BF16 = torch.float16, torch.bfloat16
GENERIC = Case(heads=2, kv_heads=2, queries=65, keys=129, d_head=32, d_value=32, dtype=BF16)
LENGTHS = (63, 64, 65, 127, 129)
MORE = cases(
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
    judges=Judged.ATTENTION,
    pinned=(
        *every(GENERIC, dtype=(BF16, F16)),
        GENERIC.but(queries=129, keys=65, d_head=64, d_value=64, seed=1),
        GENERIC.but(queries=129, is_causal=True, seed=2),
        GENERIC.but(heads=6, seed=3),
    ),
    explore=MORE,
    cost=8,
)
def law_the_errors_of_the_output_look_random(subject: Subject, case: Case) -> None:
    """NUM-17: on generic inputs errors are no larger, all together, than chance makes them."""
    profile = subject.implementation.profile
    if reason := eligible(case, profile):
        raise NotClaimed(reason)
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.judge(call, out, "not within the bound")
    share = check_quality(out, expected.out, spread_of_output(call, profile), what="the output")
    figure("errors of the output, in those of independent roundings", share)


@law(
    "NUM-17",
    judges=Judged.ATTENTION,
    pinned=(
        *every(GENERIC.but(backward=True), dtype=(BF16, F16)),
        GENERIC.but(queries=129, keys=65, d_head=64, d_value=64, seed=1, backward=True),
        GENERIC.but(queries=129, is_causal=True, seed=2, backward=True),
    ),
    explore=lambda subject: MORE(subject).map(lambda case: case.but(backward=True)),
    needs={Feature.BACKWARD},
    cost=12,
)
def law_the_errors_of_gradients_look_random(subject: Subject, case: Case) -> None:
    """NUM-17: likewise the errors of the gradients of queries, keys and values."""
    profile = subject.implementation.profile
    if reason := eligible(case, profile, backward=True):
        raise NotClaimed(reason)
    call = subject.draw(case)
    grad = incoming(case)
    found, expected = judged_gradients(
        subject, call, grad, ("query", "key", "value"), "not within the bound"
    )
    for name, spread in spread_of_gradients(call, grad, profile).items():
        exact = getattr(expected, name).exact
        share = check_quality(found[name], exact, spread, what=f"the gradient of {name}")
        figure("errors of gradients, in those of independent roundings", share)
