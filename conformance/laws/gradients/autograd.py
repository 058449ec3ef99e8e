"""Laws of GRD: what happens between a forward pass and its backward pass."""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed, Raised
from attnspec.conformance.laws.helpers.calls import new_contents, normal_like, plain
from attnspec.conformance.laws.helpers.cases import DTYPES, HIDDEN, OPTIONS
from attnspec.conformance.laws.helpers.gradients import (
    BACKWARD,
    BIAS,
    GROUPED,
    SMALL,
    TINIEST,
    check_gradients,
    check_zero,
    incoming_gradient,
    operands_with_gradient,
)
from attnspec.conformance.laws.helpers.threads import run_at_once
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

SHORT = (1, 2, 3, 5, 8, 17, 33)


@law(
    "GRD-22",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=HIDDEN),
        SMALL.but(mask=BIAS, mask_gradient=True),
        TINIEST.but(sinks=True),
        TINIEST.but(alibi=True),
    ),
    explore=cases(always=BACKWARD, sometimes=OPTIONS, lengths=SHORT, only=plain),
    cost=8,
)
def law_gradients_are_those_of_the_numbers_of_the_forward_pass(
    subject: Subject, case: Case
) -> None:
    """GRD-22: if a tensor is overwritten before the backward pass, that raises or uses the old one.

    The output is overwritten as well: fused kernels save it for the backward pass.
    """
    wrt = operands_with_gradient(subject, case)
    grad = incoming_gradient(case)
    for name in (*subject.draw(case, backward=True).tensors, "out"):
        call, original = (subject.draw(case, backward=True) for _ in range(2))
        recorded = subject.record(call, wrt=wrt)
        # an operand shares its memory, and autograd's count of changes, with its leaf
        changed = recorded.out.detach() if name == "out" else getattr(call, name)
        changed.copy_(new_contents(case, name, changed))
        try:
            gradients = subject.backpropagate(recorded, grad)
        except Raised:
            continue
        subject.last_call = original
        message = f"the gradient is wrong if {name} is overwritten between forward and backward"
        check_gradients(original, gradients, subject.expect_gradients(original, grad), message)


@law(
    "GRD-23",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=BIAS, mask_gradient=True),
        SMALL.but(queries=33, keys=65, d_head=16, d_value=16),
    ),
    cost=20,
)
def law_backward_passes_may_run_in_any_thread(subject: Subject, case: Case) -> None:
    """GRD-23: a backward pass in another thread, or two at once, give each its own gradients."""
    wrt = operands_with_gradient(subject, case)
    calls = [subject.draw(case.but(seed=case.seed + n), backward=True) for n in (0, 1)]
    grads = [incoming_gradient(case, purpose=purpose) for purpose in ("grad", "another grad")]
    expected = [
        subject.expect_gradients(call, grad) for call, grad in zip(calls, grads, strict=True)
    ]
    recorded = subject.record(calls[0], wrt=wrt)
    with ThreadPoolExecutor(1) as pool:
        gradients = pool.submit(subject.backpropagate, recorded, grads[0]).result()
    message = "the gradient is wrong if the backward pass runs in another thread"
    check_gradients(calls[0], gradients, expected[0], message)
    results = run_at_once(
        [
            functools.partial(subject.differentiate, call, grad, wrt=wrt)
            for call, grad in zip(calls, grads, strict=True)
        ]
    )
    message = "the gradient is wrong while another thread differentiates"
    for call, grad, expected_gradients, rounds in zip(calls, grads, expected, results, strict=True):
        subject.last_call, subject.last_grad = call, (grad, wrt)
        for _, gradients in rounds:
            check_gradients(call, gradients, expected_gradients, message)


@law(
    "GRD-24",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        GROUPED.but(is_causal=True),
        SMALL.but(mask=HIDDEN),
        SMALL.but(softcap=2.0),
        SMALL.but(sinks=True),
    ),
    cost=4,
)
def law_second_derivatives_are_right_or_raise(subject: Subject, case: Case) -> None:
    """GRD-24: the gradient of the values is differentiated rightly, or its derivative raises.

    dV is linear in the incoming gradient and does not depend on the values. So the derivatives of
    the inner product of dV and a tensor of values are, by the incoming gradient, the output of a
    call with these values, and by queries and keys the gradients of that call.
    """
    call, grad = subject.draw(case, backward=True), incoming_gradient(case)
    values = normal_like(case, "values of the second derivative", call.value)
    second = call.but(value=values)
    recorded = subject.record(call)
    grad_out = grad.clone().requires_grad_()
    try:
        d_value = torch.autograd.grad(
            recorded.out, recorded.leaves["value"], grad_out, create_graph=True
        )[0]
        if d_value.requires_grad:
            # not by autograd.grad, which skips a node that raises if no operand lies behind it
            torch.autograd.backward(d_value, values)
    except Exception as error:
        raise NotClaimed("a gradient has no derivative") from error
    if not d_value.requires_grad:
        raise NotClaimed("a gradient requires no gradient")
    leaves = {"grad_out": grad_out, **recorded.leaves}
    derivatives = {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }
    subject.last_call, subject.last_grad = second, None
    message = "the derivative of dV by the incoming gradient is wrong"
    check_oracle(second, derivatives.pop("grad_out"), subject.expect(second), message)
    check_zero(derivatives.pop("value"), "value", None, "dV depends on the values")
    subject.last_grad = (grad, ("query", "key"))
    message = "the derivative of dV by queries or keys is wrong"
    check_gradients(second, derivatives, subject.expect_gradients(second, grad), message)
