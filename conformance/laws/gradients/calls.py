"""Laws of GRD: layouts, repeated backward passes, subsets of operands, and grad mode."""

import itertools
import math

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.close import check_equal
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F16, OPTIONS, PADDING
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    BIAS,
    GROUPED,
    LONG,
    SMALL,
    TINIEST,
    check_gradients,
    differentiate_and_judge,
    incoming_gradient,
    operands_with_gradient,
    require_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Layout, Layouts

SHORT = (1, 2, 3, 5, 8, 17, 33)


def incoming_layouts(grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return an incoming gradient in every layout, by name; shared memory repeats its values."""
    layouts = {str(layout): lay_out(grad, layout) for layout in Layout}
    number = grad.flatten()[:1]
    layouts["one number, as of a sum"] = number.reshape(1, 1, 1, 1).expand(grad.shape)
    layouts["one row for all queries"] = grad[:, :, :1].expand(grad.shape)
    layouts["one number per row"] = grad[..., :1].expand(grad.shape)
    layouts["one element for the batch"] = grad[:1].expand(grad.shape)
    layouts["backwards in memory"] = grad.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    return layouts


PENDING = ((2**17, 66), (math.inf, 6))
"""Calls that are made before the first of them is differentiated, as in a model of many layers.

The numbers are those of calls with up to so many scores in a head: few long ones are made, since
they take long.
"""


@law(
    "GRD-13",
    pinned=(
        *vary(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(2)),
        *vary(SMALL, dtype=DTYPES, is_causal=(True,)),
        GROUPED,
        SMALL.but(d_value=5),
        SMALL.but(mask=PADDING, seed=1),
        SMALL.but(queries=17, keys=65, seed=1),
        *vary(LONG, seed=range(4)),
    ),
    wide=(
        *vary(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(4)),
        *vary(SMALL, seed=range(4)),
        *vary(GROUPED, seed=range(4)),
        *vary(SMALL.but(queries=17, keys=65), seed=range(4)),
    ),
    explore=cases(
        always=BACKWARD, sometimes=OPTIONS, lengths=SHORT, layouts=tuple(Layout), only=plain
    ),
    cost=9,
)
def law_the_layout_of_the_incoming_gradient_changes_nothing(subject: Subject, case: Case) -> None:
    """GRD-13: dO may be transposed, sliced or expanded, as the gradient of a sum is."""
    call = subject.draw(case, backward=True)
    grad = incoming_gradient(case)
    if not grad.numel():
        raise NotClaimed("there is no incoming gradient")
    for name, laid_out in list(incoming_layouts(grad).items())[case.seed % 4 :: 4]:
        message = f"the gradient is wrong for an incoming one of this layout: {name}"
        differentiate_and_judge(subject, call, laid_out, WRT, message)


@law(
    "GRD-13",
    pinned=(
        *vary(
            TINIEST.but(batch=2, heads=2, kv_heads=2),
            layouts=[Layouts(**{name: Layout.HEADS_INSIDE}) for name in WRT],
        ),
        *(
            GROUPED.but(layouts=Layouts(**{name: layout}))
            for name in WRT
            for layout in Layout
            if layout is not Layout.CONTIGUOUS
        ),
        SMALL.but(mask=BIAS, mask_gradient=True, layouts=Layouts(mask=Layout.TRANSPOSED)),
        SMALL.but(mask=BIAS, mask_gradient=True, layouts=Layouts(mask=Layout.SLICED)),
        SMALL.but(dtype=F16, layouts=Layouts(key=Layout.EXPANDED, value=Layout.EXPANDED)),
    ),
    wide=(SMALL.but(mask=BIAS, mask_gradient=True, layouts=Layouts(mask=Layout.EXPANDED)),),
    explore=cases(
        always=BACKWARD,
        sometimes=OPTIONS,
        lengths=SHORT,
        layouts=tuple(Layout),
        only=lambda case: plain(case) and case.layouts != Layouts(),
    ),
    cost=4,
)
def law_the_layout_of_the_operands_changes_no_gradient(subject: Subject, case: Case) -> None:
    """GRD-13: gradients are those of the values of the operands, wherever these lie in memory."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    message = "the gradient is wrong for operands in this layout"
    differentiate_and_judge(subject, call, incoming_gradient(case), wrt, message)


@law(
    "GRD-14",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0, sinks=True),
        # as many as a model has layers, of more than a tile
        SMALL.but(batch=1, heads=1, kv_heads=1, queries=130, keys=130, is_causal=True),
        SMALL.but(batch=1, heads=1, kv_heads=1, queries=261, keys=261, is_causal=True, seed=1),
        LONG,
        # longer than the tiles of 512 and of 1 024 of which a kernel keeps statistics
        SMALL.but(
            batch=1, heads=1, kv_heads=1, queries=1100, keys=1100, d_head=8, d_value=8, dtype=BF16
        ),
        LONG.but(queries=600, keys=600, heads=2, kv_heads=1, d_head=64, d_value=64, seed=1),
    ),
    wide=(SMALL.but(queries=17, keys=65),),
    explore=cases(always=BACKWARD, sometimes=OPTIONS, lengths=SHORT, only=plain),
    cost=6,
)
def law_backward_passes_are_independent(subject: Subject, case: Case) -> None:
    """GRD-14: calls that are all made before any is differentiated give each its own gradients."""
    wrt = operands_with_gradient(subject, case)
    scores = case.queries * case.keys
    pending = next(count for largest, count in PENDING if scores <= largest)
    # two halves: any number of calls apart, two of other numbers are
    half = pending // 2
    calls, grads, expectations = [], [], []
    for seed, purpose in ((case.seed, "one grad"), (case.seed + 1, "another grad")):
        calls += [subject.draw(case, backward=True, seed=seed) for _ in range(half)]
        grads += [incoming_gradient(case, purpose=purpose)] * half
        expectations += [subject.expect_gradients(calls[-1], grads[-1])] * half
    recorded = [subject.record(call, wrt=wrt) for call in calls]
    results = [
        subject.backpropagate(item, grad) for item, grad in zip(recorded, grads, strict=True)
    ]
    # judged only now, to detect a later call that overwrites an earlier gradient
    for call, grad, gradients, expected in zip(calls, grads, results, expectations, strict=True):
        subject.last_call, subject.last_grad = call, (grad, wrt)
        check_gradients(
            call, gradients, expected, "a gradient belongs to another call, or was changed"
        )
    if subject.implementation.profile.deterministic:
        for name in wrt:
            check_equal(
                require_gradient(results[1][name], name),
                require_gradient(results[0][name], name),
                what=f"gradient of {name}",
                message="the same call and incoming gradient must give the same gradients",
            )


