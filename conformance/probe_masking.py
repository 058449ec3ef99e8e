"""Experiments on who may read what: the causal diagonal, masks and rows that read nothing."""

from collections.abc import Iterator

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.probe import UNKNOWN, Finding, experiment, no
from attnspec.conformance.probe_rig import (
    Reading,
    Rig,
    Verdict,
    distance,
    in_words,
    readings,
    with_profile,
)
from attnspec.spec import (
    CausalAlignment,
    EmptyRow,
    Feature,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

SHAPES = (MaskShape.FULL, MaskShape.RANK_2, MaskShape.BATCH)
"""Shapes of a mask, the first of them that it takes."""

INVERTED = "inverted: true hides a key"
"""A bool mask read the other way round."""

LARGEST_PICTURE = 64
"""Pairs of a query and a key that are drawn."""


@experiment("causal", Feature.CAUSAL)
def causal(rig: Rig) -> Finding:
    """The diagonal that `is_causal` follows, with as many, more and fewer queries than keys."""
    question, _ = "causal", rig.base
    missing = rig.lacks("is_causal")
    if missing:
        return no(question, missing)
    few, many = 3 * rig.unit, 5 * rig.unit
    square = rig.read(*_square(rig.meant(rig.draw()), rig.draw(is_causal=True)))
    evidence = [square.told + picture(rig, rig.draw(is_causal=True))]
    if "right" not in square.names:
        return _wrong(question, square, evidence, "is_causal")
    found: dict[str, str] = {}
    for order, queries, keys in (("<", few, many), (">", many, few)):
        call = rig.draw(is_causal=True, queries=queries, keys=keys)
        verdict = rig.read(call, alignments(rig.meant(call)))
        evidence.append(verdict.told + picture(rig, call))
        found[order] = verdict.names[0] if len(verdict.names) == 1 else ""
        if verdict.is_refusal:
            found[order] = "refused"
    facts = {"features": [str(Feature.CAUSAL)]}
    known = {each for each in found.values() if each != "refused"}
    if not known:
        return Finding(
            question=question,
            answer="yes, alignment unknown: it refuses lengths that differ",
            evidence=tuple(evidence),
            facts=facts,
        )
    if len(known) > 1 or "" in known:
        told = "; ".join(f"queries {key} keys: {name or 'neither'}" for key, name in found.items())
        return Finding(
            question=question,
            answer=f"something else ({told})",
            evidence=tuple(evidence),
            deviation=f"the causal mask follows neither alignment throughout ({told})",
        )
    (alignment,) = known
    return Finding(
        question=question,
        answer=alignment,
        evidence=tuple(evidence),
        facts=facts | {"profile": {"causal_alignment": alignment}},
    )


def alignments(call: Call) -> list[Reading]:
    """Both diagonals."""
    return [with_profile(str(each), call, causal_alignment=each) for each in CausalAlignment]


def _square(plain: Call, asked: Call) -> tuple[Call, list[Reading]]:
    """What a causal flag may mean where there are as many queries as keys."""
    meant = asked.but(scale=plain.scale)
    queries, keys = asked.query.shape[2], asked.key.shape[2]
    ones = torch.ones(queries, keys, dtype=torch.bool, device=asked.query.device)
    bare = meant.but(is_causal=False)
    return asked, readings(
        meant,
        ignored=bare,
        strictly_before_the_diagonal=bare.but(attn_mask=ones.tril(-1)),
        one_key_past_the_diagonal=bare.but(attn_mask=ones.tril(1)),
        the_future_and_not_the_past=bare.but(attn_mask=ones.triu()),
    )


def _wrong(question: str, verdict: Verdict, evidence: list[str], what: str) -> Finding:
    """It does not answer as the contract says: it refuses, or it is another convention."""
    if verdict.is_refusal:
        return no(question, *evidence)
    if verdict.problem:
        told, deviation = "wrong", f"{what}: {verdict.problem}"
    elif verdict.names:
        told = " or ".join(verdict.names)
        deviation = f"{what}: {told}"
    else:
        told, deviation = "wrong", f"{what} is accepted and gives a wrong answer"
    return Finding(question=question, answer=told, evidence=tuple(evidence), deviation=deviation)


def picture(rig: Rig, call: Call) -> str:
    """Which keys each query reads, seen from equal scores and identity values; or nothing."""
    queries, keys, channels = call.query.shape[2], call.key.shape[2], call.value.shape[3]
    if queries * keys > LARGEST_PICTURE or keys > channels:
        return ""
    value = torch.eye(keys, channels).to(call.value).expand_as(call.value).contiguous()
    out = rig.ask(call.but(query=torch.zeros_like(call.query), value=value)).out
    if out is None:
        return ""
    rows = out[0, 0, :, :keys].tolist()
    signs = ("".join("?" if each != each else "x" if each else "." for each in row) for row in rows)
    drawn = " ".join(signs)
    return f"; query by query it reads {drawn}"


def masks(rig: Rig, kind: MaskKind, pattern: MaskPattern) -> Iterator[Call]:
    """Calls with a mask in each shape, in the order in which they are tried."""
    for shape in SHAPES:
        yield rig.draw(mask=Mask(kind=kind, pattern=pattern, shape=shape))


def accepted(rig: Rig, kind: MaskKind, pattern: MaskPattern) -> Call | None:
    """The first of them that gives an output."""
    for call in masks(rig, kind, pattern):
        if rig.ask(call).out is not None:
            return call
    return None


@experiment("bool mask", Feature.MASK)
def bool_mask(rig: Rig) -> Finding:
    """Whether true means readable."""
    question = "bool mask"
    missing = rig.lacks("attn_mask")
    if missing:
        return no(question, missing)
    call = accepted(rig, MaskKind.BOOL, MaskPattern.RANDOM)
    call = next(masks(rig, MaskKind.BOOL, MaskPattern.RANDOM)) if call is None else call
    verdict = polarity(rig, call)
    evidence = [verdict.told]
    if verdict.names == ("right",):
        return Finding(
            question=question,
            answer="true may be read",
            evidence=tuple(evidence),
            facts={"features": [str(Feature.MASK)]},
        )
    return _wrong(question, verdict, evidence, "a bool mask")


def polarity(rig: Rig, call: Call) -> Verdict:
    """What a bool mask does."""
    meant, mask = rig.meant(call), call.attn_mask
    assert mask is not None
    ways = readings(
        meant,
        ignored=meant.but(attn_mask=None),
        true_is_added_as_the_number_one=meant.but(attn_mask=mask.to(call.query.dtype)),
    )
    return rig.read(call, [*ways, Reading(name=INVERTED, call=meant.but(attn_mask=~mask))])


@experiment("float mask", Feature.MASK)
def float_mask(rig: Rig) -> Finding:
    """Whether a float mask is added to the scaled scores."""
    question = "float mask"
    missing = rig.lacks("attn_mask")
    if missing:
        return no(question, missing)
    evidence, names = [], []
    for pattern in (MaskPattern.BIAS, MaskPattern.RANDOM):
        call = accepted(rig, MaskKind.FLOAT, pattern)
        call = next(masks(rig, MaskKind.FLOAT, pattern)) if call is None else call
        meant, bias = rig.meant(call), call.attn_mask
        assert bias is not None
        assert meant.scale is not None
        verdict = rig.read(
            call,
            readings(
                meant,
                ignored=meant.but(attn_mask=None),
                added_before_the_scale=meant.but(attn_mask=bias * meant.scale),
                subtracted=meant.but(attn_mask=-bias),
                read_as_a_bool_mask=meant.but(attn_mask=bias != 0),
                hides_where_it_is_minus_infinity_and_adds_nothing=meant.but(
                    attn_mask=bias != -torch.inf
                ),
            ),
        )
        evidence.append(verdict.told)
        names.append(verdict.names)
        if "right" not in verdict.names:
            return _wrong(question, verdict, evidence, "a float mask")
    return Finding(
        question=question,
        answer="added to the scores",
        evidence=tuple(evidence),
        facts={"features": [str(Feature.MASK)]},
    )


@experiment("empty rows", Feature.MASK, Feature.CAUSAL)
def empty_rows(rig: Rig) -> Finding:
    """What a query gives that may read nothing."""
    question = "empty rows"
    asked = list(_emptying(rig))
    if not asked:
        return Finding(
            question=question,
            answer=UNKNOWN,
            evidence=("nothing that it takes hides every key from a query",),
        )
    evidence, found = [], []
    for call, meant in asked:
        answer = rig.ask(call)
        if answer.out is None:
            evidence.append(answer.told)
            continue
        lower = {"causal_alignment": CausalAlignment.LOWER_RIGHT} if call.is_causal else {}
        ways = [with_profile(str(each), meant, empty_row=each, **lower) for each in EmptyRow]
        hits = [each.name for each in ways if distance(answer.out, each, with_empty=True)[0]]
        first = answer.out[0, 0, 0]
        told = hits[0] if hits else "neither zeros, nor the mean, nor NaN"
        shown = ", ".join(f"{float(number):.4g}" for number in first[:3])
        evidence.append(f"{in_words(call)}, nothing for query 0: {told} ({shown}, …)")
        found.append(hits[0] if hits else "other")
    answers = set(found)
    if not answers:
        return Finding(question=question, answer=UNKNOWN, evidence=tuple(evidence))
    if len(answers) > 1 or answers == {"other"}:
        told = " and ".join(dict.fromkeys(found))
        return Finding(
            question=question,
            answer=told,
            evidence=tuple(evidence),
            deviation=f"a row that reads nothing gives {told}, and no one value of the profile",
        )
    (name,) = answers
    return Finding(
        question=question,
        answer=name,
        evidence=tuple(evidence),
        facts={"profile": {"empty_row": name}},
    )


def _emptying(rig: Rig) -> Iterator[tuple[Call, Call]]:
    """Calls in which some query may read nothing, as it is asked and as it is meant."""
    if not rig.lacks("attn_mask"):
        for kind in MaskKind:
            call = accepted(rig, kind, MaskPattern.EMPTY_ROWS)
            if call is None:
                continue
            meant = rig.meant(call)
            plain = accepted(rig, kind, MaskPattern.RANDOM)
            if plain is not None and kind is MaskKind.FLOAT:
                if rig.read(plain, readings(rig.meant(plain))).names:
                    yield call, meant
            elif plain is not None:
                names = polarity(rig, plain).names
                if names == (INVERTED,) and call.attn_mask is not None:
                    yield call.but(attn_mask=~call.attn_mask), meant
                elif names == ("right",):
                    yield call, meant
    if not rig.lacks("is_causal"):
        call = rig.draw(is_causal=True, queries=5 * rig.unit, keys=3 * rig.unit)
        if rig.read(call, alignments(rig.meant(call))).names == (CausalAlignment.LOWER_RIGHT,):
            yield call, rig.meant(call)
