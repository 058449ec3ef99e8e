"""What the laws of DRP share: calls that show their weights, and what is kept of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from jaxtyping import Bool, Float64

from attnspec.conformance.call import Call
from attnspec.conformance.roundoff import UNIT
from attnspec.conformance.strategies import cases
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Values

Keep = Bool[torch.Tensor, "batch heads queries keys"]
Weights = Float64[torch.Tensor, "batch heads queries d_value"]

TINIEST = Case(queries=2, keys=3, d_head=4, d_value=4, dtype=torch.float32)
DROPPING = Case(
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
OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)


def dropping(subject: Subject) -> SearchStrategy[Case]:
    """Draw calls that drop weights and have a channel to show each of them."""
    drawn = cases(
        scales=(None, 0.5, 0.1),
        families=(Values.NORMAL, Values.TIES, Values.TINY),
        sometimes=OPTIONS,
        only=lambda case: case.keys <= case.d_value,
    )(subject)
    return st.builds(
        lambda case, p: case.but(dropout_p=p), drawn, st.sampled_from(PROBABILITIES)
    ).filter(lambda case: subject.refuses(case) is None)


@contextmanager
def seeded(case: Case) -> Iterator[None]:
    """Draw from the seed of a case, and leave the generators as they were."""
    device = torch.device(case.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(case.seed)
        yield


def without(call: Call) -> Call:
    """The same call without dropout."""
    return call.but(dropout_p=0.0)


def showing(subject: Subject, case: Case) -> Call:
    """A call whose output shows its weights: value *j* is one in channel *j*, else zero.

    Raises:
        NotClaimed: where the case is refused, or there are more keys than channels.
    """
    call = subject.draw(case)
    if case.keys > case.d_value:
        raise NotClaimed("more keys than channels to show them")
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    # narrow scores, so that no weight is lost among the smallest numbers
    return call.but(value=eye.expand_as(call.value).contiguous(), query=call.query / 4)


def kept(subject: Subject, call: Call, out: torch.Tensor) -> tuple[Keep, Weights, Weights]:
    """Tell kept weights from dropped ones.

    A kept weight is divided by 1 - p: a constant that is rounded, a product that is, and one more
    rounding where weights are stored.

    Args:
        subject: what is judged.
        call: that shows its weights.
        out: its output.

    Returns:
        Which weights are kept, padded with kept channels where there are no keys; the exact
        weights over 1 - p; and the bound of each.
    """
    expected = subject.expect(without(call))
    grown = 1 / (1 - call.dropout_p)
    exact = expected.out * grown
    unit = UNIT[call.value.dtype]
    rounding = (1 + unit) ** 3 - 1
    bound = expected.bound * grown * (1 + rounding) + rounding * exact.abs()
    readable = expected.out > 0
    if bool((readable & (expected.out <= 4 * expected.bound)).any()):
        raise NotClaimed("a weight is too small to be told from zero")
    keep = (out != 0) | ~readable
    return keep, exact, bound