@law(
    "GRD-15",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0, sinks=True),
        LONG,
    ),
    wide=(SMALL.but(queries=17, keys=65),),
    explore=cases(always=BACKWARD, sometimes=OPTIONS, lengths=SHORT, only=plain),
    cost=6,
)
def law_a_second_backward_pass_gives_its_own_gradients(subject: Subject, case: Case) -> None:
    """GRD-15: through one kept graph, each incoming gradient gives its own gradients."""
    call = subject.draw(case, backward=True)
    wrt = operands_with_gradient(subject, case)
    first, second = incoming_gradient(case), incoming_gradient(case, purpose="another grad")
    grads = (first, second, first)
    subject.differentiate(call, first, wrt=wrt)
    recorded = subject.record(call, wrt=wrt)
    try:
        results = [subject.backpropagate(recorded, grad, keep=True) for grad in grads]
    except Raised as error:
        raise NotClaimed("keeps no graph for a second backward pass") from error
    for grad, gradients in zip(grads, results, strict=True):
        subject.last_call, subject.last_grad = call, (grad, wrt)
        message = "a backward pass through a kept graph gives a wrong gradient"
        check_gradients(call, gradients, subject.expect_gradients(call, grad), message)


@law(
    "GRD-16",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(mask=PADDING, softcap=2.0),
        SMALL.but(batch=1, queries=137, keys=139),
        LONG,
    ),
    wide=(
        SMALL.but(queries=17, keys=65),
        # one query that pools a text, and values of another width
        SMALL.but(batch=4, queries=1, keys=300, d_head=64, d_value=32),
    ),
    explore=cases(always=BACKWARD, sometimes=OPTIONS, lengths=SHORT, only=plain),
    cost=9,
)
def law_each_gradient_may_be_computed_alone(subject: Subject, case: Case) -> None:
    """GRD-16: gradients are the same whichever operands require one."""
    call = subject.draw(case, backward=True)
    operands = operands_with_gradient(subject, case)
    grad = incoming_gradient(case)
    for size in range(1, len(operands)):
        for wrt in itertools.combinations(operands, size):
            message = f"the gradient is wrong if only {' and '.join(wrt)} require one"
            differentiate_and_judge(subject, call, grad, wrt, message)


@law(
    "GRD-17",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        *vary(GROUPED, is_causal=(True,), d_value=(5,)),
        SMALL.but(mask=BIAS),
        SMALL.but(mask=PADDING, softcap=2.0),
        SMALL.but(queries=17, keys=65, return_lse=True),
        SMALL.but(queries=65, keys=17, sinks=True),
    ),
    explore=cases(always=BACKWARD, sometimes=(*OPTIONS, Feature.LSE), lengths=SHORT, only=plain),
    cost=4,
)
def law_requiring_gradients_changes_no_output(subject: Subject, case: Case) -> None:
    """GRD-17: gradients do not change the output, which requires none if no operand does."""
    call = subject.draw(case, backward=True)
    without_gradients = subject.call(call)
    if without_gradients.requires_grad:
        raise Violation("the output must not require a gradient if no operand does")
    subject.judge(call, without_gradients, "the output is wrong without gradients")
    out, _ = subject.differentiate(
        call, incoming_gradient(case), wrt=operands_with_gradient(subject, case)
    )
    subject.judge(call, out, "the output is wrong if gradients are requested")
    with torch.no_grad():
        leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
        in_no_grad = subject.call(call.but(**leaves))
    if in_no_grad.requires_grad:
        raise Violation("the output must not require a gradient in no_grad mode")
    subject.judge(call, in_no_grad, "the output is wrong in no_grad mode")
