"""The oracle: what a call must return, in float64 on the exact stored inputs, and how exactly."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.bounds import forward_bound, mean_bound
from attnspec.conformance.bounds_scores import weights
from attnspec.conformance.call import Call
from attnspec.conformance.compare import is_evidence
from attnspec.conformance.poison import finite_rows, promised
from attnspec.conformance.roundoff import Roundoff
from attnspec.conformance.rows import Rows, rows_of
from attnspec.reference.attention import attention
from attnspec.reference.numpy_attention import numpy_attention
from attnspec.spec import EmptyRow, Profile

SCORES_AT_ONCE = 2**21
"""How many scores are held at once; longer calls are taken a run of rows at a time."""

SCORES_KEPT = 2**24
"""Up to how many scores `visible` and `weights` are given."""

Exact = tuple[torch.Tensor, torch.Tensor]
Definition = Callable[[Rows, Call, Profile, torch.Tensor], Exact]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a call must return.

    Attributes:
        out: the exact output.
        bound: the largest distance allowed; infinite where nothing is promised.
        lse: the exact log-sum-exp.
        lse_bound: its bound.
        may_be_nan: where NaN is allowed beside the expected value; `None` where nowhere.
        lse_may_be_nan: likewise of the log-sum-exp.
        visible: which keys each row reads; `None` for a call too long to say.
        weights: the exact weights; `None` for a call too long to say.
    """

    out: Float64[torch.Tensor, "batch heads rows d_value"]
    bound: Float64[torch.Tensor, "batch heads rows d_value"]
    lse: Float64[torch.Tensor, "batch heads rows"]
    lse_bound: Float64[torch.Tensor, "batch heads rows"]
    may_be_nan: Bool[torch.Tensor, "batch heads rows d_value"] | None = None
    lse_may_be_nan: Bool[torch.Tensor, "batch heads rows"] | None = None
    visible: Bool[torch.Tensor, "batch heads rows keys"] | None = None
    weights: Float64[torch.Tensor, "batch heads rows keys"] | None = None

    @functools.cached_property
    def is_zero(self) -> bool:
        """True where nothing but zeros is expected."""
        return not bool((self.out != 0).any())

    @functools.cached_property
    def is_evidence(self) -> bool:
        """True where a wrong output would exceed its bound."""
        return is_evidence(self.out, self.bound)


