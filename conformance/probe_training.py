"""Experiments on what training needs: dropout and gradients."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.probe import Finding, experiment, no
from attnspec.conformance.probe_rig import (
    LOOSEST,
    Rig,
    in_words,
    raised,
)
from attnspec.conformance.violation import Violation
from attnspec.spec import Feature

DROPPED = 0.25
"""The probability of dropping a weight that is tried."""


@experiment("dropout", Feature.DROPOUT)
def dropout(rig: Rig) -> Finding:
    """Whether weights are dropped, and the others divided by 1 - p."""
    question = "dropout"
    _ = rig.base
    missing = rig.lacks("dropout_p")
    if missing:
        return no(question, missing)
    call = rig.draw(dropout_p=DROPPED)
    keys, channels = call.value.shape[2:]
    eye = torch.eye(keys, channels).to(call.value).expand_as(call.value).contiguous()
    call = call.but(query=torch.zeros_like(call.query), value=eye)
    torch.manual_seed(1)
    first = rig.ask(call)
    torch.manual_seed(2)
    second = rig.ask(call)
    if first.out is None or second.out is None:
        problem = first if first.out is None else second
        if problem.is_refusal:
            return no(question, problem.told)
        deviation = f"dropout_p: {problem.problem}"
        return Finding(
            question=question, answer="wrong", evidence=(problem.told,), deviation=deviation
        )
    weights = first.out[..., : min(keys, channels)].double()
    share = float((weights == 0).double().mean())
    kept = weights[weights != 0] * keys
    room = 16 * torch.finfo(call.value.dtype).eps
    evidence = (
        f"{in_words(call)}, equal scores, identity values: {share:.0%} of the weights are zero, "
        f"the others {float(kept.min()):.4g} to {float(kept.max()):.4g} times 1/keys"
        if kept.numel()
        else f"{in_words(call)}: every weight is zero"
    )
    told = ""
    if share == 0:
        told = "ignored"
    elif not kept.numel():
        told = "everything is dropped"
    elif bool(((kept - 1).abs() <= room).all()):
        told = "the weights that are kept are not divided by 1 - p"
    elif not bool(((kept * (1 - DROPPED) - 1).abs() <= room).all()):
        told = "wrong"
    elif torch.equal(first.out, second.out):
        told = "the same weights are dropped whatever the seed of torch"
    if told:
        return Finding(
            question=question, answer=told, evidence=(evidence,), deviation=f"dropout_p: {told}"
        )
    return Finding(
        question=question,
        answer="yes",
        evidence=(evidence,),
        facts={"features": [str(Feature.DROPOUT)]},
    )


def gradients(rig: Rig, call: Call, grad_out: torch.Tensor) -> tuple[dict[str, torch.Tensor], str]:
    """The gradients of query, key and value, or the problem in words."""
    leaves = {
        name: getattr(call, name).detach().clone().requires_grad_()
        for name in ("query", "key", "value")
    }
    try:
        with torch.enable_grad():
            out = rig.attention(*leaves.values(), **call.keywords())
            out = out[0] if call.return_lse else out
            if not isinstance(out, torch.Tensor) or not out.requires_grad:
                return {}, "the output does not ask for a gradient"
            found = torch.autograd.grad(out, list(leaves.values()), grad_out, allow_unused=True)
    except Exception as error:
        return {}, raised(error)
    missing = [name for name, each in zip(leaves, found, strict=True) if each is None]
    if missing:
        return {}, f"no gradient of {', '.join(missing)}"
    return dict(zip(leaves, found, strict=True)), ""


def incoming(call: Call) -> torch.Tensor:
    """A gradient to hand back, the same on every run."""
    shape = (*call.query.shape[:3], call.value.shape[3])
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return drawn.to(call.value)


@experiment("backward", Feature.BACKWARD)
def backward(rig: Rig) -> Finding:
    """Whether gradients come back, and are right."""
    question, call = "backward", rig.draw()
    grad_out = incoming(call)
    found, problem = gradients(rig, call, grad_out)
    told = f"{in_words(call)}, backward"
    if not found:
        return no(question, f"{told}: {problem}")
    due = expect_gradients(rig.meant(call), grad_out, LOOSEST)
    used, wrong = [], []
    for name, gradient in found.items():
        exact = getattr(due, name)
        try:
            fraction = check_close(gradient, exact.exact, exact.bound, what=f"d{name}", message="")
            used.append(f"d{name} {fraction:.2g}")
        except Violation as error:
            wrong.append(f"d{name}: {error.mismatch or error}")
    if wrong:
        return Finding(
            question=question,
            answer="wrong",
            evidence=tuple(f"{told}: {each}" for each in wrong),
            deviation="the gradients are wrong",
        )
    return Finding(
        question=question,
        answer="yes",
        evidence=(f"{told}: {', '.join(used)} of the error bound",),
        facts={"features": [str(Feature.BACKWARD)]},
    )
