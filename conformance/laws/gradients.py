"""Laws of GRD: the gradients of queries, keys, values and masks are those of the definition."""

from dataclasses import replace

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import plain
from attnspec.conformance.laws.gradients_sides import (
    BACKWARD,
    BF16,
    DTYPES,
    F16,
    F32,
    F64,
    FEATURES,
    GROUPED,
    LENGTHS,
    SMALL,
    TINIEST,
    biased,
    check_gradients,
    evident_gradients,
    gradients_of,
    incoming,
    judged_gradients,
    kind_of,
    there,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import (
    Case,
    Feature,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
HIDING = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
HEADS_INSIDE = Layouts(
    query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE
)
SEQUENCE = Case(queries=65, keys=65, d_head=16, d_value=16, dtype=F32, backward=True)


@law(
    "GRD-1",
    "NUM-8",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        *every(SMALL, seed=range(1, 6), is_causal=(True,), scale=(0.3, 2.0), d_value=(5, 13)),
        SMALL.but(mask=Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)),
        SMALL.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.HEADS)),
        SMALL.but(mask=HIDING),
        SMALL.but(scale=-0.7),
        SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS), is_causal=True),
        *every(GROUPED, dtype=(F32, BF16), is_causal=(True,)),
        *every(
            SMALL,
            values=(Values.PEAKED, Values.GROWING, Values.OFFSET, Values.TIES, Values.TINY),
        ),
        SMALL.but(layouts=HEADS_INSIDE),
        SMALL.but(queries=17, keys=5, is_causal=True),
        SMALL.but(queries=5, keys=17, is_causal=True),
        SEQUENCE,
        SEQUENCE.but(queries=17, keys=129, heads=2, is_causal=True),
        SEQUENCE.but(queries=257, keys=129, heads=2, dtype=BF16, is_causal=True),
    ),
    wide=(
        *every(GROUPED.but(is_causal=True), dtype=DTYPES),
        *every(SEQUENCE, dtype=DTYPES),
        SEQUENCE.but(queries=129, keys=17, d_head=64, d_value=64),
        *every(SEQUENCE.but(queries=33, keys=577), dtype=(F16, F64)),
    ),
    explore=cases(
        always=BACKWARD, sometimes=FEATURES, lengths=LENGTHS, layouts=tuple(Layout), only=plain
    ),
    needs={Feature.BACKWARD},
    cost=4,
)
def law_gradients_are_those_of_the_definition(subject: Subject, case: Case) -> None:
    """GRD-1: dQ, dK and dV, and dB of a float mask, each within its own bound."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    grad = incoming(case, kind_of(case))
    _, expected = judged_gradients(subject, call, grad, wrt, "not the gradient of attention")
    evident_gradients(expected, wrt)


@law(
    "GRD-2",
    "NUM-9",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=BIAS, mask_gradient=True),
        *every(SMALL.but(mask=BIAS, mask_gradient=True), dtype=DTYPES),
        *every(
            SMALL.but(mask=BIAS, mask_gradient=True),
            mask=[
                *(replace(BIAS, shape=shape) for shape in MaskShape),
                Mask(kind=MaskKind.FLOAT, shape=MaskShape.BATCH),
                Mask(kind=MaskKind.FLOAT, shape=MaskShape.RANK_2),
            ],
        ),
        GROUPED.but(
            mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.BATCH),
            mask_gradient=True,
            batch=3,
        ),
        SMALL.but(mask=BIAS, mask_gradient=True, is_causal=True),
    ),
    wide=(
        *every(
            SMALL.but(mask=BIAS, mask_gradient=True),
            mask=[Mask(kind=MaskKind.FLOAT, shape=shape) for shape in MaskShape],
        ),
        GROUPED.but(mask=BIAS, mask_gradient=True),
        SEQUENCE.but(
            mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.RANK_2),
            mask_gradient=True,
            batch=2,
            heads=2,
            kv_heads=2,
            queries=17,
        ),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        masked=True,
        patterns=(MaskPattern.BIAS,),
        lengths=LENGTHS,
        only=biased,
    ),
    needs={Feature.BACKWARD, Feature.MASK},
    cost=4,
)
def law_the_gradient_of_a_mask_is_summed_where_it_broadcasts(subject: Subject, case: Case) -> None:
    """GRD-2: a float mask has the gradient of the scores, summed along what it broadcasts to."""
    call = subject.draw(case, backward=True, mask_gradient=True)
    grad = incoming(case)
    message = "the gradient of a float mask is not that of the scores, summed where it broadcasts"
    judged_gradients(subject, call, grad, ("attn_mask",), message)
    judged_gradients(subject, call, grad, gradients_of(subject, case), message)


@law(
    "GRD-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL.but(d_head=8, d_value=8), dtype=DTYPES),
        *every(GROUPED, dtype=(F32, BF16), d_value=(5,)),
        GROUPED.but(mask=BIAS, mask_gradient=True),
        GROUPED.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.RANK_3)),
        SMALL.but(keys=0),
        SMALL.but(queries=0),
        SMALL.but(batch=0),
        SMALL.but(queries=1, keys=1),
        GROUPED.but(keys=0, queries=0),
        SMALL.but(keys=1, dtype=F16),
    ),
    wide=(
        *every(GROUPED.but(d_value=5), dtype=DTYPES),
        *every(SMALL.but(keys=1), dtype=DTYPES),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=FEATURES,
        lengths=(1, 2, 3, 5),
        empty=True,
        only=lambda case: plain(case) and (case.keys > 0 or case.mask is None),
    ),
    needs={Feature.BACKWARD},
    cost=3,
)
def law_gradients_have_the_form_of_their_operands(subject: Subject, case: Case) -> None:
    """GRD-3: a gradient has shape, dtype and device of its operand, for lengths of zero too."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    grad = incoming(case)
    nothing = 0 in (case.batch, case.queries, case.keys)
    if nothing and _constant(subject, call, wrt):
        return
    _, found = subject.differentiate(call, grad, wrt=wrt)
    for name, each in found.items():
        operand = getattr(call, name)
        if each is None and nothing:
            # an output without numbers need not depend on what it does not meet
            found[name] = torch.zeros_like(operand)
            continue
        got = there(each, name)
        for what in ("shape", "dtype", "device"):
            have, want = getattr(got, what), getattr(operand, what)
            if have != want:
                raise Violation(f"the gradient of {name} must have {what} {want}, got {have}")
    message = "the gradient of an edge case is wrong"
    check_gradients(call, found, subject.expect_gradients(call, grad), message)


def _constant(subject: Subject, call: Call, wrt: tuple[str, ...]) -> bool:
    """True where the output asks for no gradient, as a constant may."""
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}
    with torch.enable_grad():
        return not subject.call(call.but(**leaves)).requires_grad
