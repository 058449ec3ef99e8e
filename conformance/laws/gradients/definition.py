"""Laws of GRD: the gradients of queries, keys, values and masks are those of the definition."""

from dataclasses import replace

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    F16,
    F32,
    F64,
    HIDING,
    LENGTHS,
    OPTIONS,
)
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    BIAS,
    GROUPED,
    LONG,
    SMALL,
    TINIEST,
    check_gradients,
    differentiate_and_judge,
    has_float_mask,
    incoming_gradient,
    incoming_kind,
    operands_with_gradient,
    require_evidence_of_gradients,
    require_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import (
    Case,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

HEADS_INSIDE = Layouts(
    query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE
)
SEQUENCE = Case(queries=65, keys=65, d_head=16, d_value=16, dtype=F32, backward=True)


@law(
    "GRD-1",
    "NUM-8",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL, seed=range(1, 6), is_causal=(True,), scale=(0.3, 2.0), d_value=(5, 13)),
        SMALL.but(mask=Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)),
        SMALL.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.HEADS)),
        SMALL.but(mask=HIDING),
        SMALL.but(scale=-0.7),
        SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS), is_causal=True),
        *vary(GROUPED, dtype=(F32, BF16), is_causal=(True,)),
        *vary(
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
        *vary(GROUPED.but(is_causal=True), dtype=DTYPES),
        *vary(SEQUENCE, dtype=DTYPES),
        SEQUENCE.but(queries=129, keys=17, d_head=64, d_value=64),
        *vary(SEQUENCE.but(queries=33, keys=577), dtype=(F16, F64)),
    ),
    explore=cases(
        always=BACKWARD, sometimes=OPTIONS, lengths=LENGTHS, layouts=tuple(Layout), only=plain
    ),
    cost=4,
)
def law_gradients_equal_the_definition(subject: Subject, case: Case) -> None:
    """GRD-1: dQ, dK and dV, and dB of a float mask, each within its own bound."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    grad = incoming_gradient(case, incoming_kind(case))
    _, expected = differentiate_and_judge(
        subject, call, grad, wrt, "the gradient differs from the definition"
    )
    require_evidence_of_gradients(expected, wrt)


@law(
    "GRD-2",
    "NUM-9",
    pinned=(
        TINIEST.but(mask=BIAS, mask_gradient=True),
        *vary(SMALL.but(mask=BIAS, mask_gradient=True), dtype=DTYPES),
        *vary(
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
        # several tiles of queries and of keys
        SMALL.but(mask=BIAS, mask_gradient=True, batch=1, queries=137, keys=139),
    ),
    wide=(
        *vary(
            SMALL.but(mask=BIAS, mask_gradient=True),
            mask=[Mask(kind=MaskKind.FLOAT, shape=shape) for shape in MaskShape],
        ),
        GROUPED.but(mask=BIAS, mask_gradient=True),
        LONG.but(mask=BIAS, mask_gradient=True),
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
        sometimes=OPTIONS,
        masked=True,
        patterns=(MaskPattern.BIAS,),
        lengths=LENGTHS,
        only=has_float_mask,
    ),
    cost=4,
)
def law_the_gradient_of_a_mask_is_summed_where_it_broadcasts(subject: Subject, case: Case) -> None:
    """GRD-2: a float mask has the gradient of the scores, summed along what it broadcasts to."""
    call = subject.draw(case, backward=True, mask_gradient=True)
    grad = incoming_gradient(case)
    message = (
        "the gradient of a float mask is not the gradient of the scores, summed as it broadcasts"
    )
    differentiate_and_judge(subject, call, grad, ("attn_mask",), message)
    differentiate_and_judge(subject, call, grad, operands_with_gradient(subject, case), message)


@law(
    "GRD-3",
    pinned=(
        TINIEST,
        *vary(SMALL.but(d_head=8, d_value=8), dtype=DTYPES),
        *vary(GROUPED, dtype=(F32, BF16), d_value=(5,)),
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
        *vary(GROUPED.but(d_value=5), dtype=DTYPES),
        *vary(SMALL.but(keys=1), dtype=DTYPES),
    ),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        lengths=(1, 2, 3, 5),
        empty=True,
        only=lambda case: plain(case) and (case.keys > 0 or case.mask is None),
    ),
    cost=3,
)
def law_gradients_have_the_shape_and_dtype_of_their_operands(subject: Subject, case: Case) -> None:
    """GRD-3: a gradient has shape, dtype and device of its operand, for lengths of zero too."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    grad = incoming_gradient(case)
    is_empty = 0 in (case.batch, case.queries, case.keys)
    if is_empty and _output_is_constant(subject, call, wrt):
        return
    _, gradients = subject.differentiate(call, grad, wrt=wrt)
    for name, maybe_gradient in gradients.items():
        operand = getattr(call, name)
        if maybe_gradient is None and is_empty:
            # an empty output need not depend on its operands
            gradients[name] = torch.zeros_like(operand)
            continue
        gradient = require_gradient(maybe_gradient, name)
        for attribute in ("shape", "dtype", "device"):
            actual, expected = getattr(gradient, attribute), getattr(operand, attribute)
            if actual != expected:
                raise Violation(
                    f"the gradient of {name} must have {attribute} {expected}, got {actual}"
                )
    message = "the gradient of an edge case is wrong"
    check_gradients(call, gradients, subject.expect_gradients(call, grad), message)


def _output_is_constant(subject: Subject, call: Call, wrt: tuple[str, ...]) -> bool:
    """Return whether the output requires no gradient, as a constant may."""
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}
    with torch.enable_grad():
        return not subject.call(call.but(**leaves)).requires_grad
