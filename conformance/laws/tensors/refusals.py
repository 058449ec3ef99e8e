"""The law of TEN-5 on refused calls: one that raises leaves nothing behind."""

from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.invalid import (
    INVALID_PROBABILITIES,
    INVALID_SOFTCAPS,
    INVALID_WINDOWS,
    misshapen,
    unequal_lengths,
)
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_equal
from attnspec.conformance.comparison.violation import NotClaimed, Raised
from attnspec.conformance.laws.helpers.cases import BF16, SMALL, TINIEST
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.results import ADDED, GROUPED, MASKED, SQUARE
from attnspec.spec import Case, Feature


@law(
    "TEN-5",
    pinned=(
        TINIEST,
        SQUARE.but(is_causal=True),
        SMALL.but(scale=0.5, dtype=BF16),
        MASKED,
        ADDED,
        GROUPED,
        SMALL.but(queries=1, keys=1101),
    ),
    cost=8,
)
def law_a_refused_call_leaves_no_trace(subject: Subject, case: Case) -> None:
    """TEN-5: after a call that raises, the next call gives the result of its own arguments."""
    call = subject.draw(case)
    expected = subject.expect(call)
    first = subject.call(call)
    check_oracle(call, first, expected, "the output is wrong in the first call")
    refused = False
    for name, other in calls_to_refuse(subject, case).items():
        try:
            subject.run_improper(other)
        except Raised:
            refused = True
        else:
            continue  # other laws require that it is refused
        again = subject.call(call)
        check_oracle(call, again, expected, f"the output is wrong after {name} was refused")
        if subject.implementation.profile.deterministic:
            message = f"an equal call gives other bits after {name} was refused"
            check_equal(again, first, what="out", message=message)
    if not refused:
        raise NotClaimed("no call is refused")


def calls_to_refuse(subject: Subject, case: Case) -> dict[str, Call]:
    """Return calls that a subject should refuse, by the reason in words.

    They have the sizes of the case, and other contents, another scale and another causal flag if
    these are claimed, so that the result of a later call shows what is left of them.
    """
    case = case.but(seed=case.seed + 1)
    scale = 0.25 if case.scale is None else case.scale / 2
    for change in ({"scale": scale}, {"is_causal": not case.is_causal}):
        if subject.refuses(case.but(**change)) is None:
            case = case.but(**change)
    call = subject.draw(case)
    calls: dict[str, Call] = {}
    if subject.claims(Feature.VALIDATES):
        calls |= unequal_lengths(call) | misshapen(call)
    for feature, (valid, invalid) in _options(case).items():
        name = str(feature)
        if not subject.claims(feature):
            # a dropout that is not refused would draw random numbers
            if feature is not Feature.DROPOUT:
                calls[f"{name}, which is not claimed,"] = call.but(**valid)
        elif invalid and subject.claims(Feature.VALIDATES):
            calls[f"an invalid {name}"] = call.but(**invalid)
    return calls


def _options(case: Case) -> dict[Feature, tuple[dict[str, Any], dict[str, Any]]]:
    """Return a valid and an invalid value of each option, by its feature; {} if none is invalid."""
    per_head = torch.ones(case.heads, device=case.device)
    return {
        Feature.WINDOW: ({"window": (1, 0)}, {"window": INVALID_WINDOWS[0]}),
        Feature.SOFTCAP: ({"softcap": 1.0}, {"softcap": INVALID_SOFTCAPS[1]}),
        Feature.SINKS: ({"sinks": per_head.to(case.dtype)}, {}),
        Feature.ALIBI: ({"alibi_slopes": per_head}, {}),
        Feature.LSE: ({"return_lse": True}, {}),
        Feature.DROPOUT: ({"dropout_p": 0.5}, {"dropout_p": INVALID_PROBABILITIES[1]}),
    }
