"""Rows of a call with their weights and forward bound, which output and gradients share."""

from dataclasses import dataclass

import torch
from jaxtyping import Int

from attnspec.conformance.attention.bounds.forward import ForwardBound, forward_bound
from attnspec.conformance.attention.bounds.roundoff import Roundoff
from attnspec.conformance.attention.bounds.rows import Rows, rows_of
from attnspec.conformance.attention.bounds.scores import Weights, weights
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.memoize import memoize
from attnspec.conformance.attention.nonfinite import finite_rows
from attnspec.spec import Profile

KEPT = 2
"""Results that are kept: the gradients of a call are judged right after its output."""


@dataclass(frozen=True, kw_only=True)
class ForwardRows:
    """Some rows of a call.

    Attributes:
        stored: with their numbers as stored.
        finite: the same with zeros in place of NaN and infinity.
        weights: the weights of `finite`.
        bound: the forward bound of `finite`.
    """

    stored: Rows
    finite: Rows
    weights: Weights
    bound: ForwardBound


def _forward_rows(call: Call, profile: Profile, indices: Int[torch.Tensor, " rows"]) -> ForwardRows:
    """Compute some rows of a call in float64, with their weights and forward bound.

    Args:
        call: without dropout.
        profile: the profile that the implementation declares.
        indices: the queries, in any order.
    """
    r = Roundoff.of(call.value.dtype, profile)
    with torch.no_grad():
        stored = rows_of(call, profile, indices)
        finite = finite_rows(stored)
        own = weights(finite, r)
        bound = forward_bound(own, finite.value, r)
    return ForwardRows(stored=stored, finite=finite, weights=own, bound=bound)


forward_rows = memoize(_forward_rows, kept=KEPT)
