"""Helpers of the laws of windows, softcap, sinks, ALiBi and the log-sum-exp."""

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.laws.helpers.calls import caps_bias, readable
from attnspec.conformance.laws.helpers.rows import with_explicit_mask
from attnspec.spec import CausalAlignment

ROW_AXES = ("batch", "head", "query")


def query_positions(subject: Subject, call: Call) -> torch.Tensor:
    """Return the position of each query among the keys, by the declared alignment, as a column."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    lower_right = subject.implementation.profile.causal_alignment is CausalAlignment.LOWER_RIGHT
    offset = keys - queries if lower_right else 0
    return torch.arange(queries, device=call.query.device)[:, None] + offset


def distances(subject: Subject, call: Call) -> Float64[torch.Tensor, "queries keys"]:
    """Return the distance of each query from each key, in positions."""
    key = torch.arange(call.key.shape[2], device=call.key.device)
    return (query_positions(subject, call) - key).abs().double()


def sinks_of(call: Call) -> Float[torch.Tensor, " heads"]:
    """Return the sinks of a call that has them.

    Raises:
        ValueError: if it has none, because a law of sinks got another case.
    """
    if call.sinks is None:
        raise ValueError("a law of sinks needs a case with sinks")
    return call.sinks


def slopes_of(call: Call) -> Float[torch.Tensor, " heads"]:
    """Return the slopes of a call that has them.

    Raises:
        ValueError: if it has none, because a law of ALiBi got another case.
    """
    if call.alibi_slopes is None:
        raise ValueError("a law of ALiBi needs a case with slopes")
    return call.alibi_slopes


def alibi_bias(subject: Subject, call: Call) -> Float64[torch.Tensor, "batch heads queries keys"]:
    """Return the bias that the slopes of a call add to its scores, in float64.

    Raises:
        ValueError: if it has no slopes.
    """
    bias = -slopes_of(call).double()[:, None, None] * distances(subject, call)
    return bias.expand(*call.query.shape[:3], call.key.shape[2])


def scores_of_bias(
    subject: Subject, call: Call, bias: Float64[torch.Tensor, "..."]
) -> Float64[torch.Tensor, "..."]:
    """Return the scores of a query of zeros: its bias, bounded if the softcap comes after it."""
    if call.softcap is None or not caps_bias(subject, call):
        return bias
    return call.softcap * torch.tanh(bias / call.softcap)


def with_only_a_mask(subject: Subject, call: Call) -> Call:
    """Return the same call with one full mask in place of mask, causal flag and window."""
    return with_explicit_mask(subject, call).but(window=None)


def weights_of_scores(
    subject: Subject, call: Call, scores: Float64[torch.Tensor, "..."]
) -> tuple[Float64[torch.Tensor, "batch heads queries keys"], torch.Tensor]:
    """Return the weights of given scores among readable keys, and their log-sum-exp.

    Rows that read nothing have weights of NaN: the definition judges them, no closed form.
    """
    scores = torch.where(readable(subject, call), scores, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    if call.sinks is not None:
        lse = torch.logaddexp(lse, call.sinks.double()[:, None, None].expand_as(lse))
    return torch.exp(scores - lse), lse[..., 0]


def check_lse(
    lse: torch.Tensor,
    target: Float[torch.Tensor, "batch heads queries"],
    expected: Expected,
    message: str,
) -> None:
    """Compare a log-sum-exp with a target, each row within the bound of `expected`.

    Raises:
        Violation: naming the worst row.
    """
    check_close(
        lse,
        target,
        expected.lse_bound,
        what="lse",
        message=message,
        may_be_nan=expected.lse_may_be_nan,
        axes=ROW_AXES,
    )


def check_refused(subject: Subject, call: Call, problem: str) -> None:
    """Require that a call raises.

    Args:
        subject: the subject to judge.
        call: the call to make.
        problem: names the improper argument, in the message of a failure.

    Raises:
        Violation: if the call returns.
    """
    try:
        out = subject.run_improper(call)
    except Raised:
        return
    shown = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    raise Violation(f"{problem} is accepted: the output is {shown}")
