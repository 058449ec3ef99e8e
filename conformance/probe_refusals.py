"""The experiment on refusals: which calls a function does not take though it has the features.

What it refuses goes into the declaration as `supports`; what it takes and answers wrongly does not,
and is told as a deviation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from attnspec.conformance.inputs import draw
from attnspec.conformance.probe import Finding, experiment
from attnspec.conformance.probe_rig import Answer, Rig, distance, in_words, with_profile
from attnspec.conformance.probe_training import gradients, incoming
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""What channels and lengths may have to be multiples of."""

BOOL = Mask(kind=MaskKind.BOOL)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)


@dataclass(frozen=True, kw_only=True)
class Special:
    """A kind of call that some functions do not take.

    Attributes:
        told: what is special about it.
        condition: the same as an expression on a `case`.
        case: one of the kind.
        plainer: what must be taken for this to be asked at all: the same call without it.
    """

    told: str
    condition: str
    case: Case
    plainer: Case
    is_judged: bool = True
    """False where another experiment says whether the answer is right."""


@experiment("refusals")
def refusals(rig: Rig) -> Finding:
    """What is refused, and what is taken and answered wrongly."""
    _ = rig.base
    evidence, supports, wrong, tried = [], [], [], 0
    for condition, told in _multiples(rig):
        supports.append([condition, told])
        evidence.append(told)
    known: dict[Case, bool] = {}
    for each in _specials(rig):
        if each.plainer not in known:
            known[each.plainer] = _right(rig, each.plainer)
        if not known[each.plainer]:
            continue
        tried += 1
        call = draw(each.case)
        if each.case.backward:
            problem = gradients(rig, call, incoming(call))[1]
            verdict_wrong = ""
        else:
            given = rig.ask(call)
            problem = given.problem if given.is_refusal else ""
            is_asked = each.is_judged and not given.is_refusal
            verdict_wrong = _mistake(rig, given) if is_asked else ""
        if problem:
            supports.append([each.condition, f"it refuses {each.told}"])
            evidence.append(f"{each.told}: {problem}")
        if verdict_wrong:
            wrong.append(each.told)
            evidence.append(f"{each.told}: {verdict_wrong}")
    answer = f"{len(supports)} of {tried + 2} kinds of calls" if supports else "none"
    return Finding(
        question="refusals",
        answer=answer,
        evidence=tuple(evidence) or (f"{tried} kinds of calls are all taken",),
        deviation=f"taken and answered wrongly: {', '.join(wrong)}" if wrong else "",
        facts={"supports": supports},
    )


def _mistake(rig: Rig, given: Answer) -> str:
    """What is wrong with an answer under every profile, or nothing: profiles are not asked here."""
    if given.out is None:
        return given.told
    words = ""
    for alignment in CausalAlignment:
        for empty in EmptyRow:
            reading = with_profile(
                "", rig.meant(given.call), causal_alignment=alignment, empty_row=empty
            )
            is_right, found = distance(given.out, reading, with_empty=True)
            if is_right:
                return ""
            words = words or found
    return f"{in_words(given.call)}: {words}"


def _right(rig: Rig, case: Case) -> bool:
    """True where it answers a case rightly, forward."""
    return not _mistake(rig, rig.ask(draw(case)))


def _multiples(rig: Rig) -> Iterator[tuple[str, str]]:
    """Numbers of which channels and lengths must be multiples, or powers."""
    for what, words in (("d_head", "channels"), ("length", "queries or keys")):

        def takes(number: int, what: str = what) -> bool:
            changes = (
                {"d_head": number, "d_value": number}
                if what == "d_head"
                else {"queries": number, "keys": number}
            )
            return rig.ask(draw(rig.case(batch=1, **changes))).out is not None

        least = next((each for each in POWERS if takes(each) and takes(3 * each)), 0)
        test = "case.{0} % {1}"
        if least == 1:
            continue
        if least:
            names = ("d_head",) if what == "d_head" else ("queries", "keys")
            condition = " or ".join(test.format(name, least) for name in names)
            yield condition, f"it refuses {words} that are no multiple of {least}"
        elif what == "d_head":
            taken = tuple(each for each in POWERS if takes(each))
            yield f"case.d_head not in {taken}", f"of powers of two it takes {taken} channels"


