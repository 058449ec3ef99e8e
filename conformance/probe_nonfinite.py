"""The experiment on NaN and infinity in keys and values that no query may read."""

import math
from collections.abc import Iterator

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.probe import UNKNOWN, Finding, experiment
from attnspec.conformance.probe_masking import INVERTED, accepted, polarity
from attnspec.conformance.probe_rig import Rig, compare, with_profile
from attnspec.spec import Feature, Mask, MaskedNonfinite, MaskKind, MaskPattern, MaskShape

LONG = 12
"""How many times longer the second sequence is: kernels skip tiles that are hidden as a whole."""


@experiment("hidden NaN and infinity", Feature.MASK, Feature.CAUSAL)
def hidden_nonfinite(rig: Rig) -> Finding:
    """Whether NaN and infinity in the last key and value reach rows that may not read them."""
    question = "hidden NaN and infinity"
    evidence: list[str] = []
    found: set[str] = set()
    for way, call, inverts in _hiding(rig):
        told = []
        for number in (math.nan, math.inf):
            for operand in ("key", "value"):
                answer, one = _poisoned(rig, call, operand, number, inverts=inverts)
                found.add(answer)
                told.append(f"{number} in a {operand}: {one}")
        size = f"{call.query.shape[2]} queries, {call.key.shape[2]} keys"
        evidence.append(f"{way}, {size}: {'; '.join(told)}")
    found.discard("")
    if not found:
        evidence = evidence or ["nothing that it takes hides a key"]
        return Finding(question=question, answer=UNKNOWN, evidence=tuple(evidence))
    if "wrong" in found:
        return Finding(
            question=question,
            answer="changes other values",
            evidence=tuple(evidence),
            deviation="what a query may not read turns its row into other numbers, not NaN",
        )
    every = MaskedNonfinite.PROPAGATES if "propagates" in found else MaskedNonfinite.BLOCKED
    return Finding(
        question=question,
        answer=str(every),
        evidence=tuple(evidence),
        facts={"profile": {"masked_nonfinite": str(every)}},
    )


def _hiding(rig: Rig) -> Iterator[tuple[str, Call, bool]]:
    """Ways to hide the last key from some queries, that are right where all is finite."""
    for factor in (1, LONG):
        length = 6 * factor * rig.unit
        for kind in MaskKind:
            if rig.lacks("attn_mask"):
                break
            small = accepted(rig, kind, MaskPattern.RANDOM)
            if small is None:
                continue
            inverts = False
            if kind is MaskKind.BOOL:
                names = polarity(rig, small).names
                inverts = names == (INVERTED,)
                if not inverts and names != ("right",):
                    continue
            for shape in (MaskShape.FULL, MaskShape.RANK_2, MaskShape.BATCH):
                mask = Mask(kind=kind, pattern=MaskPattern.PADDING, shape=shape)
                call = rig.draw(queries=length, keys=length, mask=mask)
                if rig.ask(call).out is not None:
                    yield f"{kind} mask", call, inverts
                    break
        if not rig.lacks("is_causal"):
            call = rig.draw(queries=length, keys=length, is_causal=True)
            if compare(rig.ask(call), [with_profile("right", rig.meant(call))]).names:
                yield "is_causal", call, False


def _poisoned(
    rig: Rig, call: Call, operand: str, number: float, *, inverts: bool
) -> tuple[str, str]:
    """What becomes of the rows that do not read the last key: a word, and words."""
    tensor = getattr(call, operand).clone()
    tensor[:, :, -1] = number
    poisoned = call.but(**{operand: tensor})
    asked = poisoned
    if inverts and poisoned.attn_mask is not None:
        asked = poisoned.but(attn_mask=~poisoned.attn_mask)
    meant = rig.meant(poisoned)
    ways = [with_profile(str(each), meant, masked_nonfinite=each) for each in MaskedNonfinite]
    last = torch.tensor([call.key.shape[2] - 1])
    verdict = compare(rig.ask(asked), ways, without=last)
    if verdict.problem:
        return "", verdict.problem
    if not verdict.names:
        return "wrong", verdict.told.rpartition("; ")[2]
    return verdict.names[0], "ignored" if verdict.names[0] == "blocked" else "propagates"
