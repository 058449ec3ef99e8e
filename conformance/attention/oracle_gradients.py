"""The oracle of the gradients: the exact result of a backward pass, and its bound."""

import functools
import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int

from attnspec.conformance.attention.bounds.backward import Part, backward, bounded
from attnspec.conformance.attention.bounds.forward import forward_bound
from attnspec.conformance.attention.bounds.roundoff import UNIT, Roundoff, working_dtype
from attnspec.conformance.attention.bounds.rows import Rows, empty_rows, rows_of, sum_of_groups
from attnspec.conformance.attention.bounds.scores import weights
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.forward_rows import forward_rows
from attnspec.conformance.attention.nonfinite import exemptions, is_finite
from attnspec.conformance.attention.oracle import SCORES_AT_ONCE
from attnspec.conformance.comparison.close import is_evidence
from attnspec.reference.attention import attention_with_options
from attnspec.spec import EmptyRow, MaskedNonfinite, Profile

EXPONENT_LEFT = 1020
"""The binary exponent that a sum of products may reach: float64 ends at 1024."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """One expected gradient.

    Attributes:
        exact: the gradient.
        bound: the largest distance allowed; infinite where nothing is promised.
        may_be_nan: true where NaN is allowed beside the exact value; None if nowhere.
    """

    exact: Float64[torch.Tensor, "..."]
    bound: Float64[torch.Tensor, "..."]
    may_be_nan: Bool[torch.Tensor, "..."] | None = None

    @functools.cached_property
    def is_zero(self) -> bool:
        """Return whether the expected gradient is zero everywhere."""
        return not bool((self.exact != 0).any())

    @functools.cached_property
    def is_evidence(self) -> bool:
        """Return whether a wrong gradient would exceed its bound."""
        return is_evidence(self.exact, self.bound)


@dataclass(frozen=True, kw_only=True)
class ExpectedGradients:
    """The expected gradients of a call, in the shapes of its operands.

    Attributes:
        query: dQ.
        key: dK.
        value: dV.
        attn_mask: dB; None if the call has no float mask.
    """

    query: Gradient
    key: Gradient
    value: Gradient
    attn_mask: Gradient | None


def expect_gradients(
    call: Call,
    grad_out: Float[torch.Tensor, "batch heads queries d_value"],
    profile: Profile,
    *,
    by_formula: bool = False,
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> ExpectedGradients:
    """Return the expected gradients of a call, by differentiating the reference in float64.

    The result promises nothing about gradients that depend on a readable number that is not finite,
    or about the contributions of an empty row, unless the profile declares zeros for it.

    Args:
        call: without dropout.
        grad_out: the incoming gradient, as stored.
        profile: the profile that the implementation declares.
        by_formula: use the closed form of the gradients instead of the reference, to judge the
            reference itself.
        rows: the only queries with an incoming gradient that is not zero, so that any length fits
            in memory; None is all of them. The gradients of queries and of a mask with a row for
            each query are of these rows alone.

    Raises:
        ValueError: if the call has dropout, whose gradients are random.
    """
    if call.dropout_p > 0:
        raise ValueError("a call with dropout has no single expected gradient")
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    group = heads // call.key.shape[1]
    r = Roundoff.of(call.value.dtype, profile)
    scale = rows_of(call, profile, torch.arange(0)).scale
    n_q, n_kv = profile.rounding.partial_writes(queries, keys, group)
    per_chunk = max(1, SCORES_AT_ONCE // max(1, batch * heads * keys))
    whole: dict[str, Part] = {}
    selected = torch.arange(queries) if rows is None else rows
    for indices in torch.split(selected.to(call.query.device), per_chunk):
        for name, part in _differentiate(call, grad_out, profile, indices, r, by_formula).items():
            has_rows = name == "query" or (name == "attn_mask" and _has_rows(call))
            combine = _append_rows if has_rows else torch.add
            whole[name] = whole[name].join(part, combine) if name in whole else part
    storable = torch.finfo(working_dtype(call.query.dtype, profile)).max
    # in float64 the oracle rounds like any implementation
    factor = 2 if call.value.dtype == torch.float64 else 1

    def gradient(
        name: str, terms: int, writes: int, *, group: int = 1, scale: float | None = None
    ) -> Gradient:
        part, operand = whole[name], getattr(call, name)
        has_rows = name == "query" or (name == "attn_mask" and _has_rows(call))
        shape = list(operand.shape)
        shape[-2] = len(selected) if has_rows else shape[-2]
        bound = bounded(
            part,
            r,
            terms=terms,
            writes=writes,
            group=group,
            scale=scale,
            unit=UNIT[operand.dtype],
            storable=min(torch.finfo(operand.dtype).max, storable),
        )
        nan = (part.may_be_nan > 0).expand(bound.shape)
        return Gradient(
            exact=part.exact.reshape(shape),
            bound=(factor * bound).reshape(shape),
            may_be_nan=nan.reshape(shape) if bool(nan.any()) else None,
        )

    mask = None
    if "attn_mask" in whole and call.attn_mask is not None:
        spread = batch * heads * queries * keys // max(1, call.attn_mask.numel())
        # the gradient of a mask that was rounded to the query's dtype is rounded to it as well
        rounded = rows_of(call, profile, torch.arange(0)).mask_rounded_to is not None
        mask = gradient("attn_mask", spread, 2 if rounded else 1)
    return ExpectedGradients(
        query=gradient("query", keys, n_q, scale=scale),
        key=gradient("key", group * queries, n_kv, group=group, scale=scale),
        value=gradient("value", group * queries, n_kv, group=group),
        attn_mask=mask,
    )


def _has_rows(call: Call) -> bool:
    return call.attn_mask is not None and call.attn_mask.shape[-2] > 1


def _append_rows(earlier: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
    return torch.cat([earlier, later], dim=2)


def _differentiate(
    call: Call,
    grad_out: torch.Tensor,
    profile: Profile,
    indices: torch.Tensor,
    r: Roundoff,
    by_formula: bool,
) -> dict[str, Part]:
    """Return the contribution of some rows to each gradient, heads of a group together."""
    computed = forward_rows(call, profile, indices)
    stored, rows = computed.stored, computed.finite
    grad = grad_out[:, :, indices.to(grad_out.device)].double()
    grad_is_finite = grad.isfinite()
    grad = torch.where(grad_is_finite, grad, 0.0)
    with torch.no_grad():
        w, bound = computed.weights, computed.bound
        undefined, spoiling = _undefined(stored, grad_is_finite, profile)
        propagates = MaskedNonfinite.PROPAGATES in (profile.masked_keys, profile.masked_values)
        nan = torch.zeros_like(undefined)
        if propagates:
            # dQ multiplies keys by zero as the output multiplies values, and dP holds the values
            both = replace(
                profile,
                masked_keys=MaskedNonfinite.PROPAGATES,
                masked_values=MaskedNonfinite.PROPAGATES,
            )
            may_be_nan = exemptions(stored, computed.finite, w, both).may_be_nan
            assert may_be_nan is not None
            nan = may_be_nan.any(-1, keepdim=True)
        undefined = undefined | spoiling | w.overflows
        if bool(undefined.any()):
            # their scores may be infinite; zeros in their place spoil no other row
            grad = torch.where(undefined, 0.0, grad)
            rows = replace(rows, query=torch.where(undefined, 0.0, rows.query))
            w = weights(rows, r)
            bound = forward_bound(w, rows.value, r)
        result = backward(
            w,
            bound,
            rows,
            grad,
            r,
            storable=torch.finfo(working_dtype(call.value.dtype, profile)).max,
            undefined=undefined,
            spoiling=spoiling,
            may_be_nan=nan,
            propagates=propagates,
            exact=None if by_formula else functools.partial(_automatic, rows),
            with_scores=rows.mask_bias is not None,
        )
    parts = {"query": result.query, "key": result.key, "value": result.value}
    if result.scores is not None:
        parts["attn_mask"] = result.scores
    for name in ("key", "value"):
        parts[name] = parts[name].map(
            lambda x: sum_of_groups(x, call.key.shape[1], profile.grouping)
        )
    if rows.mask_bias is not None:
        shape = rows.mask_bias.shape
        parts["attn_mask"] = parts["attn_mask"].map(lambda x: _folded(x, shape))
    return parts


def _undefined(
    stored: Rows, grad_is_finite: torch.Tensor, profile: Profile
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that read NaN or infinity, and the rows that pass it to every key."""
    readable = stored.visible.expand(*stored.query.shape[:3], stored.key.shape[2])
    reads = readable.new_zeros((*readable.shape[:3], 1))
    if not (is_finite(stored.key) and is_finite(stored.value)):
        nonfinite = ~(stored.key.isfinite().all(-1) & stored.value.isfinite().all(-1))
        reads = (readable.double() @ nonfinite.double()[..., None]) > 0
    if stored.bias is not None and not is_finite(stored.bias):
        reads = reads | (~stored.bias.isfinite() & readable).any(-1, keepdim=True)
    if stored.sinks is not None:
        nonfinite = ~stored.sinks.isfinite() & (stored.sinks != -torch.inf)
        reads = reads | nonfinite[None, :, None, None]
    own = ~(stored.query.isfinite().all(-1, keepdim=True) & grad_is_finite.all(-1, keepdim=True))
    for answer, there in empty_rows(stored, profile).items():
        if answer is not EmptyRow.ZERO:
            is_empty = there[..., None]
            if stored.sinks is not None:
                is_empty = is_empty & (stored.sinks == -torch.inf)[None, :, None, None]
            own = own | is_empty
    return reads, own