def expect(
    call: Call,
    profile: Profile,
    *,
    with_bound: bool = True,
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> Expected:
    """Say what a call must return, by the reference in float64.

    Args:
        call: without dropout.
        profile: what the implementation declares.
        with_bound: false saves the time of the bound, which is then zero.
        rows: judge only these queries, so that any length fits in memory; `None` is all of them.

    Raises:
        ValueError: for a call with dropout, whose result is random.
    """
    return _expect(_reference, call, profile, with_bound, rows)


def expect_numpy(
    call: Call,
    profile: Profile,
    *,
    with_bound: bool = True,
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> Expected:
    """Say the same by the scalar definition, which shares nothing with the reference.

    Args:
        call: without dropout, and small.
        profile: what the implementation declares.
        with_bound: false saves the time of the bound, which is then zero.
        rows: judge only these queries; `None` is all of them.

    Raises:
        ValueError: for a call with dropout, whose result is random.
    """
    whole = _scalar(call, profile)

    def chosen(_: Rows, call: Call, profile: Profile, at: torch.Tensor) -> Exact:
        return whole[0][:, :, at], whole[1][:, :, at]

    return _expect(chosen, call, profile, with_bound, rows)


def _expect(
    definition: Definition,
    call: Call,
    profile: Profile,
    with_bound: bool,
    rows: torch.Tensor | None,
) -> Expected:
    if call.dropout_p > 0:
        raise ValueError("a call with dropout has no single expected result")
    if rows is None:
        rows = torch.arange(call.query.shape[2])
    rows = rows.to(call.query.device)
    per_row = max(1, call.query.shape[0] * call.query.shape[1] * call.key.shape[2])
    keeps = per_row * len(rows) <= SCORES_KEPT
    with torch.no_grad():
        parts = [
            _judge(definition, call, profile, with_bound, keeps, some)
            for some in torch.split(rows, max(1, SCORES_AT_ONCE // per_row))
        ]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Expected]) -> Expected:
    """Put runs of rows together; where one part says nothing of NaN, NaN is not allowed."""

    def join(name: str, like: str) -> torch.Tensor | None:
        each: list[torch.Tensor | None] = [getattr(part, name) for part in parts]
        if all(one is None for one in each):
            return None
        shapes: list[torch.Tensor] = [getattr(part, like) for part in parts]
        filled: list[torch.Tensor] = [
            torch.zeros_like(shape, dtype=torch.bool) if one is None else one
            for one, shape in zip(each, shapes, strict=True)
        ]
        return torch.cat(filled, dim=2)

    return Expected(
        out=torch.cat([part.out for part in parts], dim=2),
        bound=torch.cat([part.bound for part in parts], dim=2),
        lse=torch.cat([part.lse for part in parts], dim=2),
        lse_bound=torch.cat([part.lse_bound for part in parts], dim=2),
        may_be_nan=join("may_be_nan", "out"),
        lse_may_be_nan=join("lse_may_be_nan", "lse"),
        visible=join("visible", "visible"),
        weights=join("weights", "weights"),
    )


def _judge(
    definition: Definition,
    call: Call,
    profile: Profile,
    with_bound: bool,
    keeps: bool,
    at: torch.Tensor,
) -> Expected:
    """Expect one run of rows."""
    rows = rows_of(call, profile, at)
    out, lse = definition(rows, call, profile, at)
    shape = (*out.shape[:3], call.key.shape[2])
    visible = rows.visible.expand(shape).clone() if keeps else None
    if not with_bound:
        none, also_none = torch.zeros_like(out), torch.zeros_like(lse)
        return Expected(out=out, bound=none, lse=lse, lse_bound=also_none, visible=visible)
    r = Roundoff.of(call.value.dtype, profile.rounding)
    finite = finite_rows(rows)
    w = weights(finite, r)
    forward = forward_bound(w, finite.value, r)
    bound, lse_bound = forward.O_bound, forward.lse_bound[..., 0]
    is_empty = w.lse == -torch.inf
    if profile.empty_row == EmptyRow.MEAN and shape[3] and bool(is_empty.any()):
        bound = torch.where(is_empty, mean_bound(finite.value, r), bound)
    if call.value.dtype == torch.float64:
        # the oracle rounds like any implementation
        bound, lse_bound = 2 * bound, 2 * lse_bound
    said = promised(rows, w, profile)
    out, bound = _demanded(out, bound, said.undefined)
    lse, lse_bound = _demanded(lse, lse_bound, said.undefined[..., 0])
    # a weight that underflows makes NaN of infinity
    may_be_nan = out.isinf() if said.may_be_nan is None else out.isinf() | said.may_be_nan
    return Expected(
        out=out,
        bound=bound,
        lse=lse,
        lse_bound=lse_bound,
        may_be_nan=may_be_nan if bool(may_be_nan.any()) else None,
        lse_may_be_nan=None if said.lse_may_be_nan is None else said.lse_may_be_nan[..., 0],
        visible=visible,
        weights=w.p if keeps else None,
    )


def _demanded(
    exact: torch.Tensor, bound: torch.Tensor, undefined: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Demand NaN and infinities as they are, but nothing of what is undefined."""
    bound = torch.where(exact.isfinite(), bound, 0.0)
    return exact.masked_fill(undefined, 0.0), torch.where(undefined, torch.inf, bound)


def _reference(
    rows: Rows, call: Call, profile: Profile, at: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the reference gives for some rows."""
    out, lse = attention(
        rows.query,
        rows.key,
        rows.value,
        rows.visible,
        scale=rows.scale,
        bias=rows.bias,
        softcap=rows.softcap,
        sinks=rows.sinks,
    )
    if profile.empty_row == EmptyRow.ZERO or rows.key.shape[2] == 0:
        return out, lse
    is_empty = ~rows.visible.any(-1) & (lse == -torch.inf)
    mean = profile.empty_row == EmptyRow.MEAN
    fill = rows.value.mean(2, keepdim=True) if mean else out.new_tensor(torch.nan)
    return torch.where(is_empty[..., None], fill, out), lse


def _scalar(call: Call, profile: Profile) -> tuple[torch.Tensor, torch.Tensor]:
    """What the scalar definition gives for a whole call."""

    def array(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        tensor = tensor.detach().cpu()
        return (tensor if tensor.dtype == torch.bool else tensor.double()).numpy()

    out, lse = numpy_attention(
        array(call.query),
        array(call.key),
        array(call.value),
        attn_mask=array(call.attn_mask),
        is_causal=call.is_causal,
        causal_alignment=profile.causal_alignment,
        empty_row=profile.empty_row,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        sinks=array(call.sinks),
        alibi_slopes=array(call.alibi_slopes),
    )
    device = call.query.device
    return torch.from_numpy(out).to(device), torch.from_numpy(lse).to(device)
