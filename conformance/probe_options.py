"""Experiments on what an attention function does beyond masks, one feature each."""

import math
from collections.abc import Mapping

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.oracle import expect
from attnspec.conformance.probe import Finding, experiment, no
from attnspec.conformance.probe_masking import alignments
from attnspec.conformance.probe_rig import (
    LOOSEST,
    Rig,
    Verdict,
    in_words,
    readings,
    type_in_words,
)
from attnspec.spec import Feature, Values


def _judged(
    feature: Feature, question: str, verdicts: list[Verdict], facts: Mapping[str, object] = {}
) -> Finding:
    """A finding from the verdicts on calls that all need one feature."""
    evidence = tuple(each.told for each in verdicts)
    if all(each.names[:1] == ("right",) for each in verdicts):
        return Finding(
            question=question,
            answer="yes",
            evidence=evidence,
            facts={"features": [str(feature)], **facts},
        )
    worst = next(each for each in verdicts if each.names[:1] != ("right",))
    if all(each.is_refusal for each in verdicts):
        return no(question, *evidence)
    told = " or ".join(worst.names) or "wrong"
    return Finding(
        question=question,
        answer=told,
        evidence=evidence,
        deviation=f"{feature}: {worst.problem or told}",
    )


@experiment("grouped heads", Feature.GQA)
def grouped_heads(rig: Rig) -> Finding:
    """Whether runs of query heads share a key/value head, or every n-th head does."""
    question = "grouped heads"
    call = rig.draw(heads=6, kv_heads=2)
    meant = rig.meant(call)
    turns = torch.arange(6) % 2
    others = {
        "heads_take_turns": meant.but(key=call.key[:, turns], value=call.value[:, turns]),
        "only_the_first_head_is_read": meant.but(
            key=call.key[:, :1].expand(-1, 6, -1, -1), value=call.value[:, :1].expand(-1, 6, -1, -1)
        ),
    }
    missing = rig.lacks("enable_gqa")
    if not missing:
        return _judged(Feature.GQA, question, [rig.read(call, readings(meant, **others))])
    verdict = _without_the_word(rig, call, meant)
    return no(question, missing, *([verdict] if verdict else []))


def _without_the_word(rig: Rig, call: Call, meant: Call) -> str:
    """Whether fewer key/value heads are understood without `enable_gqa`."""
    try:
        found = rig.attention(call.query.clone(), call.key.clone(), call.value.clone())
        expected = expect(meant, LOOSEST)
        check_close(found, expected.out, expected.bound, what="out", message="")
    except Exception:
        return ""
    return "without the word it is right with 6 query heads on 2: an adapter can drop it"


@experiment("softcap", Feature.SOFTCAP)
def softcap(rig: Rig) -> Finding:
    """Whether scaled scores are capped."""
    question = "softcap"
    _ = rig.base
    missing = rig.lacks("softcap")
    if missing:
        return no(question, missing)
    call = rig.draw(softcap=1.5, values=Values.PEAKED)
    meant = rig.meant(call)
    assert meant.scale is not None
    before = 1.5 * abs(meant.scale) or 1.5
    verdict = rig.read(
        call,
        readings(
            meant,
            ignored=meant.but(softcap=None),
            capped_before_the_scale=meant.but(softcap=before),
            tanh_of_the_scores_without_the_factor=meant.but(softcap=1.0, scale=meant.scale / 1.5),
        ),
    )
    return _judged(Feature.SOFTCAP, question, [verdict])


@experiment("sinks", Feature.SINKS)
def sinks(rig: Rig) -> Finding:
    """Whether one more logit per head takes weight."""
    question = "sinks"
    _ = rig.base
    missing = rig.lacks("sinks")
    if missing:
        return no(question, missing)
    call = rig.draw(sinks=True)
    meant = rig.meant(call)
    assert meant.scale is not None
    assert meant.sinks is not None
    verdict = rig.read(
        call,
        readings(
            meant,
            ignored=meant.but(sinks=None),
            scaled_like_a_score=meant.but(sinks=meant.sinks * meant.scale),
            read_in_base_2=meant.but(sinks=meant.sinks * math.log(2)),
        ),
    )
    return _judged(Feature.SINKS, question, [verdict])


@experiment("alibi", Feature.ALIBI)
def alibi(rig: Rig) -> Finding:
    """Whether scores lose slope times distance, and from which place it is counted."""
    question = "alibi"
    _ = rig.base
    missing = rig.lacks("alibi_slopes")
    if missing:
        return no(question, missing)
    call = rig.draw(alibi=True)
    meant, slopes = rig.meant(call), call.alibi_slopes
    assert slopes is not None
    assert meant.scale is not None
    place = torch.arange(call.key.shape[2], device=call.key.device)
    signed = (place - place[:, None]).double() * slopes.double()[:, None, None]
    first = rig.read(
        call,
        readings(
            meant,
            ignored=meant.but(alibi_slopes=None),
            added_and_not_subtracted=meant.but(alibi_slopes=-slopes),
            signed_by_the_direction=meant.but(alibi_slopes=None, attn_mask=signed),
            multiplied_by_the_scale=meant.but(alibi_slopes=slopes * meant.scale),
        ),
    )
    found = _judged(Feature.ALIBI, question, [first])
    if found.answer != "yes":
        return found
    apart = rig.draw(alibi=True, queries=3 * rig.unit, keys=5 * rig.unit)
    second = rig.read(apart, alignments(rig.meant(apart)))
    told = f"yes, {second.names[0]}" if len(second.names) == 1 else "yes, alignment unknown"
    profile = {"causal_alignment": second.names[0]} if len(second.names) == 1 else {}
    return Finding(
        question=question,
        answer=told,
        evidence=(first.told, second.told),
        facts={"features": [str(Feature.ALIBI)], "profile": profile},
    )


@experiment("log-sum-exp", Feature.LSE)
def log_sum_exp(rig: Rig) -> Finding:
    """The base of the log-sum-exp, its type, and whether it is whole."""
    question = "log-sum-exp"
    _ = rig.base
    missing = rig.lacks("return_lse")
    if missing:
        return no(question, missing)
    call = rig.draw(return_lse=True)
    answer = rig.ask(call)
    if answer.is_refusal:
        return no(question, answer.told)
    if answer.lse is None:
        deviation = f"return_lse: {answer.problem}"
        return Finding(
            question=question, answer="wrong", evidence=(answer.told,), deviation=deviation
        )
    meant = rig.meant(call)
    expected = expect(meant, LOOSEST)
    got, exact = answer.lse.double(), expected.lse
    assert meant.scale is not None
    scores = meant.query.double() @ meant.key.double().mT * meant.scale
    ways = {
        "natural logarithm": got,
        "base 2": got * math.log(2),
        "base 10": got * math.log(10),
        "negated": -got,
        "the sum of exponentials and not its logarithm": got.log(),
        "less the maximum": got + scores.amax(-1),
    }
    names = [
        name
        for name, way in ways.items()
        if bool(((way - exact).abs() <= expected.lse_bound).all())
    ]
    first = f"first row {float(got[0, 0, 0]):.6g}, exact {float(exact[0, 0, 0]):.6g}"
    dtype = type_in_words(answer.lse.dtype)
    told = names[0] if names else "wrong"
    evidence = f"{in_words(call)}: {told}, {dtype} ({first})"
    if told != "natural logarithm":
        return Finding(
            question=question,
            answer=f"{told}, {dtype}",
            evidence=(evidence,),
            deviation=f"the log-sum-exp is not the natural one: {told}",
        )
    return Finding(
        question=question,
        answer=f"{told}, {dtype}",
        evidence=(evidence,),
        facts={"features": [str(Feature.LSE)]},
    )
