"""Laws of GRD: how a gradient is asked for. Layouts, repeats, subsets, and grad mode."""

import itertools

import torch

from attnspec.conformance.compare import check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import plain
from attnspec.conformance.laws.gradients_sides import (
    BACKWARD,
    DTYPES,
    F16,
    FEATURES,
    GROUPED,
    SMALL,
    TINIEST,
    check_gradients,
    gradients_of,
    incoming,
    judged_gradients,
    there,
)
from attnspec.conformance.layouts import lay_out
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import WRT, Raised, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Layout, Layouts, Mask, MaskKind, MaskPattern, MaskShape

BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.FULL)
PADDING = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
SHORT = (1, 2, 3, 5, 8, 17, 33)


def strided(grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """An incoming gradient in every layout; where memory is shared, its values repeat."""
    given = {str(layout): lay_out(grad, layout) for layout in Layout}
    first = grad.flatten()[:1]
    given["one number, as of a sum"] = first.reshape(1, 1, 1, 1).expand(grad.shape)
    given["one row for all queries"] = grad[:, :, :1].expand(grad.shape)
    given["one number per row"] = grad[..., :1].expand(grad.shape)
    given["one element for the batch"] = grad[:1].expand(grad.shape)
    given["backwards in memory"] = grad.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    return given


@law(
    "GRD-13",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(2)),
        *every(SMALL, dtype=DTYPES, is_causal=(True,)),
        GROUPED,
        SMALL.but(d_value=5),
        SMALL.but(mask=PADDING, seed=1),
        SMALL.but(queries=17, keys=65, seed=1),
    ),
    wide=(
        *every(TINIEST.but(batch=2, heads=2, kv_heads=2), seed=range(4)),
        *every(SMALL, seed=range(4)),
        *every(GROUPED, seed=range(4)),
        *every(SMALL.but(queries=17, keys=65), seed=range(4)),
    ),
    explore=cases(
        always=BACKWARD, sometimes=FEATURES, lengths=SHORT, layouts=tuple(Layout), only=plain
    ),
    needs={Feature.BACKWARD},
    cost=9,
)
def law_the_layout_of_the_incoming_gradient_means_nothing(subject: Subject, case: Case) -> None:
    """GRD-13: dO may be transposed, sliced or expanded, as that of a sum is."""
    call = subject.draw(case, backward=True)
    grad = incoming(case)
    if not grad.numel():
        raise NotClaimed("there is no incoming gradient")
    for name, given in list(strided(grad).items())[case.seed % 4 :: 4]:
        message = f"wrong where the incoming gradient is {name}"
        judged_gradients(subject, call, given, WRT, message)


