"""The law of DRP on gradients: the backward pass drops the weights that the forward pass did."""

import torch
from jaxtyping import Float, Int

from attnspec.conformance.attention.bounds.roundoff import Roundoff
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.calls import in_groups, normal_like, repeat_kv
from attnspec.conformance.laws.helpers.cases import BIAS, DTYPES, PADDING
from attnspec.conformance.laws.helpers.dropout import (
    DROPOUT,
    TINIEST,
    call_showing_weights,
    kept_weights,
    seeded,
    without_dropout,
)
from attnspec.conformance.laws.helpers.options import alibi_bias, with_only_a_mask
from attnspec.conformance.laws.helpers.rows import additive_mask
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Layout, Layouts

INSIDE = Layouts(query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE)
GROUPED = DROPOUT.but(backward=True, heads=4, kv_heads=2, is_causal=True)

NUMBERS = 2**21
"""Numbers of the keys and values of the rows that are judged at once: each row has its own."""


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
        *vary(
            DROPOUT.but(backward=True),
            kv_heads=(1,),
            is_causal=(True,),
            alibi=(True,),
            window=((2, 1),),
            softcap=(1.0,),
        ),
        GROUPED,
        GROUPED.but(alibi=True),
        # more queries than one launch of a kernel may take
        DROPOUT.but(backward=True, batch=1, queries=263, keys=8, d_head=16, d_value=16),
        GROUPED.but(batch=1, queries=67, keys=67, d_head=72, d_value=72),
        GROUPED.but(batch=1, heads=8, d_head=64, d_value=64),
        # what else comes with training: padding, biases, sinks, transposed projections
        *vary(DROPOUT.but(backward=True), mask=(PADDING, BIAS), sinks=(True,), layouts=(INSIDE,)),
    ),
    # the oracle judges each query as a batch element with keys of its own
    cost=60,
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
    expected = _gradients_by_rows(subject, without_dropout(call), factor, grad_out)
    r = Roundoff.of(case.dtype, subject.implementation.profile)
    rounding, group = subject.implementation.profile.rounding, case.heads // case.kv_heads
    writes = rounding.partial_writes(case.queries, case.keys, group)[1]
    c = (1 + r.gamma(2 * case.queries * group + 16)) * (1 + r.u_o) ** (writes + 1) - 1
    for name, gradient in gradients.items():
        exact, bound, mass = expected[name]
        if name != "query":
            exact, bound, mass = (
                in_groups(subject, each, case.kv_heads).sum(2) for each in (exact, bound, mass)
            )
            bound = bound + c * mass + r.f
        check_close(
            gradient,
            exact,
            bound,
            what=f"gradient of {name}",
            message=message,
            dtype=case.dtype,
        )


def _gradients_by_rows(
    subject: Subject,
    call: Call,
    factor: Float[torch.Tensor, "batch heads queries keys"],
    grad_out: Float[torch.Tensor, "batch heads queries d_value"],
) -> dict[str, Float[torch.Tensor, "3 batch heads length channels"]]:
    """Return exact gradients, their bounds and their mass, from a call of its own for each row.

    The mass is the sum of the largest absolute values that rows may have. Gradients of keys and
    values are those of the copies that each query head has.

    Args:
        subject: the implementation, of which only the claims are read.
        call: without dropout.
        factor: of each weight: 0, or 1/(1 - p).
        grad_out: the incoming gradient.
    """
    batch, heads, queries, d_head = call.query.shape
    numbers = batch * heads * call.key.shape[2] * (d_head + call.value.shape[3])
    at_once = max(1, NUMBERS // max(1, numbers))
    rows: dict[str, list[torch.Tensor]] = {"exact": [], "bound": []}
    sums = {name: torch.zeros((), dtype=torch.float64) for name in ("key", "value")}
    for part in torch.arange(queries).split(at_once):
        single = _rows_as_batch(subject, call, factor, part)
        incoming = grad_out[:, :, part].transpose(1, 2).flatten(0, 1)[:, :, None]
        expected = subject.expect_gradients(single, incoming)
        shape = (batch, len(part))
        for kind, tensors in rows.items():
            of_query = getattr(expected.query, kind).unflatten(0, shape)
            tensors.append(of_query.squeeze(3).transpose(1, 2))
        for name in sums:
            scaled = factor[:, :, part].transpose(1, 2)[..., None] if name == "value" else 1.0
            gradient = getattr(expected, name)
            exact = gradient.exact.unflatten(0, shape) * scaled
            bound = gradient.bound.unflatten(0, shape) * scaled
            sums[name] = sums[name] + torch.stack(
                [each.sum(1) for each in (exact, bound, exact.abs() + bound)]
            )
    exact, bound = (torch.cat(rows[kind], dim=2) for kind in ("exact", "bound"))
    return {
        "query": torch.stack([exact, bound, exact.abs() + bound]),
        **sums,
    }


def _rows_as_batch(
    subject: Subject, call: Call, factor: torch.Tensor, rows: Int[torch.Tensor, " rows"]
) -> Call:
    """Make some queries batch elements, with values scaled by the factors of their weights.

    Each query head has keys and values of its own, and a mask holds what the position of the query
    hides or adds.
    """
    batch, heads, _, d_head = call.query.shape
    shape = (batch, len(rows))
    key, value = (repeat_kv(subject, tensor, heads) for tensor in (call.key, call.value))

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, None].expand(*shape, *tensor.shape[1:]).flatten(0, 1)

    masked = with_only_a_mask(subject, call)
    mask = masked.attn_mask
    assert mask is not None
    if call.alibi_slopes is not None:
        bias = mask if mask.is_floating_point() else additive_mask(mask, torch.float64)
        mask = bias + alibi_bias(subject, call)
    by_row = factor[:, :, rows].transpose(1, 2)[..., None] * value[:, None].double()
    return masked.but(
        query=call.query[:, :, rows].transpose(1, 2).reshape(batch * len(rows), heads, 1, d_head),
        key=repeated(key),
        value=by_row.flatten(0, 1).to(value.dtype),
        attn_mask=mask[:, :, rows].transpose(1, 2).flatten(0, 1)[:, :, None],
        alibi_slopes=None,
    )
