"""The law of DRP about gradients: the backward pass drops what the forward pass dropped."""

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import drawn
from attnspec.conformance.laws.dropout_sides import (
    DROPPING,
    TINIEST,
    kept,
    seeded,
    showing,
    without,
)
from attnspec.conformance.roundoff import Roundoff
from attnspec.conformance.strategies import every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Feature

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16


@law(
    "DRP-8",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(dropout_p=0.5, backward=True),
        *every(DROPPING.but(backward=True), dtype=(F32, F64, F16, BF16), dropout_p=(0.75,)),
        DROPPING.but(backward=True, queries=17, keys=33, d_head=16, d_value=40),
    ),
    needs={Feature.DROPOUT, Feature.BACKWARD},
)
def law_gradients_drop_what_was_dropped(subject: Subject, case: Case) -> None:
    """DRP-8: the backward pass keeps the weights that the forward pass kept, and no others.

    Dropping weights of a row is the same as scaling the values that it reads by zero or 1/(1 - p),
    a power of two here: so each row has the gradients of a plain call of its own.
    """
    call = showing(subject, case)
    grad_out = drawn(case, "grad_out", call.query.new_empty(*call.query.shape[:3], case.d_value))
    with seeded(case):
        recorded = subject.record(call)
        # the state of the generators is another one by the time that gradients come
        torch.rand(1, device=call.query.device)
        found = subject.hand_back(recorded, grad_out)
    keep = kept(subject, call, recorded.out.detach())[0]
    factor = keep[..., : case.keys].double() / (1 - case.dropout_p)
    single = _rows(without(call), factor)
    expected = subject.expect_gradients(single, grad_out.transpose(1, 2).flatten(0, 1)[:, :, None])
    shape = (case.batch, case.queries, case.heads)
    r = Roundoff.of(case.dtype, subject.implementation.profile.rounding)
    writes = subject.implementation.profile.rounding.partial_writes(case.queries, case.keys)[1]
    c = (1 + r.gamma(2 * case.queries + 16)) * (1 + r.u_o) ** (writes + 1) - 1
    for name, gradient in found.items():
        due = getattr(expected, name)
        exact, bound = (each.unflatten(0, shape[:2]) for each in (due.exact, due.bound))
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
            message="the backward pass does not drop what the forward pass dropped",
            dtype=case.dtype,
        )


def _rows(call: Call, factor: torch.Tensor) -> Call:
    """Make each query a batch element, with the values scaled by what it keeps of them."""
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
