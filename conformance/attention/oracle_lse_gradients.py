r"""The oracle of the gradients of the log-sum-exp, with their bound.

The derivative of a log-sum-exp by a score is the weight of its key. So with the incoming gradient g
the gradient of the scores is dS_ij = p_ij g_i, which is that of the output with dP_ij = g_i, an
exact number, and D_i = 0. Its error follows from eq-num-ds of NUM-8 in the same way,

    E_dS = |g_i| (r + c (p_ij + r)) + f         c = θ_4(u), eager θ_2(u_s) besides

and everything after dS is as there, with E_D = 0.
"""

import torch
from jaxtyping import Float

from attnspec.conformance.attention.bounds.backward import Part, bounded, weight_error
from attnspec.conformance.attention.bounds.forward import forward_bound
from attnspec.conformance.attention.bounds.roundoff import (
    UNIT,
    Roundoff,
    compound,
    theta,
    working_dtype,
)
from attnspec.conformance.attention.bounds.rows import Rows, rows_of, sum_of_groups
from attnspec.conformance.attention.bounds.scores import Weights, weights
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle_gradients import Gradient
from attnspec.reference.attention import attention_with_options
from attnspec.spec import Profile


def expect_lse_gradients(
    call: Call, grad_lse: Float[torch.Tensor, "batch heads queries"], profile: Profile
) -> dict[str, Gradient]:
    """Return the expected gradients of the log-sum-exp by queries and keys, with their bounds.

    Args:
        call: of finite numbers, without dropout; each query may read a key.
        grad_lse: the incoming gradient.
        profile: the profile that the implementation declares.
    """
    heads, queries = call.query.shape[1:3]
    keys, kv_heads = call.key.shape[2], call.key.shape[1]
    group = heads // kv_heads
    rows = rows_of(call, profile, torch.arange(queries))
    r = Roundoff.of(call.value.dtype, profile)
    n_q, n_kv = profile.rounding.partial_writes(queries, keys, group)
    grad = grad_lse.double()
    with torch.no_grad():
        w = weights(rows, r)
        error = weight_error(w, forward_bound(w, rows.value, r), r)
        parts = _parts(w, error, rows, grad[..., None], r)
    exact = _automatic(rows, grad)
    # in float64 the oracle rounds like any implementation
    factor = 2 if call.value.dtype == torch.float64 else 1
    counts = {"query": (keys, n_q, 1), "key": (group * queries, n_kv, group)}
    expected = {}
    for name, (terms, writes, heads_in_sum) in counts.items():
        part, total = parts[name], exact[name]
        if name == "key":
            part = part.map(lambda x: sum_of_groups(x, kv_heads, profile.grouping))
            total = sum_of_groups(total, kv_heads, profile.grouping)
        bound = bounded(
            part,
            r,
            terms=terms,
            writes=writes,
            group=heads_in_sum,
            scale=rows.scale,
            unit=UNIT[call.value.dtype],
            storable=torch.finfo(working_dtype(call.value.dtype, profile)).max,
        )
        expected[name] = Gradient(exact=total, bound=factor * bound)
    return expected


def _parts(
    w: Weights, e_p: torch.Tensor, rows: Rows, grad: torch.Tensor, r: Roundoff
) -> dict[str, Part]:
    """Return both gradients by formula, with the errors of their terms."""
    live, size = w.readable.double(), abs(rows.scale)
    floor = r.f if r.stores_scores else r.f_u
    dt = w.p * grad
    c = compound(theta(4, r.u), theta(2, r.u_s))
    E_dt = (e_p + c * (w.p + e_p)) * grad.abs() + 2 * floor * live
    if w.slope is not None and w.slope_error is not None:
        dS = dt
        dt = dS * w.slope
        E_dt = E_dt * (w.slope + w.slope_error) + dS.abs() * w.slope_error
        c = compound(theta(4, r.u), theta(3, r.u_s))
        steps = 1 + 2 * max(1.0, 1 / (rows.softcap or 1.0))
        E_dt = E_dt + c * (dt.abs() + E_dt) + steps * floor * live
    mass, operand_scale = dt.abs() + E_dt, max(1.0, size)
    sum_scale = operand_scale if r.stores_scores else size
    undefined = w.overflows.double()
    none = torch.zeros_like(undefined)

    def part(swap: bool, operand: torch.Tensor) -> Part:
        terms, error, total, seen = (x.mT if swap else x for x in (dt, E_dt, mass, live))
        spoils = (w.overflows & w.readable).double().sum(-2)[..., None] if swap else undefined
        return Part(
            exact=rows.scale * (terms @ operand),
            error=size * (error @ operand.abs())
            + operand_scale * r.f_q * total.sum(-1, keepdim=True),
            mass=size * (total @ operand.abs()),
            largest=sum_scale * (total @ operand.abs()),
            underflow=operand_scale * (seen @ operand.abs()),
            undefined=spoils,
            may_be_nan=none if not swap else torch.zeros_like(spoils),
        )

    return {"query": part(False, rows.key), "key": part(True, rows.query)}


def _automatic(rows: Rows, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Differentiate the log-sum-exp of the reference, head by head."""
    with torch.enable_grad():
        leaves = {
            "query": rows.query.detach().clone().requires_grad_(),
            "key": rows.key.detach().clone().requires_grad_(),
        }
        _, lse = attention_with_options(
            leaves["query"],
            leaves["key"],
            rows.value,
            rows.visible,
            scale=rows.scale,
            bias=rows.bias,
            softcap=rows.softcap,
            sinks=rows.sinks,
            softcap_order=rows.softcap_order,
        )
        gradients = torch.autograd.grad(lse, list(leaves.values()), grad)
    return dict(zip(leaves, gradients, strict=True))