def _specials(rig: Rig) -> Iterator[Special]:
    """The kinds of calls, each beside the plainer one."""
    plain = rig.case()
    few, many = 3 * rig.unit, 6 * rig.unit

    def one(told: str, condition: str, plainer: Case = plain, **changes: object) -> Special:
        return Special(told=told, condition=condition, case=plainer.but(**changes), plainer=plainer)

    yield one("d_value ≠ d_head", "case.d_value != case.d_head", d_value=2 * plain.d_head)
    yield one("fewer queries than keys", "case.queries < case.keys", queries=few, keys=many)
    yield one("more queries than keys", "case.queries > case.keys", queries=many, keys=few)
    yield one("no batch element", "case.batch == 0", batch=0)
    yield one("no queries", "case.queries == 0", queries=0)
    yield one("no keys", "case.keys == 0", keys=0)
    yield one("no channels", "case.d_head == 0", d_head=0)
    yield one("no channels of values", "case.d_value == 0", d_value=0)
    yield from _layouts(plain)
    if not rig.lacks("is_causal"):
        flag = plain.but(is_causal=True)
        yield one(
            "is_causal with fewer queries than keys",
            "case.is_causal and case.queries < case.keys",
            flag,
            queries=few,
            keys=many,
        )
        yield one(
            "is_causal with more queries than keys",
            "case.is_causal and case.queries > case.keys",
            flag,
            queries=many,
            keys=few,
        )
        yield one(
            "gradients with is_causal", "case.backward and case.is_causal", flag, backward=True
        )
    if not rig.lacks("attn_mask"):
        yield from _masks(rig, plain)
    if not rig.lacks("enable_gqa"):
        shared = plain.but(heads=6, kv_heads=2)
        yield one(
            "gradients with grouped heads",
            "case.backward and case.heads != case.kv_heads",
            shared,
            backward=True,
        )


def _layouts(plain: Case) -> Iterator[Special]:
    """How tensors may lie in memory."""
    for layout in Layout:
        if layout is Layout.CONTIGUOUS:
            continue
        for name in ("query", "key", "value"):
            changes = {"layouts": Layouts(**{name: layout})}
            thin = {"d_head": 1, "d_value": 1} if layout is Layout.ODD_STRIDES else {}
            condition = f"case.layouts.{name} is Layout.{layout.name}"
            condition += " and 1 in (case.d_head, case.d_value)" if thin else ""
            yield Special(
                told=f"a {name} that lies {layout} in memory",
                condition=condition,
                case=plain.but(**thin, **changes),
                plainer=plain.but(**thin),
            )


def _masks(rig: Rig, plain: Case) -> Iterator[Special]:
    """Masks in each kind, shape and type, and beside other features."""
    full = {kind: Mask(kind=kind, shape=MaskShape.FULL) for kind in MaskKind}
    given = "case.mask is not None"
    for kind in MaskKind:
        yield Special(
            told=f"a {kind} mask",
            condition=f"{given} and case.mask.kind is MaskKind.{kind.name}",
            case=plain.but(mask=full[kind]),
            plainer=plain,
            is_judged=False,
        )
    taken = next((each for each in full.values() if _right(rig, plain.but(mask=each))), None)
    if taken is None:
        return
    masked = plain.but(mask=taken)
    for shape in MaskShape:
        yield Special(
            told=f"a mask of shape ({shape})",
            condition=f"{given} and case.mask.shape is MaskShape.{shape.name}",
            case=plain.but(mask=Mask(kind=taken.kind, shape=shape)),
            plainer=masked,
        )
    for dtype in (torch.float32, torch.float64):
        if dtype != plain.dtype and _right(rig, plain.but(mask=full[MaskKind.FLOAT])):
            other = Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL, dtype=dtype)
            yield Special(
                told="a float mask of another type than the queries",
                condition=f"{given} and case.mask.dtype not in (None, case.dtype)",
                case=plain.but(mask=other),
                plainer=masked,
            )
            break
    if not rig.lacks("is_causal"):
        yield Special(
            told="a mask beside is_causal",
            condition=f"{given} and case.is_causal",
            case=masked.but(is_causal=True),
            plainer=masked,
        )
    yield Special(
        told="gradients with a mask",
        condition=f"case.backward and {given}",
        case=masked.but(backward=True),
        plainer=masked,
    )
