"""The oracle of the gradients: what a backward pass must give, and how exactly."""

import functools
import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64

from attnspec.conformance.bounds import forward_bound
from attnspec.conformance.bounds_backward import Part, backward, bounded
from attnspec.conformance.bounds_scores import weights
from attnspec.conformance.call import Call
from attnspec.conformance.compare import is_evidence
from attnspec.conformance.oracle import SCORES_AT_ONCE
from attnspec.conformance.poison import finite_rows, promised
from attnspec.conformance.roundoff import UNIT, Roundoff
from attnspec.conformance.rows import Rows, rows_of
from attnspec.reference.attention import attention
from attnspec.spec import EmptyRow, MaskedNonfinite, Profile

EXPONENT_LEFT = 1020
"""The binary exponent that a sum of products may reach: float64 ends at 1024."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """What one gradient must be.

    Attributes:
        exact: the gradient.
        bound: the largest distance allowed; infinite where nothing is promised.
        may_be_nan: where NaN is allowed beside the exact value; `None` where nowhere.
    """

    exact: Float64[torch.Tensor, "..."]
    bound: Float64[torch.Tensor, "..."]
    may_be_nan: Bool[torch.Tensor, "..."] | None = None

    @functools.cached_property
    def is_zero(self) -> bool:
        """True where nothing but zeros is expected."""
        return not bool((self.exact != 0).any())

    @functools.cached_property
    def is_evidence(self) -> bool:
        """True where a wrong gradient would exceed its bound."""
        return is_evidence(self.exact, self.bound)


@dataclass(frozen=True, kw_only=True)
class ExpectedGradients:
    """What the backward pass of a call must give, in the shapes of its operands.

    Attributes:
        query: dQ.
        key: dK.
        value: dV.
        attn_mask: dB; `None` where the call has no float mask.
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
) -> ExpectedGradients:
    """Say what a backward pass must give, by differentiating the reference in float64.

    Nothing is promised of what depends on a number that is read and is not finite, nor of what an
    empty row contributes, unless the profile gives it zeros.

    Args:
        call: without dropout.
        grad_out: the incoming gradient, as stored.
        profile: what the implementation declares.
        by_formula: use the closed form of the gradients instead of the reference, to judge the
            reference itself.

    Raises:
        ValueError: for a call with dropout, whose gradients are random.
    """
    if call.dropout_p > 0:
        raise ValueError("a call with dropout has no single expected gradient")
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    group = heads // call.key.shape[1]
    r = Roundoff.of(call.value.dtype, profile.rounding)
    scale = rows_of(call, profile, torch.arange(0)).scale
    n_q, n_kv = profile.rounding.partial_writes(queries, keys)
    n_kv = n_kv + (1 if group > 1 else 0)
    per_run = max(1, SCORES_AT_ONCE // max(1, batch * heads * keys))
    whole: dict[str, Part] = {}
    for at in torch.split(torch.arange(queries, device=call.query.device), per_run):
        for name, part in _differentiate(call, grad_out, profile, at, r, by_formula).items():
            grows = name == "query" or (name == "attn_mask" and _has_rows(call))
            put = _below if grows else torch.add
            whole[name] = whole[name].join(part, put) if name in whole else part
    twice = 2 if call.value.dtype == torch.float64 else 1

    def gradient(name: str, terms: int, writes: int, *, scale: float | None = None) -> Gradient:
        part, operand = whole[name], getattr(call, name)
        unit = UNIT[operand.dtype]
        bound = bounded(
            part,
            r,
            terms=terms,
            writes=writes,
            scale=scale,
            unit=unit,
            storable=torch.finfo(operand.dtype).max,
        )
        nan = (part.may_be_nan > 0).expand(bound.shape)
        return Gradient(
            exact=part.exact.reshape(operand.shape),
            bound=(twice * bound).reshape(operand.shape),
            may_be_nan=nan.reshape(operand.shape) if bool(nan.any()) else None,
        )

    mask = None
    if "attn_mask" in whole and call.attn_mask is not None:
        spread = batch * heads * queries * keys // max(1, call.attn_mask.numel())
        mask = gradient("attn_mask", spread, 1)
    return ExpectedGradients(
        query=gradient("query", keys, n_q, scale=scale),
        key=gradient("key", group * queries, n_kv, scale=scale),
        value=gradient("value", group * queries, n_kv),
        attn_mask=mask,
    )


def _has_rows(call: Call) -> bool:
    return call.attn_mask is not None and call.attn_mask.shape[-2] > 1


def _below(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    return torch.cat([one, two], dim=2)


def _differentiate(
    call: Call,
    grad_out: torch.Tensor,
    profile: Profile,
    at: torch.Tensor,
    r: Roundoff,
    by_formula: bool,
) -> dict[str, Part]:
    """What one run of rows adds to each gradient, heads of a group together."""
    given = rows_of(call, profile, at)
    rows, grad = finite_rows(given), grad_out[:, :, at.to(grad_out.device)].double()
    is_finite = grad.isfinite()
    grad = torch.where(is_finite, grad, 0.0)
    with torch.no_grad():
        w = weights(rows, r)
        undefined, spoiling = _undefined(given, is_finite, profile)
        said = promised(given, w, profile)
        nan = torch.zeros_like(undefined)
        if profile.masked_nonfinite == MaskedNonfinite.PROPAGATES:
            assert said.may_be_nan is not None
            nan = said.may_be_nan.any(-1, keepdim=True)
        undefined = undefined | spoiling | w.overflows
        if bool(undefined.any()):
            # their scores may be infinite; zeros in their place spoil no other row
            grad = torch.where(undefined, 0.0, grad)
            rows = replace(rows, query=torch.where(undefined, 0.0, rows.query))
            w = weights(rows, r)
        result = backward(
            w,
            forward_bound(w, rows.value, r),
            rows,
            grad,
            r,
            storable=torch.finfo(call.value.dtype).max,
            undefined=undefined,
            spoiling=spoiling,
            may_be_nan=nan,
            propagates=profile.masked_nonfinite == MaskedNonfinite.PROPAGATES,
        )
    parts = {"query": result.query, "key": result.key, "value": result.value}
    if rows.mask_bias is not None:
        parts["attn_mask"] = result.scores
    if not by_formula:
        exact = _automatic(rows, grad * (result.query.undefined == 0))
        parts = {name: replace(part, exact=exact[name]) for name, part in parts.items()}
    for name in ("key", "value"):
        parts[name] = parts[name].map(lambda x: _grouped(x, call.key.shape[1]))
    if rows.mask_bias is not None:
        shape = rows.mask_bias.shape
        parts["attn_mask"] = parts["attn_mask"].map(lambda x: _folded(x, shape))
    return parts


def _undefined(
    given: Rows, grad_is_finite: torch.Tensor, profile: Profile
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that read what is not finite, and rows that hand it to every key."""
    readable = given.visible.expand(*given.query.shape[:3], given.key.shape[2])
    poisoned = ~(given.key.isfinite().all(-1) & given.value.isfinite().all(-1))
    reads = (readable.double() @ poisoned.double()[..., None]) > 0
    if given.bias is not None:
        reads = reads | (~given.bias.isfinite() & readable).any(-1, keepdim=True)
    if given.sinks is not None:
        poisoned = ~given.sinks.isfinite() & (given.sinks != -torch.inf)
        reads = reads | poisoned[None, :, None, None]
    own = ~(given.query.isfinite().all(-1, keepdim=True) & grad_is_finite.all(-1, keepdim=True))
    if profile.empty_row != EmptyRow.ZERO:
        is_empty = ~readable.any(-1, keepdim=True)
        if given.sinks is not None:
            is_empty = is_empty & (given.sinks == -torch.inf)[None, :, None, None]
        own = own | is_empty
    return reads, own


def _automatic(rows: Rows, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Differentiate the reference.

    Gradients are linear in the incoming one, which is made smaller by a power of two where a value
    is so large that their product overflows float64: at a pair that may not be read, whose weight
    is zero, that would be NaN.
    """
    largest = math.frexp(float(grad.abs().amax()))[1] if grad.numel() else 0
    highest = math.frexp(float(rows.value.abs().amax()))[1] if rows.value.numel() else 0
    excess = max(0, largest + highest + grad.shape[-1].bit_length() - EXPONENT_LEFT)
    half = 2.0 ** -math.ceil(excess / 2)  # the whole may be below the smallest float64
    grad = grad * half * half
    with torch.enable_grad():
        shape = (*rows.query.shape[:3], rows.key.shape[2])
        leaves = {
            "query": rows.query.detach().clone().requires_grad_(),
            "key": rows.key.detach().clone().requires_grad_(),
            "value": rows.value.detach().clone().requires_grad_(),
            "attn_mask": rows.query.new_zeros(shape).requires_grad_(),
        }
        bias = leaves["attn_mask"] if rows.bias is None else leaves["attn_mask"] + rows.bias
        out, _ = attention(
            leaves["query"],
            leaves["key"],
            leaves["value"],
            rows.visible,
            scale=rows.scale,
            bias=bias,
            softcap=rows.softcap,
            sinks=rows.sinks,
        )
        found = torch.autograd.grad(out, list(leaves.values()), grad)
    return {name: x / half / half for name, x in zip(leaves, found, strict=True)}


def _grouped(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Add up the query heads that share a key/value head."""
    batch, heads = x.shape[:2]
    return x.reshape(batch, kv_heads, heads // kv_heads, *x.shape[2:]).sum(2)


def _folded(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Add up what a mask was broadcast along."""
    spread = [axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1]
    return x.sum(spread, keepdim=True) if spread else x
