"""The oracle: the exact result of a call, in float64 on the stored inputs, and its bound."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.attention.bounds.forward import mean_bound
from attnspec.conformance.attention.bounds.roundoff import Roundoff
from attnspec.conformance.attention.bounds.rows import Rows, empty_rows, rows_of
from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.forward_rows import forward_rows
from attnspec.conformance.attention.nonfinite import exemptions, is_finite
from attnspec.conformance.comparison.close import check_close, is_evidence
from attnspec.reference.attention import attention_with_options
from attnspec.reference.scalar_attention import scalar_attention
from attnspec.spec import EmptyRow, Profile

SCORES_AT_ONCE = 2**21
"""Scores held at once; longer calls are computed in chunks of rows."""

SCORES_KEPT = 2**24
"""Scores of the largest call whose `visible` and `weights` are returned."""

Exact = tuple[torch.Tensor, torch.Tensor]
Definition = Callable[[Rows, Call, Profile, torch.Tensor], Exact]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected result of a call.

    Attributes:
        out: the exact output.
        bound: the largest distance allowed; infinite where nothing is promised.
        lse: the exact log-sum-exp.
        lse_bound: its bound.
        may_be_nan: true where NaN is allowed beside the expected value; None if nowhere.
        lse_may_be_nan: likewise of the log-sum-exp.
        visible: the keys that each row reads; None for a call above `SCORES_KEPT`.
        weights: the exact attention weights; None for a call above `SCORES_KEPT`.
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
        """Return whether the expected output is zero everywhere."""
        return not bool((self.out != 0).any())

    @functools.cached_property
    def is_evidence(self) -> bool:
        """Return whether a wrong output would exceed its bound."""
        return is_evidence(self.out, self.bound)


def expect(
    call: Call,
    profile: Profile,
    *,
    with_bound: bool = True,
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> Expected:
    """Return the expected result of a call, by the reference in float64.

    Args:
        call: without dropout.
        profile: the profile that the implementation declares.
        with_bound: false saves the time of the bound, which is then zero.
        rows: the queries to compute, so that any length fits in memory; None is all of them.

    Raises:
        ValueError: if the call has dropout, whose result is random.
    """
    return _expect(_reference, call, profile, with_bound, rows)


def expect_scalar(
    call: Call,
    profile: Profile,
    *,
    with_bound: bool = True,
    rows: Int[torch.Tensor, " rows"] | None = None,
) -> Expected:
    """Return the same by the scalar definition, which shares no code with the reference.

    Args:
        call: without dropout, and small.
        profile: the profile that the implementation declares.
        with_bound: false saves the time of the bound, which is then zero.
        rows: the queries to compute; None is all of them.

    Raises:
        ValueError: if the call has dropout, whose result is random.
    """
    out, lse = _scalar(call, profile)

    def select(_: Rows, call: Call, profile: Profile, indices: torch.Tensor) -> Exact:
        return out[:, :, indices], lse[:, :, indices]

    return _expect(select, call, profile, with_bound, rows)


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
        chunks = [
            _expect_rows(definition, call, profile, with_bound, keeps, indices)
            for indices in torch.split(rows, max(1, SCORES_AT_ONCE // per_row))
        ]
    return chunks[0] if len(chunks) == 1 else _joined(chunks)


def _joined(chunks: list[Expected]) -> Expected:
    """Concatenate chunks of rows; a chunk without `may_be_nan` allows no NaN."""

    def join(name: str, like: str) -> torch.Tensor | None:
        tensors: list[torch.Tensor | None] = [getattr(chunk, name) for chunk in chunks]
        if all(tensor is None for tensor in tensors):
            return None
        templates: list[torch.Tensor] = [getattr(chunk, like) for chunk in chunks]
        filled: list[torch.Tensor] = [
            torch.zeros_like(template, dtype=torch.bool) if tensor is None else tensor
            for tensor, template in zip(tensors, templates, strict=True)
        ]
        return torch.cat(filled, dim=2)

    return Expected(
        out=torch.cat([chunk.out for chunk in chunks], dim=2),
        bound=torch.cat([chunk.bound for chunk in chunks], dim=2),
        lse=torch.cat([chunk.lse for chunk in chunks], dim=2),
        lse_bound=torch.cat([chunk.lse_bound for chunk in chunks], dim=2),
        may_be_nan=join("may_be_nan", "out"),
        lse_may_be_nan=join("lse_may_be_nan", "lse"),
        visible=join("visible", "visible"),
        weights=join("weights", "weights"),
    )


def _expect_rows(
    definition: Definition,
    call: Call,
    profile: Profile,
    with_bound: bool,
    keeps: bool,
    indices: torch.Tensor,
) -> Expected:
    """Return the expected result of one chunk of rows."""
    computed = forward_rows(call, profile, indices) if with_bound else None
    rows = rows_of(call, profile, indices) if computed is None else computed.stored
    out, lse = definition(rows, call, profile, indices)
    shape = (*out.shape[:3], call.key.shape[2])
    visible = rows.visible.expand(shape).clone() if keeps else None
    if computed is None:
        bound, lse_bound = torch.zeros_like(out), torch.zeros_like(lse)
        return Expected(out=out, bound=bound, lse=lse, lse_bound=lse_bound, visible=visible)
    w = computed.weights
    bound, lse_bound = computed.bound.O_bound, computed.bound.lse_bound[..., 0]
    empty = {
        answer: ((w.lse == -torch.inf) & there[..., None]) if shape[3] else there.new_zeros(())
        for answer, there in empty_rows(rows, profile).items()
    }
    if EmptyRow.MEAN in empty and bool(empty[EmptyRow.MEAN].any()):
        r = Roundoff.of(call.value.dtype, profile)
        bound = torch.where(empty[EmptyRow.MEAN], mean_bound(computed.finite.value, r), bound)
    if call.value.dtype == torch.float64:
        # the oracle rounds like any implementation
        bound, lse_bound = 2 * bound, 2 * lse_bound
    exempt = exemptions(rows, computed.finite, w, profile)
    may_be_nan = exempt.may_be_nan
    if not is_finite(out):
        # a weight that underflows to zero turns an infinite value into NaN
        may_be_nan = out.isinf() if may_be_nan is None else out.isinf() | may_be_nan
    out, bound = _demanded(
        out, bound, exempt.undefined | empty[None] if None in empty else exempt.undefined
    )
    lse, lse_bound = _demanded(lse, lse_bound, exempt.undefined[..., 0])
    return Expected(
        out=out,
        bound=bound,
        lse=lse,
        lse_bound=lse_bound,
        may_be_nan=None if may_be_nan is None or not bool(may_be_nan.any()) else may_be_nan,
        lse_may_be_nan=None if exempt.lse_may_be_nan is None else exempt.lse_may_be_nan[..., 0],
        visible=visible,
        weights=w.p if keeps else None,
    )


def _demanded(
    exact: torch.Tensor, bound: torch.Tensor, undefined: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (expected, bound): NaN and infinities exactly, and anything in undefined rows."""
    if not is_finite(exact):
        bound = torch.where(exact.isfinite(), bound, 0.0)
    return exact.masked_fill(undefined, 0.0), bound.masked_fill(undefined, torch.inf)