def _automatic(rows: Rows, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Differentiate the reference, by the names of the fields of `Backward`.

    Gradients are linear in the incoming gradient. It is scaled down by a power of two if its
    product with a large value would overflow float64: at a hidden pair, whose weight is zero, the
    overflow would become NaN.
    """
    largest = math.frexp(float(grad.abs().amax()))[1] if grad.numel() else 0
    highest = math.frexp(float(rows.value.abs().amax()))[1] if rows.value.numel() else 0
    excess = max(0, largest + highest + grad.shape[-1].bit_length() - EXPONENT_LEFT)
    # scale twice by a square root: the whole factor may be below the smallest float64
    half = 2.0 ** -math.ceil(excess / 2)
    grad = grad * half * half
    with torch.enable_grad():
        leaves = {
            name: getattr(rows, name).detach().clone().requires_grad_()
            for name in ("query", "key", "value")
        }
        bias = rows.bias
        if bias is not None and rows.mask_bias is not None:
            shape = (*rows.query.shape[:3], rows.key.shape[2])
            leaves["scores"] = rows.query.new_zeros(shape).requires_grad_()
            bias = leaves["scores"] + bias
        out, _ = attention_with_options(
            leaves["query"],
            leaves["key"],
            leaves["value"],
            rows.visible,
            scale=rows.scale,
            bias=bias,
            softcap=rows.softcap,
            sinks=rows.sinks,
            softcap_order=rows.softcap_order,
        )
        # of a number: torch imports sympy, for half a second, to check a gradient that is given
        gradients = torch.autograd.grad((out * grad).sum(), list(leaves.values()))
    return {name: x / half / half for name, x in zip(leaves, gradients, strict=True)}


def _folded(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sum over the axes along which a mask was broadcast."""
    axes = [axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1]
    return x.sum(axes, keepdim=True) if axes else x
