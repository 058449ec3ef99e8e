"""A law of TEN: one tensor may be passed as several arguments."""

import itertools

import torch

from attnspec.conformance.attention.bounds.roundoff import UNIT, theta
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import WRT, Recorded, Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, GROUPED, HIDDEN, SMALL, TINIEST
from attnspec.conformance.laws.helpers.gradients import (
    check_gradient,
    check_gradients,
    expected_gradient,
    incoming_gradient,
    require_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

SQUARE = SMALL.but(keys=5)
SHARING = tuple(
    names for size in (2, 3) for names in itertools.combinations(("query", "key", "value"), size)
)
"""The arguments that may be one tensor."""


@law(
    "TEN-17",
    pinned=(
        TINIEST.but(keys=2),
        *vary(SQUARE, dtype=DTYPES, is_causal=(True,), scale=(0.5,), mask=(HIDDEN,)),
        SMALL,
        SQUARE.but(d_value=3),
        GROUPED,
        SQUARE.but(softcap=1.0, window=(2, 1)),
        SMALL.but(d_head=24, d_value=16, is_causal=False),
        # the keys and values of latent attention, in several tiles
        SMALL.but(d_head=72, d_value=64, heads=4, kv_heads=1, queries=2, keys=150, is_causal=False),
        # more keys than a kernel reads at once
        GROUPED.but(batch=1, heads=2, kv_heads=1, queries=2, keys=1100, d_head=128, d_value=128),
    ),
    wide=(
        GROUPED.but(batch=1, heads=4, queries=520, keys=520, d_head=8, d_value=8),
        # queries that are the keys of a causal model, and keys that are the values of a cache
        SMALL.but(queries=130, keys=130, d_head=64, d_value=64, is_causal=True, dtype=BF16),
        GROUPED.but(queries=1, keys=300, d_head=64, d_value=64, dtype=BF16),
    ),
    cost=6,
)
def law_one_tensor_may_be_several_arguments(subject: Subject, case: Case) -> None:
    """TEN-17: the output is that of equal tensors, and the gradient is the sum of theirs."""
    combinations = possible(case)
    if case.d_value < case.d_head:
        call = subject.draw(case)
        call = call.but(value=call.key[..., : case.d_value])
        message = "the output is wrong if values are the first channels of the keys"
        subject.judge(call, subject.call(call), message)
    elif not combinations:
        raise NotClaimed("no two arguments have one shape")
    for names in combinations:
        call = subject.draw(case)
        call = call.but(**dict.fromkeys(names, getattr(call, names[0])))
        out = subject.call(call)
        message = f"the output is wrong if {' and '.join(names)} are one tensor"
        check_oracle(call, out, subject.expect(call), message)
        if subject.refuses(case.but(backward=True)) is None:
            _check_gradients(subject, case, call, names)


def possible(case: Case) -> tuple[tuple[str, ...], ...]:
    """Return the arguments of a case that have one shape and so may be one tensor."""
    shapes = {
        "query": (case.heads, case.queries, case.d_head),
        "key": (case.kv_heads, case.keys, case.d_head),
        "value": (case.kv_heads, case.keys, case.d_value),
    }
    return tuple(names for names in SHARING if len({shapes[name] for name in names}) == 1)


def _check_gradients(subject: Subject, case: Case, call: Call, names: tuple[str, ...]) -> None:
    """Compare the gradients of a call, some of whose arguments are one tensor, with the oracle.

    The gradient of the shared tensor is the sum of those of its arguments. If its parts are added
    in any order, the sum has as many times the terms of one gradient as there are arguments, so the
    errors of its additions grow by that factor; and each gradient is added once as it is stored.
    """
    grad = incoming_gradient(case)
    shared = getattr(call, names[0]).detach().requires_grad_()
    others = [name for name in WRT if name not in names]
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in others}
    with torch.enable_grad():
        out = subject.call(call.but(**leaves, **dict.fromkeys(names, shared)))
    recorded = Recorded(call=call, leaves={names[0]: shared} | leaves, out=out)
    gradients = subject.backpropagate(recorded, grad)
    expected = subject.expect_gradients(call, grad)
    message = f"the gradient is wrong if {' and '.join(names)} are one tensor"
    summed = [expected_gradient(expected, name) for name in names]
    exact = torch.stack([part.exact for part in summed]).sum(0)
    bound = torch.stack([part.bound for part in summed]).sum(0)
    mass = torch.stack([part.exact.abs() for part in summed]).sum(0) + bound
    bound = len(names) * bound + theta(len(names), UNIT[case.dtype]) * mass
    check_gradient(require_gradient(gradients[names[0]], names[0]), names[0], exact, bound, message)
    check_gradients(call, {name: gradients[name] for name in others}, expected, message)
