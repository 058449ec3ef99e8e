"""An attention in a few lines, from which the tests make kernels of other signatures."""

import inspect

import torch

from attnspec.conformance.api import check_attention
from attnspec.conformance.report.record import CONFORMING, Outcome
from attnspec.spec import (
    CausalAlignment,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

EAGER = Profile(
    masked_keys=MaskedNonfinite.PROPAGATES,
    masked_values=MaskedNonfinite.PROPAGATES,
    rounding=Rounding(level=RoundingLevel.EAGER),
)
LOWER_RIGHT = Profile(
    causal_alignment=CausalAlignment.LOWER_RIGHT,
    masked_keys=MaskedNonfinite.PROPAGATES,
    masked_values=MaskedNonfinite.PROPAGATES,
    rounding=Rounding(level=RoundingLevel.EAGER),
)


def plain(query, key, value, *, visible=None, bias=None, scale=None, softcap=None, sinks=None):
    """Return out (batch, heads, queries, d_value) and lse (batch, heads, queries).

    Grouped heads share key/value heads by their numbers; empty rows are zero.
    """
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    extra = scores if sinks is None else torch.cat([scores, column(sinks, scores)], dim=-1)
    lse = extra.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    weights = weights.masked_fill((scores == -torch.inf).expand_as(weights), 0.0)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value), lse


def column(sinks, scores):
    """Return one more score for each query."""
    return sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)


def in_place(queries, keys, offset):
    """Return, for each pair, how far the key lies behind the query's own position."""
    return torch.arange(keys) - torch.arange(queries)[:, None] - offset


def outcomes(attention, *features, laws, profile=EAGER, supports=None, dtypes=(torch.float32,)):
    """Return the outcomes of laws on an adapted kernel, tried with a few cases."""
    declared = Implementation(
        name="adapted",
        attention=attention,
        features=frozenset(map(Feature, features)),
        dtypes=dtypes,
        profile=profile,
        supports=supports or no_empty_tensor,
    )
    return {record.outcome for record in check_attention(declared, effort="smoke", laws=laws)}


def no_empty_tensor(case):
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    return None if min(sizes) else "the kernels of these tests take no empty tensor"


def is_right(found):
    """Return whether no law is broken, and one at least was tried."""
    return found <= CONFORMING and Outcome.PASSED in found


def is_wrong(found):
    """Return whether a law is broken by a wrong result."""
    return Outcome.FAILED in found


def parameters(attention):
    """Return the names of the options that an adapted function takes."""
    return set(inspect.signature(attention).parameters) - {"query", "key", "value"}
