"""The experiment on refusals: calls that a function refuses although it has the features.

Refused calls become the `supports` of the declaration; so do accepted calls with a wrong result,
which are a deviation as well.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.probe.experiment import Finding
from attnspec.conformance.probe.harness import CallResult, Harness, describe, distance, with_profile
from attnspec.conformance.probe.training import gradients, incoming
from attnspec.spec import (
    Case,
    CausalAlignment,
    EmptyRow,
    Grouping,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers tried as the unit of channels and lengths."""

BOOL = Mask(kind=MaskKind.BOOL)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS)


@dataclass(frozen=True, kw_only=True)
class Special:
    """A kind of call that some functions refuse.

    Attributes:
        description: the kind, in words.
        condition: the kind, as an expression on a `case`.
        case: a case of the kind.
        plainer: the same case without the special property; if it fails, the kind is not tried.
        is_judged: false if another experiment judges the result.
    """

    description: str
    condition: str
    case: Case
    plainer: Case
    is_judged: bool = True


def refusals(harness: Harness) -> Finding:
    """Find the kinds of calls that are refused, or accepted with a wrong result."""
    evidence, supports, wrong, tried = [], [], [], 0
    for condition, reason in _multiples(harness):
        supports.append([condition, reason])
        evidence.append(reason)
    is_right: dict[Case, bool] = {}
    for special in _specials(harness):
        if special.plainer not in is_right:
            is_right[special.plainer] = _right(harness, special.plainer)
        if not is_right[special.plainer]:
            continue
        tried += 1
        call = draw(special.case)
        if special.case.backward:
            computed, refusal = gradients(harness, call, incoming(call))
            mismatch = _nan_of_finite(harness, call, computed)
        else:
            result = harness.run(call)
            refusal = result.problem if result.is_refusal else ""
            is_judged = special.is_judged and not result.is_refusal
            mismatch = _mismatch(harness, result) if is_judged else ""
        if refusal:
            supports.append([special.condition, f"refused: {special.description}"])
            evidence.append(f"{special.description}: {refusal}")
        if mismatch:
            wrong.append(special.description)
            supports.append([special.condition, f"a wrong result: {special.description}"])
            evidence.append(f"{special.description}: {mismatch}")
    refused = len(supports) - len(wrong)
    answer = f"{refused} of {tried + 2} kinds of calls" if refused else "none"
    return Finding(
        answer=answer,
        evidence=tuple(evidence) or (f"{tried} kinds of calls are all accepted",),
        deviation=f"accepted, but wrong: {', '.join(wrong)}" if wrong else "",
        facts={"supports": supports},
    )


def _mismatch(harness: Harness, result: CallResult) -> str:
    """Describe a result that is wrong under every profile, or return an empty string."""
    if result.out is None:
        return result.message
    mismatch = ""
    for alignment, empty_row, grouping in product(CausalAlignment, EmptyRow, Grouping):
        reading = with_profile(
            "",
            harness.oracle_call(result.call),
            causal_alignment=alignment,
            empty_row=empty_row,
            grouping=grouping,
        )
        is_right, details = distance(result.out, reading, with_empty=True)
        if is_right:
            return ""
        mismatch = mismatch or details
    return f"{describe(result.call)}: {mismatch}"


def _nan_of_finite(harness: Harness, call: Call, computed: Mapping[str, torch.Tensor]) -> str:
    """Describe gradients of NaN if the output is finite, or return an empty string."""
    names = [name for name, gradient in computed.items() if bool(gradient.isnan().any())]
    out = harness.run(call).out if names else None
    if out is None or not bool(out.isfinite().all()):
        return ""
    return f"{describe(call)}: NaN in the gradients of {', '.join(names)}, and the output is finite"


def _right(harness: Harness, case: Case) -> bool:
    """Return true if the forward result of a case is right."""
    return not _mismatch(harness, harness.run(draw(case)))


def _multiples(harness: Harness) -> Iterator[tuple[str, str]]:
    """Yield conditions on channels and lengths that are refused, each with the reason."""
    for size, noun in (("d_head", "channels"), ("length", "queries or keys")):

        def accepts(number: int, size: str = size) -> bool:
            changes = (
                {"d_head": number, "d_value": number}
                if size == "d_head"
                else {"queries": number, "keys": number}
            )
            return harness.run(draw(harness.case(batch=1, **changes))).out is not None

        unit = next((power for power in POWERS if accepts(power) and accepts(3 * power)), 0)
        test = "case.{0} % {1}"
        if unit == 1:
            continue
        if unit:
            names = ("d_head",) if size == "d_head" else ("queries", "keys")
            condition = " or ".join(test.format(name, unit) for name in names)
            yield condition, f"refused: {noun} that are not a multiple of {unit}"
        elif size == "d_head":
            accepted = tuple(power for power in POWERS if accepts(power))
            reason = f"accepted numbers of channels, of powers of two: {accepted}"
            yield f"case.d_head not in {accepted}", reason


