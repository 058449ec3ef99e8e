"""Helpers of the laws of DRP: calls whose output is their weights, and the weights kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from jaxtyping import Bool, Float64

from attnspec.conformance.attention.bounds.roundoff import UNIT
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import readable
from attnspec.conformance.laws.helpers.cases import OPTIONS
from attnspec.spec import Case, Values

Keep = Bool[torch.Tensor, "batch heads queries keys"]
Weights = Float64[torch.Tensor, "batch heads queries d_value"]

TINIEST = Case(queries=2, keys=3, d_head=4, d_value=4, dtype=torch.float32)
DROPOUT = Case(
    batch=2,
    heads=3,
    kv_heads=3,
    queries=5,
    keys=7,
    d_head=8,
    d_value=8,
    dtype=torch.float32,
    dropout_p=0.5,
)


PROBABILITIES = (0.5, 0.1, 0.25, 0.75, 0.9)


def dropout_cases(subject: Subject) -> SearchStrategy[Case]:
    """Draw cases with dropout that have a value channel for each key."""
    without_p = cases(
        scales=(None, 0.5, 0.1),
        families=(Values.NORMAL, Values.TIES, Values.TINY),
        sometimes=OPTIONS,
        only=lambda case: case.keys <= case.d_value,
    )(subject)
    return st.builds(
        lambda case, p: case.but(dropout_p=p), without_p, st.sampled_from(PROBABILITIES)
    ).filter(lambda case: subject.refuses(case) is None)


@contextmanager
def seeded(case: Case) -> Iterator[None]:
    """Seed the random generators with the seed of a case, and restore them afterwards."""
    device = torch.device(case.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(case.seed)
        yield


def without_dropout(call: Call) -> Call:
    """Return the same call without dropout."""
    return call.but(dropout_p=0.0)


def call_showing_weights(subject: Subject, case: Case) -> Call:
    """Return a call whose output is its weights: value *j* is one in channel *j*, else zero.

    Raises:
        NotClaimed: if the case is refused, or has more keys than channels.
    """
    call = subject.draw(case)
    if case.keys > case.d_value:
        raise NotClaimed("more keys than channels to show them")
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    # narrow scores, so that no weight underflows
    return call.but(value=eye.expand_as(call.value).contiguous(), query=call.query / 4)


def kept_weights(subject: Subject, call: Call, out: torch.Tensor) -> tuple[Keep, Weights, Weights]:
    """Tell kept weights from dropped ones.

    A kept weight is divided by 1 - p: the constant is rounded, the product is rounded, and the
    weight is rounded once more if it is stored.

    Args:
        subject: the subject to judge.
        call: a call whose output is its weights.
        out: its output.

    Returns:
        True for kept weights, and for channels beyond the keys; the exact weights over 1 - p;
        and their bounds.

    Raises:
        NotClaimed: if a weight is too small to be distinguished from zero.
    """
    expected = subject.expect(without_dropout(call))
    has_weights = readable(subject, call).any(-1, keepdim=True)
    # the mean of an empty row may be one of weights, which are dropped, or computed without them
    is_mean = ~has_weights & (expected.out > 0).any(-1, keepdim=True)
    is_as_without = ((out.double() - expected.out).abs() <= expected.bound).all(-1, keepdim=True)
    has_weights = has_weights | (is_mean & ~is_as_without)
    one = torch.ones((), dtype=torch.float64, device=has_weights.device)
    factor = torch.where(has_weights, one / (1 - call.dropout_p), one)
    exact = expected.out * factor
    unit = UNIT[call.value.dtype]
    rounding = (1 + unit) ** 3 - 1
    bound = expected.bound * factor * (1 + rounding) + rounding * exact.abs()
    bound = torch.where(exact.isnan(), 0.0, bound)  # an empty row may be NaN
    has_weight = has_weights & (expected.out > 0)
    if bool((has_weight & (expected.out <= 4 * expected.bound)).any()):
        raise NotClaimed("a weight is too small to be distinguished from zero")
    keep = (out != 0) | ~has_weight
    return keep, exact, bound
