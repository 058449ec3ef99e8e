"""A law of GRD: the gradients of a log-sum-exp that requires one."""

import torch

from attnspec.conformance.attention.oracle_lse_gradients import expect_lse_gradients
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import normal_like
from attnspec.conformance.laws.helpers.cases import DTYPES, HIDDEN
from attnspec.conformance.laws.helpers.gradients import (
    GROUPED,
    SMALL,
    TINIEST,
    check_gradient,
    check_zero,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

WITH_LSE = SMALL.but(return_lse=True)


@law(
    "GRD-25",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES, is_causal=(True,), mask=(HIDDEN,), scale=(0.5,)),
        *vary(WITH_LSE, softcap=(1.0,), sinks=(True,), alibi=(True,), window=((2, 1),)),
        GROUPED.but(return_lse=True),
        WITH_LSE.but(queries=17, keys=65),
        WITH_LSE.but(batch=1, queries=137, keys=139),
    ),
    cost=4,
)
def law_gradients_of_the_log_sum_exp_are_right_if_it_has_any(subject: Subject, case: Case) -> None:
    """GRD-25: a log-sum-exp requires no gradient, or gives queries and keys that of its weights."""
    call = subject.draw(case)
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
    with torch.enable_grad():
        _, lse = subject.call_with_lse(call.but(**leaves))
    if not lse.requires_grad:
        raise NotClaimed("the log-sum-exp requires no gradient")
    grad = normal_like(case, "gradient of the log-sum-exp", lse)
    try:
        torch.autograd.backward(lse, grad)
    except Exception as error:
        raise NotClaimed("the log-sum-exp has no derivative") from error
    gradients = {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }
    subject.last_call = call
    expected = expect_lse_gradients(call, grad, subject.implementation.profile)
    for name, gradient in expected.items():
        message = "the gradient of the log-sum-exp is wrong"
        check_gradient(gradients[name], name, gradient.exact, gradient.bound, message)
    check_zero(gradients["value"], "value", None, "the log-sum-exp depends on the values")