@law(
    "GRD-13",
    judges=Judged.ATTENTION,
    pinned=(
        *every(
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
        sometimes=FEATURES,
        lengths=SHORT,
        layouts=tuple(Layout),
        only=lambda case: plain(case) and case.layouts != Layouts(),
    ),
    needs={Feature.BACKWARD},
    cost=4,
)
def law_the_layout_of_the_operands_means_nothing_backward(subject: Subject, case: Case) -> None:
    """GRD-13: gradients are those of the values of the operands, wherever these lie in memory."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    message = "the gradient is wrong for operands in this layout"
    judged_gradients(subject, call, incoming(case), wrt, message)


@law(
    "GRD-14",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0, sinks=True),
    ),
    wide=(SMALL.but(queries=17, keys=65),),
    explore=cases(always=BACKWARD, sometimes=FEATURES, lengths=SHORT, only=plain),
    needs={Feature.BACKWARD},
    cost=6,
)
def law_backward_passes_know_nothing_of_each_other(subject: Subject, case: Case) -> None:
    """GRD-14: calls that are all made before any is differentiated give each its own gradients."""
    wrt = gradients_of(subject, case)
    other = case.but(seed=case.seed + 1)
    asked = [subject.draw(each, backward=True) for each in (case, other, case)]
    grads = [incoming(case), incoming(case, purpose="another grad"), incoming(case)]
    recorded = [subject.record(call, wrt=wrt) for call in asked]
    found = [subject.hand_back(each, grad) for each, grad in zip(recorded, grads, strict=True)]
    # only now, so that a later call which writes over an earlier gradient is seen
    for call, grad, each in zip(asked, grads, found, strict=True):
        subject.last_call, subject.last_grad = call, (grad, wrt)
        expected = subject.expect_gradients(call, grad)
        check_gradients(call, each, expected, "a gradient is that of another call, or was changed")
    if subject.implementation.profile.deterministic:
        for name in wrt:
            check_equal(
                there(found[2][name], name),
                there(found[0][name], name),
                what=f"gradient of {name}",
                message="the same call and incoming gradient must give the same gradients",
            )


@law(
    "GRD-15",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(softcap=2.0, sinks=True),
    ),
    wide=(SMALL.but(queries=17, keys=65),),
    explore=cases(always=BACKWARD, sometimes=FEATURES, lengths=SHORT, only=plain),
    needs={Feature.BACKWARD},
    cost=6,
)
def law_a_second_backward_pass_gives_its_own_gradients(subject: Subject, case: Case) -> None:
    """GRD-15: through one kept graph, each incoming gradient gives the gradients of its own."""
    call = subject.draw(case, backward=True)
    wrt = gradients_of(subject, case)
    first, second = incoming(case), incoming(case, purpose="another grad")
    grads = (first, second, first)
    subject.differentiate(call, first, wrt=wrt)
    recorded = subject.record(call, wrt=wrt)
    try:
        found = [subject.hand_back(recorded, grad, keep=True) for grad in grads]
    except Raised as error:
        raise NotClaimed("keeps no graph for a second backward pass") from error
    for grad, each in zip(grads, found, strict=True):
        subject.last_call, subject.last_grad = call, (grad, wrt)
        message = "a backward pass through a kept graph gives another gradient"
        check_gradients(call, each, subject.expect_gradients(call, grad), message)


@law(
    "GRD-16",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(mask=PADDING, softcap=2.0),
    ),
    wide=(SMALL.but(queries=17, keys=65),),
    explore=cases(always=BACKWARD, sometimes=FEATURES, lengths=SHORT, only=plain),
    needs={Feature.BACKWARD},
    cost=9,
)
def law_each_gradient_may_be_asked_alone(subject: Subject, case: Case) -> None:
    """GRD-16: gradients are the same whichever operands ask for one."""
    call = subject.draw(case, backward=True)
    every_one = gradients_of(subject, case)
    grad = incoming(case)
    for size in range(1, len(every_one)):
        for wrt in itertools.combinations(every_one, size):
            message = f"wrong where only {' and '.join(wrt)} ask for a gradient"
            judged_gradients(subject, call, grad, wrt, message)


@law(
    "GRD-17",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        *every(GROUPED, is_causal=(True,), d_value=(5,)),
        SMALL.but(mask=BIAS),
        SMALL.but(mask=PADDING, softcap=2.0),
        SMALL.but(queries=17, keys=65, return_lse=True),
        SMALL.but(queries=65, keys=17, sinks=True),
    ),
    explore=cases(always=BACKWARD, sometimes=(*FEATURES, Feature.LSE), lengths=SHORT, only=plain),
    needs={Feature.BACKWARD},
    cost=4,
)
def law_asking_for_gradients_changes_no_output(subject: Subject, case: Case) -> None:
    """GRD-17: the output is that of the call without gradients, and asks for none where none do."""
    call = subject.draw(case, backward=True)
    bare = subject.call(call)
    if bare.requires_grad:
        raise Violation("the output must not require a gradient where no operand does")
    subject.judge(call, bare, "wrong without gradients")
    out, _ = subject.differentiate(call, incoming(case), wrt=gradients_of(subject, case))
    subject.judge(call, out, "the output is another one where gradients are asked for")
    with torch.no_grad():
        leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
        quiet = subject.call(call.but(**leaves))
    if quiet.requires_grad:
        raise Violation("the output must not require a gradient in no_grad mode")
    subject.judge(call, quiet, "the output is another one in no_grad mode")
