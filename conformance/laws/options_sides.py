"""What the laws of windows, softcap, sinks, ALiBi and the log-sum-exp share."""

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.laws.attention_sides import readable
from attnspec.conformance.laws.masking_sides import spelled_out
from attnspec.conformance.oracle import Expected
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, CausalAlignment, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F64, F16, BF16)
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
GROUPED = Case(batch=2, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(queries=33, keys=65, d_head=64, d_value=64, dtype=F32)
HIDDEN = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
EMPTY_ROWS = Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
UNBIASED = tuple(each for each in MaskPattern if each is not MaskPattern.BIAS)
FLAT = (Values.NORMAL, Values.TIES, Values.TINY, Values.INTEGERS)
"""Families in which every readable key has a weight that can be seen."""
ROW_AXES = ("batch", "head", "query")


def places(subject: Subject, call: Call) -> torch.Tensor:
    """The place of each query among the keys, under the declared alignment, as a column."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    lower_right = subject.implementation.profile.causal_alignment is CausalAlignment.LOWER_RIGHT
    offset = keys - queries if lower_right else 0
    return torch.arange(queries, device=call.query.device)[:, None] + offset


def distances(subject: Subject, call: Call) -> Float64[torch.Tensor, "queries keys"]:
    """How many places lie between each query and each key."""
    key = torch.arange(call.key.shape[2], device=call.key.device)
    return (places(subject, call) - key).abs().double()


def sinks_of(call: Call) -> Float[torch.Tensor, " heads"]:
    """The sinks of a call that has them.

    Raises:
        ValueError: where it has none: a law of sinks was given another case.
    """
    if call.sinks is None:
        raise ValueError("a law of sinks needs a case with sinks")
    return call.sinks


def slopes_of(call: Call) -> Float[torch.Tensor, " heads"]:
    """The slopes of a call that has them.

    Raises:
        ValueError: where it has none: a law of ALiBi was given another case.
    """
    if call.alibi_slopes is None:
        raise ValueError("a law of ALiBi needs a case with slopes")
    return call.alibi_slopes


def lowered(subject: Subject, call: Call) -> Float64[torch.Tensor, "batch heads queries keys"]:
    """What the slopes of a call add to its scores, in float64.

    Raises:
        ValueError: where it has none.
    """
    taken = -slopes_of(call).double()[:, None, None] * distances(subject, call)
    return taken.expand(*call.query.shape[:3], call.key.shape[2])


def masked_out(subject: Subject, call: Call) -> Call:
    """The same call with one full mask that says what mask, causal flag and window say."""
    return spelled_out(subject, call).but(window=None)


def weighted(
    subject: Subject, call: Call, scores: Float64[torch.Tensor, "..."]
) -> tuple[Float64[torch.Tensor, "batch heads queries keys"], torch.Tensor]:
    """The weights of given scores among the keys that may be read, and their log-sum-exp.

    Rows that read nothing have weights of NaN: closed forms leave them to the definition.
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
    """Hold a log-sum-exp to a target, each row within the bound of `expected`.

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


def check_refused(subject: Subject, call: Call, what: str) -> None:
    """Demand that a call raises.

    Args:
        subject: what is judged.
        call: what it is asked.
        what: is wrong with the call.

    Raises:
        Violation: where something comes back.
    """
    try:
        out = subject.run(call)
    except Raised:
        return
    shown = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    raise Violation(f"{what} is accepted: the output is {shown}")
