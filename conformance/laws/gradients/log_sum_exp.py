"""Laws of GRD: the gradients of a log-sum-exp that requires one."""

import torch

from attnspec.conformance.attention.call import Call
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
    expected_gradient,
    incoming_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, RoundingLevel

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
    leaves, _, lse = _differentiable(subject, call)
    grad = normal_like(case, "gradient of the log-sum-exp", lse)
    gradients = _gradients(leaves, [lse], [grad])
    subject.last_call = call
    expected = expect_lse_gradients(call, grad, subject.implementation.profile)
    for name, gradient in expected.items():
        message = "the gradient of the log-sum-exp is wrong"
        check_gradient(gradients[name], name, gradient.exact, gradient.bound, message)
    check_zero(gradients["value"], "value", None, "the log-sum-exp depends on the values")


@law(
    "GRD-25",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(WITH_LSE, dtype=DTYPES, is_causal=(True,), mask=(HIDDEN,), softcap=(1.0,)),
        GROUPED.but(return_lse=True),
        WITH_LSE.but(queries=65, keys=67, sinks=True),
    ),
    cost=6,
)
def law_gradients_of_output_and_log_sum_exp_add(subject: Subject, case: Case) -> None:
    """GRD-25: with incoming gradients of both, gradients are the sum of those from each.

    Each bound counts the roundings of its part of dS with room for one more, that of the sum. Only
    at level eager, which stores the sum, half of each is added: each counts two such roundings.
    """
    call = subject.draw(case)
    leaves, out, lse = _differentiable(subject, call)
    of_out = incoming_gradient(case)
    of_lse = normal_like(case, "gradient of the log-sum-exp", lse)
    gradients = _gradients(leaves, [out, lse], [of_out, of_lse])
    subject.last_call = call
    profile = subject.implementation.profile
    by_out = subject.expect_gradients(call, of_out)
    by_lse = expect_lse_gradients(call, of_lse, profile)
    more = 1.5 if profile.rounding.level is RoundingLevel.EAGER else 1.0
    for name in WRT:
        exact, bound = expected_gradient(by_out, name).exact, expected_gradient(by_out, name).bound
        if name in by_lse:
            exact = exact + by_lse[name].exact
            bound = more * (bound + by_lse[name].bound)
        message = "the gradient is wrong if output and log-sum-exp have incoming gradients"
        check_gradient(gradients[name], name, exact, bound, message)


def _differentiable(
    subject: Subject, call: Call
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return leaves, and the output and log-sum-exp of a call of them.

    Raises:
        NotClaimed: if the log-sum-exp requires no gradient.
    """
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in WRT}
    with torch.enable_grad():
        out, lse = subject.call_with_lse(call.but(**leaves))
    if not lse.requires_grad:
        raise NotClaimed("the log-sum-exp requires no gradient")
    return leaves, out, lse


def _gradients(
    leaves: dict[str, torch.Tensor], results: list[torch.Tensor], incoming: list[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the gradients of some results; zeros in place of none.

    Raises:
        NotClaimed: if the log-sum-exp has no derivative.
    """
    try:
        torch.autograd.backward(results, incoming)
    except Exception as error:
        raise NotClaimed("the log-sum-exp has no derivative") from error
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }
