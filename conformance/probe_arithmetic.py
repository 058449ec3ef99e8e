"""Experiments on numbers: storage types, scale, rounding, and equal bits where they are due."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.inputs import draw
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.probe import UNKNOWN, Finding, experiment
from attnspec.conformance.probe_rig import (
    LOOSEST,
    SCALES,
    Answer,
    Reading,
    Rig,
    distance,
    in_words,
    readings,
    type_in_words,
)
from attnspec.conformance.probe_training import gradients, incoming
from attnspec.conformance.violation import Violation
from attnspec.spec import (
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Rounding,
    RoundingLevel,
    Values,
)

HARD = (
    (Values.NORMAL, 1, 0),
    (Values.PEAKED, 1, 0),
    (Values.PEAKED, 7, 1),
    (Values.NEGATIVE, 1, 0),
    (Values.GROWING, 7, 0),
    (Values.OFFSET, 1, 0),
    (Values.OFFSET, 7, 1),
    (Values.CANCELLATION, 1, 0),
    (Values.CANCELLATION, 7, 1),
)
"""Families of values, how many times the smallest length, and the seed."""


LEAN = 48.0
"""A bias common to all keys, which the softmax must not feel."""

MANY = 42
"""Keys, in units of lengths, whose weights round alike: one weight of 1 beside them is little."""

NEARLY = 0.04
"""How far beside the middle of two numbers a weight lies, in units of its rounding error."""


@experiment("storage types")
def storage_types(rig: Rig) -> Finding:
    """Which storage types it takes and answers rightly."""
    _ = rig.base
    evidence, right, wrong = [], [], []
    for dtype in rig.dtypes:
        call = draw(rig.case(dtype=dtype))
        verdict = rig.read(call, readings(rig.meant(call)))
        evidence.append(verdict.told)
        if verdict.names:
            right.append(type_in_words(dtype))
        elif not verdict.is_refusal:
            wrong.append(type_in_words(dtype))
    return Finding(
        question="storage types",
        answer=", ".join(right) or "none is right",
        evidence=tuple(evidence),
        deviation=f"accepted and answered wrongly: {', '.join(wrong)}" if wrong else "",
        facts={"dtypes": right},
    )


@experiment("default scale")
def default_scale(rig: Rig) -> Finding:
    """What scores are multiplied by where no scale is given, and whether a given one is."""
    verdict, contract = rig.scales, next(iter(SCALES))
    evidence, facts = [verdict.told], {}
    missing = rig.lacks("scale")
    if missing:
        evidence.append(missing)
        facts["supports"] = [["case.scale is not None", missing]]
    else:
        call = rig.draw(scale=0.37)
        given = rig.read(call, readings(call, ignored=rig.meant(call.but(scale=None))))
        evidence.append(given.told)
        if given.is_refusal:
            facts["supports"] = [["case.scale is not None", given.problem]]
        elif given.names[:1] != ("right",):
            told = " or ".join(given.names) or given.problem or "wrong"
            return Finding(
                question="default scale",
                answer=" or ".join(verdict.names) or UNKNOWN,
                evidence=tuple(evidence),
                deviation=f"a scale that is given: {told}",
            )
    if not verdict.names:
        return Finding(
            question="default scale", answer=UNKNOWN, evidence=tuple(evidence), facts=facts
        )
    told = " or ".join(verdict.names)
    deviation = "" if contract in verdict.names else f"the default scale is {told}, not {contract}"
    if deviation:
        facts["supports"] = [*facts.get("supports", []), ["case.scale is None", deviation]]
    return Finding(
        question="default scale",
        answer=told,
        evidence=tuple(evidence),
        deviation=deviation,
        facts=facts,
    )


@experiment("rounding")
def rounding(rig: Rig) -> Finding:
    """The narrowest level under which every hard input stays within its bound."""
    answers = list(_hard(rig))
    if not answers:
        told = "no hard input is answered in any storage type"
        return Finding(question="rounding", answer=UNKNOWN, evidence=(told,))
    handed = list(_handed_back(rig))
    evidence, size = [], f"{len(answers)} hard calls, {len(handed)} backward"
    types = ", ".join(dict.fromkeys(type_in_words(each.call.value.dtype) for each in answers))
    for level in RoundingLevel:
        outside = _outside(rig, level, answers, handed)
        if not outside:
            evidence.append(f"{size}, {types}: all within the bound of level {level}")
            return Finding(
                question="rounding",
                answer=str(level),
                evidence=tuple(evidence),
                facts={"profile": {"rounding": str(level)}},
            )
        evidence.append(f"level {level}: {len(outside)} outside; {outside[0]}")
    return Finding(
        question="rounding",
        answer="outside every level",
        evidence=tuple(evidence),
        deviation="more is rounded, or more coarsely, than any level lets it be",
    )


def _narrow(rig: Rig) -> list[torch.dtype]:
    """The types in which levels differ most, as far as they are taken."""
    taken = [each for each in rig.dtypes if rig.ask(draw(rig.case(dtype=each))).out is not None]
    return [each for each in taken if torch.finfo(each).bits == 16] or taken[-1:]


def _hard(rig: Rig) -> Iterator[Answer]:
    """Answers to calls that tell the levels apart."""
    _ = rig.base
    for dtype in _narrow(rig):
        for values, times, seed in HARD:
            length = 6 * times * rig.unit
            call = rig.draw(dtype=dtype, values=values, seed=seed, queries=length, keys=length)
            answer = rig.ask(call)
            if answer.out is not None:
                yield answer
        bias = _bias(rig, dtype)
        if bias is not None:
            yield from _leaning(rig, dtype, bias)
            yield from _summed(rig, dtype, bias)


def _leaning(rig: Rig, dtype: torch.dtype, bias: Mask) -> Iterator[Answer]:
    """A bias that is large and nearly the same for all keys.

    What it loses in a narrow type is more than any other step may lose.
    """
    for seed in range(2):
        call = rig.draw(dtype=dtype, mask=bias, seed=seed)
        assert call.attn_mask is not None
        answer = rig.ask(call.but(attn_mask=call.attn_mask + LEAN))
        if answer.out is not None:
            yield answer


def _summed(rig: Rig, dtype: torch.dtype, bias: Mask) -> Iterator[Answer]:
    """Weights that round down, but for the one whose value is read: their sum then errs as far.

    Nearly all of a score is said by the mask, so that rounded queries lose nothing.
    """
    call = rig.draw(dtype=dtype, mask=bias, keys=MANY * rig.unit)
    assert call.attn_mask is not None
    scale = rig.meant(call).scale
    if not scale or call.query.shape[3] < 2:
        return
    u = torch.finfo(dtype).eps / 2
    # the first is the largest; halves are where a rounding is largest against its number
    weights = torch.full((call.key.shape[2],), 0.5 * (1 + (1 - NEARLY) * u))
    weights = weights.double().to(call.key.device)
    weights[:2] = torch.tensor([1.0, 0.5 * (1 + (1 + NEARLY) * u)])
    said = weights.log().to(dtype)
    rest = (weights.log() - said.double()) / scale
    query, key, value = (torch.zeros_like(x) for x in (call.query, call.key, call.value))
    query[..., :2] = 1
    key[..., 0] = rest.to(dtype)
    key[..., 1] = (rest - rest.to(dtype).double()).to(dtype)
    value[:, :, 1] = torch.linspace(1, 2, value.shape[3]).to(value)
    mask = said.expand_as(call.attn_mask)
    answer = rig.ask(call.but(query=query, key=key, value=value, attn_mask=mask))
    if answer.out is not None:
        yield answer


def _bias(rig: Rig, dtype: torch.dtype) -> Mask | None:
    """A float mask that hides nothing, where such a mask is taken and added."""
    if rig.lacks("attn_mask"):
        return None
    bias = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
    easy = rig.draw(dtype=dtype, mask=bias)
    return bias if rig.read(easy, readings(rig.meant(easy))).names else None


def _handed_back(
    rig: Rig,
) -> Iterator[tuple[Call, torch.Tensor, dict[str, torch.Tensor]]]:
    """Gradients of such calls, where there are any."""
    for dtype in _narrow(rig):
        for values in (Values.NORMAL, Values.PEAKED):
            call = rig.draw(dtype=dtype, values=values)
            grad_out = incoming(call)
            found, _ = gradients(rig, call, grad_out)
            if found:
                yield call, grad_out, found


def _outside(
    rig: Rig,
    level: RoundingLevel,
    answers: list[Answer],
    handed: list[tuple[Call, torch.Tensor, dict[str, torch.Tensor]]],
) -> list[str]:
    """What is beyond the bound of a level, a line each."""
    profile = replace(LOOSEST, rounding=Rounding(level=level))
    told = []
    for answer in answers:
        assert answer.out is not None
        reading = Reading(name=str(level), call=rig.meant(answer.call), profile=profile)
        is_within, words = distance(answer.out, reading)
        if not is_within:
            told.append(f"{in_words(answer.call)}: {words}")
    for call, grad_out, found in handed:
        due = expect_gradients(rig.meant(call), grad_out, profile)
        for name, gradient in found.items():
            exact = getattr(due, name)
            try:
                check_close(gradient, exact.exact, exact.bound, what=f"d{name}", message="")
            except Violation as error:
                told.append(f"{in_words(call)}: {error.mismatch or error}")
    return told
