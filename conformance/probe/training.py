"""Experiments on training: dropout and gradients."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.probe.experiment import Finding, not_supported
from attnspec.conformance.probe.harness import (
    LOOSEST,
    Harness,
    describe,
    describe_exception,
)
from attnspec.spec import Feature

DROPPED = 0.25
"""The dropout probability of the experiment."""


def dropout(harness: Harness) -> Finding:
    """Find out whether attention weights are dropped, and the others divided by 1 - p."""
    call = harness.draw(dropout_p=DROPPED)
    keys, channels = call.value.shape[2:]
    eye = torch.eye(keys, channels).to(call.value).expand_as(call.value).contiguous()
    call = call.but(query=torch.zeros_like(call.query), value=eye)
    torch.manual_seed(1)
    first = harness.run(call)
    torch.manual_seed(2)
    second = harness.run(call)
    if first.out is None or second.out is None:
        problem = first if first.out is None else second
        if problem.is_refusal:
            return not_supported(problem.message)
        deviation = f"dropout_p: {problem.problem}"
        return Finding(answer="wrong", evidence=(problem.message,), deviation=deviation)
    weights = first.out[..., : min(keys, channels)].double()
    share = float((weights == 0).double().mean())
    kept = weights[weights != 0] * keys
    tolerance = 16 * torch.finfo(call.value.dtype).eps
    evidence = (
        f"{describe(call)}, equal scores, identity values: {share:.0%} of the weights are zero, "
        f"the others {float(kept.min()):.4g} to {float(kept.max()):.4g} times 1/keys"
        if kept.numel()
        else f"{describe(call)}: every weight is zero"
    )
    mistake = ""
    if share == 0:
        mistake = "ignored"
    elif not kept.numel():
        mistake = "everything is dropped"
    elif bool(((kept - 1).abs() <= tolerance).all()):
        mistake = "the weights that are kept are not divided by 1 - p"
    elif not bool(((kept * (1 - DROPPED) - 1).abs() <= tolerance).all()):
        mistake = "wrong"
    elif torch.equal(first.out, second.out):
        mistake = "the same weights are dropped whatever the seed of torch"
    if mistake:
        return Finding(
            answer=mistake,
            evidence=(evidence,),
            deviation=f"dropout_p: {mistake}",
        )
    return Finding(
        answer="yes",
        evidence=(evidence,),
        facts={"features": [str(Feature.DROPOUT)]},
    )


def gradients(
    harness: Harness, call: Call, grad_out: torch.Tensor
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the gradients of query, key and value; if there are none, a problem in words."""
    leaves = {
        name: getattr(call, name).detach().clone().requires_grad_()
        for name in ("query", "key", "value")
    }
    try:
        with torch.enable_grad():
            out = harness.attention(*leaves.values(), **call.keywords())
            out = out[0] if call.return_lse else out
            if not isinstance(out, torch.Tensor) or not out.requires_grad:
                return {}, "the output does not require a gradient"
            if out.shape != grad_out.shape:
                return {}, f"the output must have shape {tuple(grad_out.shape)}"
            # of a number: torch imports sympy, for half a second, to check one that is given
            total = (out * grad_out).sum()
            results = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except Exception as error:
        return {}, describe_exception(error)
    missing = [name for name, grad in zip(leaves, results, strict=True) if grad is None]
    if missing:
        return {}, f"no gradient of {', '.join(missing)}"
    return dict(zip(leaves, results, strict=True)), ""


def incoming(call: Call) -> torch.Tensor:
    """Return an incoming gradient for a call, the same on every run."""
    shape = (*call.query.shape[:3], call.value.shape[3])
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return drawn.to(call.value)


def backward(harness: Harness) -> Finding:
    """Find out whether there are gradients, and whether they are right."""
    call = harness.draw()
    grad_out = incoming(call)
    computed, problem = gradients(harness, call, grad_out)
    description = f"{describe(call)}, backward"
    if not computed:
        return not_supported(f"{description}: {problem}")
    expected_gradients = expect_gradients(harness.oracle_call(call), grad_out, LOOSEST)
    used, wrong = [], []
    for name, gradient in computed.items():
        expected = getattr(expected_gradients, name)
        try:
            fraction = check_close(
                gradient, expected.exact, expected.bound, what=f"d{name}", message=""
            )
            used.append(f"d{name} {fraction:.2g}")
        except Violation as error:
            wrong.append(f"d{name}: {error.mismatch or error}")
    if wrong:
        return Finding(
            answer="wrong",
            evidence=tuple(f"{description}: {mismatch}" for mismatch in wrong),
            deviation="the gradients are wrong",
        )
    return Finding(
        answer="yes",
        evidence=(f"{description}: {', '.join(used)} of the error bound",),
        facts={"features": [str(Feature.BACKWARD)]},
    )