def _specials(harness: Harness) -> Iterator[Special]:
    """Yield the kinds of calls, each with its plainer case."""
    plain = harness.case()
    few, many = 3 * harness.unit, 6 * harness.unit

    def special(
        description: str, condition: str, plainer: Case = plain, **changes: object
    ) -> Special:
        return Special(
            description=description,
            condition=condition,
            case=plainer.but(**changes),
            plainer=plainer,
        )

    yield special("d_value ≠ d_head", "case.d_value != case.d_head", d_value=2 * plain.d_head)
    yield special("fewer queries than keys", "case.queries < case.keys", queries=few, keys=many)
    yield special("more queries than keys", "case.queries > case.keys", queries=many, keys=few)
    yield special("a batch of zero elements", "case.batch == 0", batch=0)
    yield special("zero queries", "case.queries == 0", queries=0)
    yield special("zero keys", "case.keys == 0", keys=0)
    yield special("zero channels", "case.d_head == 0", d_head=0)
    yield special("values of zero channels", "case.d_value == 0", d_value=0)
    yield from _layouts(plain)
    if not harness.missing_parameter("scale"):
        scaled = plain.but(scale=0.5)
        negative, zero = "case.scale is not None and case.scale < 0", "case.scale == 0"
        yield special("a negative scale", negative, scaled, scale=-0.5)
        yield special("a scale of zero", zero, scaled, scale=0.0)
    if not harness.missing_parameter("is_causal"):
        flag = plain.but(is_causal=True)
        yield special(
            "is_causal with fewer queries than keys",
            "case.is_causal and case.queries < case.keys",
            flag,
            queries=few,
            keys=many,
        )
        yield special(
            "is_causal with more queries than keys",
            "case.is_causal and case.queries > case.keys",
            flag,
            queries=many,
            keys=few,
        )
        yield special(
            "gradients with is_causal", "case.backward and case.is_causal", flag, backward=True
        )
    if not harness.missing_parameter("attn_mask"):
        yield from _masks(harness, plain)
    if not harness.missing_parameter("enable_gqa"):
        shared = plain.but(heads=6, kv_heads=2)
        yield special(
            "gradients with grouped heads",
            "case.backward and case.heads != case.kv_heads",
            shared,
            backward=True,
        )


def _layouts(plain: Case) -> Iterator[Special]:
    """Yield the memory layouts of each operand."""
    for layout in Layout:
        if layout is Layout.CONTIGUOUS:
            continue
        for name in ("query", "key", "value"):
            changes = {"layouts": Layouts(**{name: layout})}
            thin = {"d_head": 1, "d_value": 1} if layout is Layout.ODD_STRIDES else {}
            condition = f"case.layouts.{name} is Layout.{layout.name}"
            condition += " and 1 in (case.d_head, case.d_value)" if thin else ""
            yield Special(
                description=f"a {name} that lies {layout} in memory",
                condition=condition,
                case=plain.but(**thin, **changes),
                plainer=plain.but(**thin),
            )


def _masks(harness: Harness, plain: Case) -> Iterator[Special]:
    """Yield masks of each kind, shape and type, and masks combined with other features."""
    full = {kind: Mask(kind=kind, shape=MaskShape.FULL) for kind in MaskKind}
    has_mask = "case.mask is not None"
    for kind in MaskKind:
        yield Special(
            description=f"a {kind} mask",
            condition=f"{has_mask} and case.mask.kind is MaskKind.{kind.name}",
            case=plain.but(mask=full[kind]),
            plainer=plain,
            is_judged=False,
        )
    accepted = next((mask for mask in full.values() if _right(harness, plain.but(mask=mask))), None)
    if accepted is None:
        return
    masked = plain.but(mask=accepted)
    for shape in MaskShape:
        yield Special(
            description=f"a mask of shape ({shape})",
            condition=f"{has_mask} and case.mask.shape is MaskShape.{shape.name}",
            case=plain.but(mask=Mask(kind=accepted.kind, shape=shape)),
            plainer=masked,
        )
    for dtype in (torch.float32, torch.float64):
        if dtype != plain.dtype and _right(harness, plain.but(mask=full[MaskKind.FLOAT])):
            other = Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL, dtype=dtype)
            yield Special(
                description="a float mask of another type than the queries",
                condition=f"{has_mask} and case.mask.dtype not in (None, case.dtype)",
                case=plain.but(mask=other),
                plainer=masked,
            )
            break
    if not harness.missing_parameter("is_causal"):
        yield from _masks_beside_causal(harness, plain)
    yield Special(
        description="gradients with a mask",
        condition=f"case.backward and {has_mask}",
        case=masked.but(backward=True),
        plainer=masked,
    )
    empty = plain.but(mask=Mask(kind=accepted.kind, pattern=MaskPattern.EMPTY_ROWS))
    yield Special(
        description="gradients where a row reads nothing",
        condition=f"case.backward and {has_mask}",
        case=empty.but(backward=True),
        plainer=masked,
    )


def _masks_beside_causal(harness: Harness, plain: Case) -> Iterator[Special]:
    """Yield masks of each kind beside the flag; kernels take other paths for other lengths."""
    few, many = 3 * harness.unit, 6 * harness.unit
    for kind in MaskKind:
        masked = plain.but(mask=Mask(kind=kind, shape=MaskShape.FULL))
        is_kind = f"case.mask is not None and case.mask.kind is MaskKind.{kind.name}"
        for queries, condition, words in (
            (many, "case.queries == case.keys", "equal numbers of queries and keys"),
            (few, "case.queries < case.keys", "fewer queries than keys"),
            (harness.unit, "case.queries == 1", "one query"),
        ):
            if queries == 1 or condition != "case.queries == 1":
                sized = masked.but(queries=queries, keys=many)
                yield Special(
                    description=f"a {kind} mask beside is_causal, {words}",
                    condition=f"{is_kind} and case.is_causal and {condition}",
                    case=sized.but(is_causal=True),
                    plainer=sized,
                )
