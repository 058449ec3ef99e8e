"""Laws of SEQ: gradients, and the memory of operands."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.tensors.large import spread_out
from attnspec.conformance.operators.packed.case import PackedCase, cases
from attnspec.conformance.operators.packed.subject import AXES, PackedSubject
from attnspec.spec import EmptyRow
from attnspec.spec.packed import CAUSAL, EVERYWHERE

F32, F16 = torch.float32, torch.float16
BACKWARD = tuple(
    case.but(backward=True)
    for case in (
        PackedCase(queries=(1, 1), keys=(2, 1), d_head=1),
        PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=2, kv_heads=2),
        PackedCase(queries=(5, 3, 17), keys=(4, 9, 17), dtype=F32, d_head=8, seed=1),
        PackedCase(queries=(3, 2), keys=(3, 4), window=CAUSAL, dtype=F32),
        PackedCase(queries=(5, 1), keys=(2, 3), window=CAUSAL, seed=2),
        PackedCase(queries=(2, 3), keys=(4, 3), heads=4, kv_heads=2, dtype=torch.bfloat16),
        PackedCase(queries=(2, 3), keys=(4, 3), outside=2),
        PackedCase(queries=(0, 2, 3, 1), keys=(2, 2, 0, 4)),
    )
)


def _backward(subject: PackedSubject) -> st.SearchStrategy[PackedCase]:
    return cases(subject, backward=True, lse=False)


@law("SEQ-15", pinned=BACKWARD, explore=_backward, cost=4.0)
def law_packed_gradients_equal_the_definition(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-15: the gradients of each sequence are those of attention over its own keys."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    subject.judge(call, "a sequence differs from attention over its own keys")
    subject.judge_gradients(
        call, case.draw_gradient(), "a gradient differs from that of the sequence by itself"
    )


SEVERAL = tuple(
    case.but(backward=True)
    for case in (
        PackedCase(queries=(1, 1), keys=(1, 1)),
        PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=2, kv_heads=2, dtype=F32),
    )
)


@law("SEQ-16", pinned=SEVERAL, explore=_backward, cost=4.0)
def law_gradients_stay_within_their_sequence(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-16: an incoming gradient of one sequence gives every other sequence exactly zero."""
    if subject.profile.empty_row is not EmptyRow.ZERO:
        # the weights of such a row may be NaN, and NaN times zero is
        case = case.but(window=EVERYWHERE)
        if case.has_empty_sequences:
            raise NotClaimed("gradients of empty rows are promised under empty_row=zero alone")
    case = subject.expressible(case.but(outside=0))
    call, grad_out = case.draw(subject.profile), case.draw_gradient()
    for b in range(call.sequences):
        alone = torch.zeros_like(grad_out)
        alone[call.rows(b)] = grad_out[call.rows(b)]
        for name, grad in subject.gradients(call, alone).items():
            own = call.rows(b) if name == "query" else call.key_rows(b)
            others = torch.cat([grad[: own.start], grad[own.stop :]])
            zero = torch.zeros_like(others, dtype=torch.float64)
            check_close(
                others,
                zero,
                zero,
                what=f"gradient of {name} of other sequences than {b}",
                message="a gradient flows to another sequence",
                axes=AXES,
            )


STRIDED = (
    PackedCase(strided=True, heads=2, kv_heads=2),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), strided=True, dtype=F32, window=CAUSAL),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), strided=True, heads=4, kv_heads=2),
)


@law("SEQ-17", pinned=STRIDED, explore=lambda subject: cases(subject, strided=True))
def law_strides_of_packed_operands_mean_nothing(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-17: operands that are parts of a projection, and spaced offsets, change no result."""
    case = subject.expressible(case)
    subject.judge_case(case.but(strided=False), "a contiguous call is wrong")
    subject.judge_case(case, "strides of operands or offsets change a result")


FAR_APART = (
    PackedCase(queries=(2, 1), keys=(2, 3), dtype=F32),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=4, kv_heads=2, window=CAUSAL, dtype=F16),
)


@law("SEQ-17", pinned=FAR_APART, cost=4.0)
def law_packed_tokens_may_lie_far_apart(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-17: tokens and heads at offsets that 32 bits cannot count are read at their places."""
    call = subject.expressible(case).draw(subject.profile)
    subject.judge(call, "the output is wrong before the operands are spread out")
    for name, operand in call.operands.items():
        for axis, kind in ((0, "tokens"), (1, "heads")):
            if operand.shape[axis] > 1:
                far = call.but(**{name: spread_out(operand, axis)})
                message = f"the output is wrong if the {kind} of {name} lie far apart"
                subject.judge(far, message)


INDEXED = (
    PackedCase(),
    PackedCase(queries=(2, 1, 3), keys=(3, 4, 2), heads=2, kv_heads=2, strided=True, dtype=F32),
    PackedCase(queries=(3, 2), keys=(3, 4), window=CAUSAL, dtype=F32, backward=True),
    PackedCase(queries=(2, 3), keys=(4, 3), outside=2, slack=3, dtype=F16),
)


@law("SEQ-21", pinned=INDEXED, explore=cases, cost=2.0)
def law_each_declared_integer_type_of_offsets_is_read(
    subject: PackedSubject, case: PackedCase
) -> None:
    """SEQ-21: offsets of each declared integer type give the rows and gradients of the others."""
    case = subject.expressible(case)
    for dtype in subject.profile.index_type.dtypes:
        call, what = case.but(indices=dtype).draw(subject.profile), str(dtype).partition(".")[2]
        subject.judge(call, f"a result is wrong for offsets of {what}")
        if case.backward:
            message = f"a gradient is wrong for offsets of {what}"
            subject.judge_gradients(call, case.draw_gradient(), message)


WRITTEN = (PackedCase(), PackedCase(queries=(2, 3), keys=(4, 3), window=CAUSAL, dtype=F32))


@law("SEQ-18", pinned=WRITTEN, explore=cases)
def law_packed_operands_are_not_written(subject: PackedSubject, case: PackedCase) -> None:
    """SEQ-18: a call leaves its operands and offsets as they were."""
    case = subject.expressible(case)
    call = case.draw(subject.profile)
    before = {name: each.clone() for name, each in call.tensors().items()}
    subject.call(call)
    for name, each in call.tensors().items():
        same = (each == before[name]) | (each.isnan() & before[name].isnan())
        if not bool(same.all()):
            raise Violation(f"the call writes to {name}")
