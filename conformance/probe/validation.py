"""The experiment on invalid arguments: calls that a function should refuse."""

from collections.abc import Iterator

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.invalid import (
    INVALID_PROBABILITIES,
    INVALID_SOFTCAPS,
    INVALID_WINDOWS,
    misshapen,
    unequal_lengths,
)
from attnspec.conformance.probe.experiment import Finding
from attnspec.conformance.probe.harness import Harness
from attnspec.spec import Feature, Mask, MaskKind, MaskShape

SHOWN = 3
"""Accepted calls that the evidence names."""


def validation(harness: Harness) -> Finding:
    """Find out whether invalid arguments are refused."""
    tried, accepted = 0, []
    for problem, call in _invalid_calls(harness):
        tried += 1
        if not harness.run(call).is_refusal:
            accepted.append(problem)
    if accepted:
        more = f" and {len(accepted) - SHOWN} more" if len(accepted) > SHOWN else ""
        names = ", ".join(accepted[:SHOWN])
        return Finding(
            answer="accepted",
            evidence=(f"{len(accepted)} of {tried} invalid calls are accepted: {names}{more}",),
        )
    return Finding(
        answer="refused",
        evidence=(f"{tried} invalid calls are all refused",),
        facts={"features": [str(Feature.VALIDATES)]},
    )


def _invalid_calls(harness: Harness) -> Iterator[tuple[str, Call]]:
    """Yield calls with an invalid argument, each with the mistake in words."""
    plain = harness.case(heads=3, kv_heads=3)
    call = draw(plain)
    yield from misshapen(call).items()
    yield from unequal_lengths(call).items()
    if not harness.missing_parameter("attn_mask"):
        for kind in MaskKind:
            masked = draw(plain.but(mask=Mask(kind=kind, shape=MaskShape.FULL)))
            yield from ((f"{kind}: {name}", wrong) for name, wrong in misshapen(masked).items())
    values = {
        "softcap": INVALID_SOFTCAPS,
        "window": INVALID_WINDOWS,
        "dropout_p": INVALID_PROBABILITIES,
    }
    for name, invalid in values.items():
        if not harness.missing_parameter(name):
            yield from ((f"{name}={value}", call.but(**{name: value})) for value in invalid)
