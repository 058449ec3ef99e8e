"""The experiment on NaN and infinity in hidden keys and values."""

import math
from collections.abc import Iterator

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.probe.experiment import Finding, inconclusive
from attnspec.conformance.probe.harness import Harness, compare, with_profile
from attnspec.conformance.probe.options import BOOL_MASK, INVERTED, masked
from attnspec.spec import MaskedNonfinite, MaskKind, MaskPattern

LONG = 12
"""Factor by which the second sequence is longer: kernels skip tiles that are wholly hidden."""


def hidden_nonfinite(harness: Harness) -> Finding:
    """Find out whether NaN and infinity in a hidden key and value affect the result."""
    evidence: list[str] = []
    effects: dict[str, set[str]] = {"key": set(), "value": set()}
    for option, call, inverts in _hiding(harness):
        details = []
        for number in (math.nan, math.inf):
            for operand in ("key", "value"):
                effect, message = _poisoned(harness, call, operand, number, inverts=inverts)
                effects[operand].add(effect)
                details.append(f"{number} in a {operand}: {message}")
        size = f"{call.query.shape[2]} queries, {call.key.shape[2]} keys"
        evidence.append(f"{option}, {size}: {'; '.join(details)}")
    found = {operand: each - {""} for operand, each in effects.items()}
    if not all(found.values()):
        return inconclusive(*(evidence or ["no call that it accepts hides a key"]))
    answers = {
        f"masked_{operand}s": str(
            MaskedNonfinite.PROPAGATES if "propagates" in each else MaskedNonfinite.BLOCKED
        )
        for operand, each in found.items()
        if "wrong" not in each
    }
    if len(answers) < len(found):
        return Finding(
            answer="changes other values",
            evidence=tuple(evidence),
            deviation="NaN or infinity at a hidden key turns a row into other numbers, not NaN",
            facts={"profile": answers},
        )
    keys, values = answers.values()
    return Finding(
        answer=keys if keys == values else f"keys: {keys}, values: {values}",
        evidence=tuple(evidence),
        facts={"profile": answers},
    )


def _hiding(harness: Harness) -> Iterator[tuple[str, Call, bool]]:
    """Yield calls that hide the last key from some queries and are right on finite inputs.

    Each comes with the option that hides the key, and true if the target inverts bool masks.
    """
    for factor in (1, LONG):
        length = 6 * factor * harness.unit
        for kind in MaskKind:
            if harness.missing_parameter("attn_mask"):
                break
            plain = masked(kind, MaskPattern.RANDOM).accepted(harness)
            if plain is None:
                continue
            inverts = False
            if kind is MaskKind.BOOL:
                names = BOOL_MASK.compare(harness, plain).names
                inverts = names == (INVERTED,)
                if not inverts and names != ("right",):
                    continue
            padded = masked(kind, MaskPattern.PADDING)
            call = padded.accepted(harness, queries=length, keys=length)
            if call is not None:
                yield f"{kind} mask", call, inverts
        if not harness.missing_parameter("is_causal"):
            call = harness.draw(queries=length, keys=length, is_causal=True)
            if compare(harness.run(call), [with_profile("right", harness.oracle_call(call))]).names:
                yield "is_causal", call, False


def _poisoned(
    harness: Harness, call: Call, operand: str, number: float, *, inverts: bool
) -> tuple[str, str]:
    """Return the effect of a number in the last key or value on rows that may not read it.

    Returns:
        The effect, empty if there is no valid output, and a description.
    """
    tensor = getattr(call, operand).clone()
    tensor[:, :, -1] = number
    poisoned = call.but(**{operand: tensor})
    passed = poisoned
    if inverts and poisoned.attn_mask is not None:
        passed = poisoned.but(attn_mask=~poisoned.attn_mask)
    oracle_call = harness.oracle_call(poisoned)
    conventions = [
        with_profile(str(effect), oracle_call, masked_keys=effect, masked_values=effect)
        for effect in MaskedNonfinite
    ]
    last = torch.tensor([call.key.shape[2] - 1])
    verdict = compare(harness.run(passed), conventions, without=last)
    if verdict.problem:
        return "", verdict.problem
    if not verdict.names:
        return "wrong", verdict.message.rpartition("; ")[2]
    return verdict.names[0], "ignored" if verdict.names[0] == "blocked" else "propagates"
