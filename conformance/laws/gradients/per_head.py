"""Laws of GRD: the gradients of sinks and slopes, for implementations that give any."""

import torch
from jaxtyping import Float64

from attnspec.conformance.attention.bounds.roundoff import (
    SPARE,
    UNIT,
    Roundoff,
    compound,
    theta,
)
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle_gradients import Gradient
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import caps_bias, readable
from attnspec.conformance.laws.helpers.cases import DTYPES
from attnspec.conformance.laws.helpers.gradients import (
    GROUPED,
    LONG,
    SMALL,
    TINIEST,
    expected_gradient,
    incoming_gradient,
)
from attnspec.conformance.laws.helpers.options import distances, sinks_of
from attnspec.conformance.laws.helpers.rows import additive_mask
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

Terms = Float64[torch.Tensor, "batch heads queries keys"]


@law(
    "GRD-26",
    pinned=(
        TINIEST.but(sinks=True),
        *vary(
            SMALL.but(sinks=True),
            dtype=DTYPES,
            is_causal=(True,),
            softcap=(1.0,),
            window=((2, 1), (1, 0)),
        ),
        GROUPED.but(sinks=True),
        LONG.but(sinks=True),
    ),
    cost=4,
)
def law_gradients_of_sinks_are_right_if_they_have_any(subject: Subject, case: Case) -> None:
    """GRD-26: a sink has no gradient, or the one of the score of a key whose value is zero."""
    call, grad = subject.draw(case, backward=True), incoming_gradient(case)
    if caps_bias(subject, call):
        raise NotClaimed("the softcap would bound the score of the key that stands for the sink")
    sinks = sinks_of(call)
    gradient = _differentiate(subject, call, grad, "sinks")
    mask = additive_mask(readable(subject, call), case.dtype)
    column = sinks.to(case.dtype)[:, None, None].expand(*mask.shape[:3], 1)
    with_key = call.but(
        key=torch.nn.functional.pad(call.key, (0, 0, 0, 1)),
        value=torch.nn.functional.pad(call.value, (0, 0, 0, 1)),
        attn_mask=torch.cat([mask, column], -1),
        is_causal=False,
        window=None,
        sinks=None,
    )
    of_scores = expected_gradient(subject.expect_gradients(with_key, grad), "attn_mask")
    of_sinks = Gradient(exact=of_scores.exact[..., -1:], bound=of_scores.bound[..., -1:])
    _check_sum(subject, case, gradient, of_sinks, torch.ones_like(of_sinks.exact), "sinks")


@law(
    "GRD-26",
    pinned=(
        TINIEST.but(alibi=True, queries=3),
        *vary(
            SMALL.but(alibi=True),
            dtype=DTYPES,
            is_causal=(True,),
            softcap=(1.0,),
            window=((2, 1), (1, 0)),
        ),
        GROUPED.but(alibi=True),
        LONG.but(alibi=True),
    ),
    cost=4,
)
def law_gradients_of_slopes_are_right_if_they_have_any(subject: Subject, case: Case) -> None:
    """GRD-26: a slope has no gradient, or minus the sum of distance times that of a bias."""
    call, grad = subject.draw(case, backward=True), incoming_gradient(case)
    gradient = _differentiate(subject, call, grad, "alibi_slopes")
    # a mask of zeros changes no score, and its gradient is that of any bias
    mask = additive_mask(readable(subject, call), case.dtype)
    masked = call.but(attn_mask=mask.contiguous(), is_causal=False, window=None)
    of_scores = expected_gradient(subject.expect_gradients(masked, grad), "attn_mask")
    factor = -distances(subject, call).expand(of_scores.exact.shape)
    _check_sum(subject, case, gradient, of_scores, factor, "alibi_slopes")


def _differentiate(subject: Subject, call: Call, grad: torch.Tensor, name: str) -> torch.Tensor:
    """Return the gradient of sinks or slopes.

    Raises:
        NotClaimed: if there is none.
    """
    numbers = getattr(call, name).detach().requires_grad_()
    leaves = {operand: getattr(call, operand).detach().requires_grad_() for operand in WRT}
    gradient: torch.Tensor | None
    try:
        with torch.enable_grad():
            out: torch.Tensor = subject.run(call.but(**leaves, **{name: numbers}))
        gradient = torch.autograd.grad(out, numbers, grad, allow_unused=True)[0]
    except Exception as error:
        raise NotClaimed(f"no gradient of {name}") from error
    if gradient is None:
        raise NotClaimed(f"no gradient of {name}")
    subject.last_call, subject.last_grad = call, (grad, (name,))
    return gradient


def _check_sum(
    subject: Subject,
    case: Case,
    gradient: torch.Tensor,
    of_scores: Gradient,
    factor: Terms,
    name: str,
) -> None:
    """Compare a gradient per head with the sum of factors times gradients of scores.

    The bound of each gradient of a score counts its own roundings. The product with the factor and
    the sum, in any order, round once more; at level eager each step does so in the storage type.
    """
    r = Roundoff.of(case.dtype, subject.implementation.profile)
    of_head = (0, 2, 3)
    exact = (factor * of_scores.exact).sum(of_head)
    error = (factor.abs() * of_scores.bound).sum(of_head)
    mass = (factor * of_scores.exact).abs().sum(of_head) + error
    terms = factor[:, 0].numel()
    c = compound(r.gamma(2 * terms + SPARE), r.u_p, theta(3, r.u_s), r.u_in)
    bound = error + c * mass + r.f * (factor.abs().sum(of_head) + 2)
    bound = bound + max(UNIT[gradient.dtype], r.u_s, r.u_in) * (exact.abs() + bound)
    check_close(
        gradient,
        exact,
        bound,
        what=f"gradient of {name}",
        message=f"the gradient of {name} is wrong",
        axes=("head",),
    )
