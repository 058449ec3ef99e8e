"""The experiments on options of the contract that other libraries read in other ways."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.probe.comparison import Comparison, Form, picture
from attnspec.conformance.probe.experiment import Finding
from attnspec.conformance.probe.harness import LOOSEST, Harness, Reading, Verdict, with_profile
from attnspec.spec import (
    CausalAlignment,
    CausalSingleQuery,
    Feature,
    Grouping,
    KeyLengths,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    SoftcapOrder,
    Values,
)

INVERTED = "inverted: true hides a key"
"""The reading of a bool mask of the opposite polarity."""

ACCEPTED_AND_WRONG = "{name} is accepted and gives a wrong result"


def form(name: str, **changes: Any) -> Form:
    """Return a form with one spelling."""
    return Form(name=name, spellings=(changes,))


def masked(kind: MaskKind, pattern: MaskPattern) -> Form:
    """Return the form of a mask, spelled in each of the shapes that a mask may have."""
    shapes = (MaskShape.FULL, MaskShape.RANK_2, MaskShape.BATCH)
    masks = (Mask(kind=kind, pattern=pattern, shape=shape) for shape in shapes)
    return Form(name=f"a {kind} mask", spellings=tuple({"mask": mask} for mask in masks))


def windowed(
    left: int | None, right: int | None, condition: str, *, is_causal: bool = False
) -> Form:
    """Return the form of a window, which a target may refuse while it accepts others."""
    return Form(
        name=f"window={(left, right)}",
        spellings=({"window": (left, right), "is_causal": is_causal},),
        condition=condition,
    )


def _causal_readings(call: Call, scale: float) -> Mapping[str, Call]:
    ones = torch.ones(call.query.shape[2], call.key.shape[2], dtype=torch.bool)
    ones, bare = ones.to(call.query.device), call.but(is_causal=False)
    return {
        "ignored": bare,
        "strictly before the diagonal": bare.but(attn_mask=ones.tril(-1)),
        "one key past the diagonal": bare.but(attn_mask=ones.tril(1)),
        "the future and not the past": bare.but(attn_mask=ones.triu()),
    }


def _bool_mask_readings(call: Call, scale: float) -> Mapping[str, Call]:
    assert call.attn_mask is not None
    return {
        "ignored": call.but(attn_mask=None),
        "true is added as the number one": call.but(attn_mask=call.attn_mask.to(call.query.dtype)),
        INVERTED: call.but(attn_mask=~call.attn_mask),
    }


def _float_mask_readings(call: Call, scale: float) -> Mapping[str, Call]:
    assert call.attn_mask is not None
    hides = call.attn_mask == -torch.inf
    return {
        "ignored": call.but(attn_mask=None),
        "added before the scale": call.but(attn_mask=call.attn_mask * scale),
        "subtracted": call.but(attn_mask=-call.attn_mask),
        "read as a bool mask": call.but(attn_mask=call.attn_mask != 0),
        "hides where it is minus infinity and adds nothing": call.but(attn_mask=~hides),
    }


def _grouped_readings(call: Call, scale: float) -> Mapping[str, Call]:
    first = torch.zeros(6, dtype=torch.long)
    return {
        "only the first head is read": call.but(key=call.key[:, first], value=call.value[:, first]),
    }


def _window_readings(call: Call, scale: float) -> Mapping[str, Call]:
    assert call.window is not None
    left, right = call.window
    others: dict[str, tuple[int | None, int | None] | None] = {"ignored": None}
    if left is not None:
        others["the left edge is not read"] = left - 1, right
        others["one key past the left edge"] = left + 1, right
    if right:
        others["the right edge is not read"] = left, right - 1
    if right is not None:
        others["one key past the right edge"] = left, right + 1
    if left is not None and right:
        others["neither edge is read"] = left - 1, right - 1
        others["left and right are exchanged"] = right, left
    if left is None or right is None:
        others["None means zero"] = left or 0, right or 0
    calls = {name: call.but(window=window) for name, window in others.items()}
    # if two readings show the same keys, either name is right
    return calls if call.is_causal else calls | {"causal as well": call.but(is_causal=True)}


def _softcap_readings(call: Call, scale: float) -> Mapping[str, Call]:
    assert call.softcap is not None
    before = call.softcap * abs(scale) or call.softcap
    return {
        "ignored": call.but(softcap=None),
        "capped before the scale": call.but(softcap=before),
        "tanh of the scores without the factor": call.but(softcap=1.0, scale=scale / call.softcap),
    }


def _sinks_readings(call: Call, scale: float) -> Mapping[str, Call]:
    assert call.sinks is not None
    return {
        "ignored": call.but(sinks=None),
        "scaled like a score": call.but(sinks=call.sinks * scale),
        "read in base 2": call.but(sinks=call.sinks * math.log(2)),
    }


def _alibi_readings(call: Call, scale: float) -> Mapping[str, Call]:
    slopes = call.alibi_slopes
    assert slopes is not None
    place = torch.arange(call.key.shape[2], device=call.key.device)
    signed = (place - place[:, None]).double() * slopes.double()[:, None, None]
    return {
        "ignored": call.but(alibi_slopes=None),
        "added and not subtracted": call.but(alibi_slopes=-slopes),
        "signed by the direction": call.but(alibi_slopes=None, attn_mask=signed),
        "multiplied by the scale": call.but(alibi_slopes=slopes * scale),
    }


def _length_readings(call: Call, scale: float) -> Mapping[str, Call]:
    lengths = call.key_lengths
    assert lengths is not None
    keys = call.key.shape[2]
    return {
        "ignored": call.but(key_lengths=None),
        "the index of the last key": call.but(key_lengths=(lengths + 1).clamp(max=keys)),
        "the number of hidden keys": call.but(key_lengths=keys - lengths),
        "the first length is used for all": call.but(key_lengths=lengths[:1].repeat(len(lengths))),
    }


def _offset_readings(call: Call, scale: float) -> Mapping[str, Call]:
    offset = call.query_offset
    assert offset is not None
    queries, keys = call.query.shape[2], call.key.shape[2]
    return {
        "ignored": call.but(query_offset=None),
        "counted from the last key": call.but(query_offset=offset + keys - queries),
        "the place after the first query": call.but(query_offset=offset + 1),
        "the first offset is used for all": call.but(query_offset=offset[:1].repeat(len(offset))),
    }


def alignments(call: Call) -> list[Reading]:
    """Return the readings of both causal alignments."""
    return [
        with_profile(str(alignment), call, causal_alignment=alignment)
        for alignment in CausalAlignment
    ]


def align(harness: Harness, **changes: Any) -> tuple[Call, Verdict]:
    """Return a call whose numbers of queries and keys differ, and the alignments that agree."""
    call = harness.draw(**changes)
    return call, harness.compare(call, alignments(harness.oracle_call(call)))


def _with_alignment_of_flag(harness: Harness, finding: Finding, square: Call) -> Finding:
    """Find the alignment of `is_causal` and what it does to a single query."""
    finding = _with_alignment(harness, finding)
    if finding.facts.get("profile", {}).get("causal_alignment") != CausalAlignment.UPPER_LEFT:
        # aligned to the last key, a single query may read every key anyway
        return finding
    call = harness.draw(is_causal=True, queries=1, keys=5 * harness.unit)
    oracle_call = harness.oracle_call(call)
    readings = [
        with_profile(str(effect), oracle_call, causal_single_query=effect)
        for effect in CausalSingleQuery
    ]
    verdict = harness.compare(call, readings)
    finding = replace(finding, evidence=(*finding.evidence, verdict.message))
    if verdict.is_refusal:
        return finding
    if len(verdict.names) != 1:
        return replace(
            finding, deviation="the causal flag does something else to a single query", facts={}
        )
    (name,) = verdict.names
    answer = finding.answer
    if name == CausalSingleQuery.IGNORED:
        answer += ", ignored for a single query"
    profile = finding.facts["profile"] | {"causal_single_query": name}
    return replace(finding, answer=answer, facts=finding.facts | {"profile": profile})


def _with_alignment(harness: Harness, finding: Finding) -> Finding:
    """Find the alignment of `is_causal`, with fewer queries than keys and with more."""
    few, many = 3 * harness.unit, 5 * harness.unit
    evidence, names = list(finding.evidence), {}
    for order, queries, keys in (("<", few, many), (">", many, few)):
        call, verdict = align(harness, is_causal=True, queries=queries, keys=keys)
        evidence.append(verdict.message + picture(harness, call))
        name = verdict.names[0] if len(verdict.names) == 1 else ""
        names[order] = "refused" if verdict.is_refusal else name
    finding = replace(finding, evidence=tuple(evidence))
    known = set(names.values()) - {"refused"}
    if not known:
        return replace(finding, answer="yes, alignment unknown: unequal lengths are refused")
    if len(known) > 1 or "" in known:
        details = "; ".join(
            f"queries {order} keys: {name or 'neither'}" for order, name in names.items()
        )
        return replace(
            finding,
            answer=f"something else ({details})",
            deviation=f"the causal mask follows neither alignment throughout ({details})",
            facts={},
        )
    (alignment,) = known
    return _aligned(finding, alignment, alignment)


def _with_alignment_of_window(harness: Harness, finding: Finding, call: Call) -> Finding:
    """Find the alignment of a window, with fewer queries than keys."""
    call, verdict = align(
        harness,
        window=call.window,
        is_causal=call.is_causal,
        queries=3 * harness.unit,
        keys=6 * harness.unit,
        seed=2,
    )
    message = verdict.message + picture(harness, call)
    finding = replace(finding, evidence=(*finding.evidence, message))
    if len(verdict.names) == 1:
        return _aligned(finding, f"{finding.answer}, {verdict.names[0]}", verdict.names[0])
    if verdict.problem:
        return finding
    return replace(
        finding,
        answer="wrong if the numbers of queries and keys differ",
        deviation="a window follows neither alignment with fewer queries than keys",
        facts={},
    )


def _with_alignment_of_slopes(harness: Harness, finding: Finding, square: Call) -> Finding:
    """Find the alignment of the distances that slopes multiply, with fewer queries than keys."""
    _, verdict = align(harness, alibi=True, queries=3 * harness.unit, keys=5 * harness.unit)
    finding = replace(finding, evidence=(*finding.evidence, verdict.message))
    if len(verdict.names) == 1:
        return _aligned(finding, f"{finding.answer}, {verdict.names[0]}", verdict.names[0])
    return replace(finding, answer=f"{finding.answer}, alignment unknown")


def _with_order_of_bias(harness: Harness, finding: Finding, capped: Call) -> Finding:
    """Find the order of the softcap and a bias, which is a float mask or comes from slopes."""
    forms = (
        ("attn_mask", masked(MaskKind.FLOAT, MaskPattern.BIAS)),
        ("alibi_slopes", form("alibi", alibi=True)),
    )
    for parameter, biased in forms:
        if harness.missing_parameter(parameter):
            continue
        call = biased.accepted(harness, softcap=capped.softcap, values=Values.PEAKED)
        if call is None:
            continue
        oracle_call = harness.oracle_call(call)
        orders = [
            with_profile(str(order), oracle_call, softcap_order=order) for order in SoftcapOrder
        ]
        verdict = harness.compare(call, orders)
        finding = replace(finding, evidence=(*finding.evidence, verdict.message))
        if len(verdict.names) == 1:
            (order,) = verdict.names
            facts = finding.facts | {"profile": {"softcap_order": order}}
            return replace(finding, answer=f"{finding.answer}, {order}", facts=facts)
    return finding


def _aligned(finding: Finding, answer: str, alignment: str) -> Finding:
    """Return a finding with the alignment that the calls follow."""
    facts = finding.facts | {"profile": {"causal_alignment": alignment}}
    return replace(finding, answer=answer, facts=facts)


def _without_flag(harness: Harness) -> str:
    """Return a hint if grouped heads work without `enable_gqa`, or an empty string."""
    call = harness.draw(heads=6, kv_heads=2)
    oracle_call = harness.oracle_call(call)
    for grouping in Grouping:
        try:
            out = harness.attention(call.query.clone(), call.key.clone(), call.value.clone())
            expected = expect(oracle_call, replace(LOOSEST, grouping=grouping))
            check_close(out, expected.out, expected.bound, what="out", message="")
        except Exception:
            continue
        return (
            f"without it, 6 query heads on 2 key/value heads are right, {grouping}: "
            "an adapter can drop it"
        )
    return ""


CAUSAL = Comparison(
    question="causal",
    features=(Feature.CAUSAL,),
    parameter="is_causal",
    forms=(form("is_causal", is_causal=True),),
    readings=_causal_readings,
    wrong=ACCEPTED_AND_WRONG,
    is_drawn=True,
    then=_with_alignment_of_flag,
)

BOOL_MASK = Comparison(
    question="bool mask",
    features=(Feature.MASK,),
    parameter="attn_mask",
    needs_plain_call=False,
    forms=(masked(MaskKind.BOOL, MaskPattern.RANDOM),),
    readings=_bool_mask_readings,
    right="true may be read",
    wrong=ACCEPTED_AND_WRONG,
    condition="case.mask is not None and case.mask.kind is MaskKind.BOOL",
)

FLOAT_MASK = Comparison(
    question="float mask",
    features=(Feature.MASK,),
    parameter="attn_mask",
    needs_plain_call=False,
    forms=(
        masked(MaskKind.FLOAT, MaskPattern.BIAS),
        masked(MaskKind.FLOAT, MaskPattern.RANDOM),
    ),
    readings=_float_mask_readings,
    right="added to the scores",
    wrong=ACCEPTED_AND_WRONG,
    condition="case.mask is not None and case.mask.kind is MaskKind.FLOAT",
)

GROUPED_HEADS = Comparison(
    question="grouped heads",
    features=(Feature.GQA,),
    parameter="enable_gqa",
    hint=_without_flag,
    forms=(form("gqa", heads=6, kv_heads=2),),
    readings=_grouped_readings,
    decides=("grouping", Grouping),
)

WINDOW = Comparison(
    question="window",
    features=(Feature.WINDOW,),
    parameter="window",
    forms=(
        windowed(
            3,
            2,
            "case.window is not None and not case.is_causal "
            "and None not in case.window and case.window[1] > 0",
        ),
        windowed(3, 0, "case.window is not None and not case.is_causal and case.window[1] == 0"),
        windowed(None, 2, "case.window is not None and case.window[0] is None"),
        windowed(3, None, "case.window is not None and case.window[1] is None"),
        windowed(3, 0, "case.window is not None and case.is_causal", is_causal=True),
    ),
    readings=_window_readings,
    right="yes, both edges are read",
    is_drawn=True,
    then=_with_alignment_of_window,
)

SOFTCAP = Comparison(
    question="softcap",
    features=(Feature.SOFTCAP,),
    parameter="softcap",
    forms=(form("softcap", softcap=1.5, values=Values.PEAKED),),
    readings=_softcap_readings,
    then=_with_order_of_bias,
)

SINKS = Comparison(
    question="sinks",
    features=(Feature.SINKS,),
    parameter="sinks",
    forms=(form("sinks", sinks=True),),
    readings=_sinks_readings,
)

ALIBI = Comparison(
    question="alibi",
    features=(Feature.ALIBI,),
    parameter="alibi_slopes",
    forms=(form("alibi", alibi=True),),
    readings=_alibi_readings,
    then=_with_alignment_of_slopes,
)

KEY_LENGTHS = Comparison(
    question="key lengths",
    features=(Feature.KEY_LENGTHS,),
    parameter="key_lengths",
    forms=(form("key_lengths", key_lengths=KeyLengths.RAGGED, batch=3),),
    readings=_length_readings,
)

QUERY_OFFSET = Comparison(
    question="query offset",
    features=(Feature.QUERY_OFFSET,),
    parameter="query_offset",
    forms=(
        Form(
            name="query_offset",
            spellings=({"query_offset": True, "is_causal": True, "batch": 3},),
            lengths=(3, 6),
        ),
    ),
    readings=_offset_readings,
)