def _reference(
    rows: Rows, call: Call, profile: Profile, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reference's output and log-sum-exp of some rows."""
    out, lse = attention_with_options(
        rows.query,
        rows.key,
        rows.value,
        rows.visible,
        scale=rows.scale,
        bias=rows.bias,
        softcap=rows.softcap,
        sinks=rows.sinks,
        softcap_order=rows.softcap_order,
    )
    if rows.key.shape[2] == 0:
        return out, lse
    for answer, there in empty_rows(rows, profile).items():
        is_empty = (there & (lse == -torch.inf))[..., None]
        if answer is EmptyRow.MEAN:
            out = torch.where(is_empty, rows.value.mean(2, keepdim=True), out)
        elif answer is EmptyRow.NAN:
            out = out.masked_fill(is_empty, torch.nan)
    return out, lse


def _scalar(call: Call, profile: Profile) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scalar definition's output and log-sum-exp of a whole call."""

    def array(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        tensor = tensor.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()

    out, lse = scalar_attention(
        array(call.query),
        array(call.key),
        array(call.value),
        attn_mask=array(call.attn_mask),
        is_causal=call.is_causal,
        causal_alignment=profile.causal_alignment,
        causal_single_query=profile.causal_single_query,
        empty_row=profile.empty_row_answers,
        grouping=profile.grouping,
        softcap_order=profile.softcap_order,
        scale=call.scale,
        window=call.window,
        softcap=call.softcap,
        sinks=array(call.sinks),
        alibi_slopes=array(call.alibi_slopes),
        key_lengths=array(call.key_lengths),
        query_offset=array(call.query_offset),
    )
    device = call.query.device
    return torch.from_numpy(out).to(device), torch.from_numpy(lse).to(device)


def check_oracle(call: Call, out: torch.Tensor, expected: Expected, message: str) -> None:
    """Check an output against the oracle's result of its call.

    Raises:
        Violation: if an element exceeds its bound; names the worst one.
    """
    check_close(
        out,
        expected.out,
        expected.bound,
        what="out",
        message=message,
        dtype=call.value.dtype,
        may_be_nan=expected.may_be_nan,
    )
