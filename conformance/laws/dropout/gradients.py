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
        exact, bound = expected[name][:2]
        if name != "query":
            exact, bound, mass = (
                in_groups(subject, each, case.kv_heads).sum(2) for each in expected[name]
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
) -> dict[str, Float[torch.Tensor, "kinds batch heads length channels"]]:
    """Return exact gradients and their bounds, from a call of its own for each row.

    Gradients of keys and values are those of the copies that each query head has. A third kind is
    their mass, the sum of the largest absolute values that rows may have.

    Args:
        subject: the implementation, of which only the claims are read.
        call: without dropout.
        factor: of each weight: 0, or 1/(1 - p).
        grad_out: the incoming gradient.
    """
    batch, heads, queries, d_head = call.query.shape
    numbers = batch * heads * call.key.shape[2] * (d_head + call.value.shape[3])
    at_once = max(1, NUMBERS // max(1, numbers))
    call = _with_heads_of_its_own(subject, call)
    rows: list[torch.Tensor] = []
    sums = {name: torch.zeros((), dtype=torch.float64) for name in ("key", "value")}
    for part in torch.arange(queries).split(at_once):
        by_row, incoming = factor[:, :, part].transpose(1, 2)[..., None], grad_out[:, :, part]
        expected = subject.expect_gradients(
            _rows_as_batch(call, by_row, part), incoming.transpose(1, 2).flatten(0, 1)[:, :, None]
        )
        shape = (batch, len(part))
        of_query = torch.stack([expected.query.exact, expected.query.bound])
        rows.append(of_query.unflatten(1, shape).squeeze(4).transpose(2, 3))
        for name in sums:
            gradient = getattr(expected, name)
            scaled = by_row if name == "value" else 1.0
            exact, bound = (
                each.unflatten(0, shape) * scaled for each in (gradient.exact, gradient.bound)
            )
            terms = [each.sum(1) for each in (exact, bound, exact.abs() + bound)]
            sums[name] = sums[name] + torch.stack(terms)
    return {"query": torch.cat(rows, dim=3), **sums}


def _with_heads_of_its_own(subject: Subject, call: Call) -> Call:
    """Give each query head keys and values of its own, and a mask all that hides or adds."""
    masked = with_only_a_mask(subject, call)
    mask = masked.attn_mask
    assert mask is not None
    if call.alibi_slopes is not None:
        bias = mask if mask.is_floating_point() else additive_mask(mask, torch.float64)
        mask = bias + alibi_bias(subject, call)
    heads = call.query.shape[1]
    key, value = (repeat_kv(subject, tensor, heads) for tensor in (call.key, call.value))
    return masked.but(key=key, value=value, attn_mask=mask, alibi_slopes=None)


def _rows_as_batch(
    call: Call,
    factor: Float[torch.Tensor, "batch rows heads keys 1"],
    rows: Int[torch.Tensor, " rows"],
) -> Call:
    """Make some queries batch elements, with values scaled by the factors of their weights."""
    batch, heads, _, d_head = call.query.shape
    mask = call.attn_mask
    assert mask is not None
    key = call.key[:, None].expand(batch, len(rows), *call.key.shape[1:])
    return call.but(
        query=call.query[:, :, rows].transpose(1, 2).reshape(batch * len(rows), heads, 1, d_head),
        key=key.flatten(0, 1),
        value=(factor * call.value[:, None].double()).flatten(0, 1).to(call.value.dtype),
        attn_mask=mask[:, :, rows].transpose(1, 2).flatten(0, 1)[:, :, None],
    )
