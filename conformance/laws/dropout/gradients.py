"""The law of DRP on gradients: the backward pass drops the weights that the forward pass did."""

import torch

from attnspec.conformance.attention.bounds.roundoff import Roundoff
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.calls import normal_like
from attnspec.conformance.laws.helpers.cases import DTYPES
from attnspec.conformance.laws.helpers.dropout import (
    DROPOUT,
    TINIEST,
    call_showing_weights,
    kept_weights,
    seeded,
    without_dropout,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case


@law(
    "DRP-8",
    pinned=(
        TINIEST.but(dropout_p=0.5, backward=True),
        *vary(DROPOUT.but(backward=True), dtype=DTYPES, dropout_p=(0.75,)),
        DROPOUT.but(backward=True, queries=17, keys=33, d_head=16, d_value=40),
        # several tiles of queries and of keys
        DROPOUT.but(
            backward=True,
            batch=1,
            heads=2,
            kv_heads=2,
            queries=137,
            keys=131,
            d_head=136,
            d_value=136,
        ),
    ),
)
def law_backward_drops_the_same_weights_as_forward(subject: Subject, case: Case) -> None:
    """DRP-8: the backward pass keeps the weights that the forward pass kept, and no others.

    Dropping weights of a row equals scaling the values that it reads by zero or 1/(1 - p), here a
    power of two. So each row has the gradients of a plain call of its own.
    """
    call = call_showing_weights(subject, case)
    grad_out = normal_like(
        case, "grad_out", call.query.new_empty(*call.query.shape[:3], case.d_value)
    )
    with seeded(case):
        recorded = subject.record(call)
        # advance the generators: the backward pass must not depend on their state
        torch.rand(1, device=call.query.device)
        gradients = subject.backpropagate(recorded, grad_out)
    keep = kept_weights(subject, call, recorded.out.detach())[0]
    message = "the backward pass does not drop what the forward pass dropped"
    if bool(keep.all()):
        message = "the forward pass drops nothing, and the gradient is not of weights over 1 - p"
    factor = keep[..., : case.keys].double() / (1 - case.dropout_p)
    single = _rows_as_batch(without_dropout(call), factor)
    expected = subject.expect_gradients(single, grad_out.transpose(1, 2).flatten(0, 1)[:, :, None])
    shape = (case.batch, case.queries, case.heads)
    r = Roundoff.of(case.dtype, subject.implementation.profile)
    rounding, group = subject.implementation.profile.rounding, case.heads // case.kv_heads
    writes = rounding.partial_writes(case.queries, case.keys, group)[1]
    c = (1 + r.gamma(2 * case.queries + 16)) * (1 + r.u_o) ** (writes + 1) - 1
    for name, gradient in gradients.items():
        expected_gradient = getattr(expected, name)
        exact, bound = (
            tensor.unflatten(0, shape[:2])
            for tensor in (expected_gradient.exact, expected_gradient.bound)
        )
        if name == "query":
            exact, bound = exact.squeeze(3).transpose(1, 2), bound.squeeze(3).transpose(1, 2)
        else:
            scaled = factor.transpose(1, 2)[..., None] if name == "value" else 1.0
            exact, bound = exact * scaled, bound * scaled
            mass = (exact.abs() + bound).sum(1)
            exact, bound = exact.sum(1), bound.sum(1) + c * mass + r.f
        check_close(
            gradient,
            exact,
            bound,
            what=f"gradient of {name}",
            message=message,
            dtype=case.dtype,
        )


def _rows_as_batch(call: Call, factor: torch.Tensor) -> Call:
    """Make each query a batch element, with its values scaled by the factors of its weights."""
    batch, heads, queries, d_head = call.query.shape
    shape = (batch, queries)

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, None].expand(*shape, *tensor.shape[1:]).flatten(0, 1)

    by_row = factor.transpose(1, 2)[..., None] * call.value[:, None].double()
    return call.but(
        query=call.query.transpose(1, 2).reshape(batch * queries, heads, 1, d_head),
        key=repeated(call.key),
        value=by_row.flatten(0, 1).to(call.value.dtype),
    )
