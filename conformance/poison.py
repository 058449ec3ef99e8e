"""Poison: what NaN, infinity and overflow do to what is promised of a row."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool

from attnspec.conformance.bounds_scores import Weights
from attnspec.conformance.rows import Rows
from attnspec.spec import MaskedNonfinite, Profile


def finite_rows(rows: Rows) -> Rows:
    """The same rows with zeros for all that is not finite: the bound never sees a NaN."""

    def clean(tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor.isfinite(), tensor, 0.0)

    return replace(
        rows,
        query=clean(rows.query),
        key=clean(rows.key),
        value=clean(rows.value),
        mask_bias=None if rows.mask_bias is None else clean(rows.mask_bias),
        alibi=None if rows.alibi is None else clean(rows.alibi),
        # minus infinity is no sink at all
        sinks=None if rows.sinks is None else rows.sinks.nan_to_num(0.0, 0.0, -torch.inf),
    )


@dataclass(frozen=True, kw_only=True)
class Promised:
    """Where less is promised because of NaN, infinities or overflow.

    Attributes:
        undefined: rows of which nothing is promised: they read a score out of range.
        may_be_nan: where what is not read may have made the output NaN; `None` where the profile
            blocks it.
        lse_may_be_nan: likewise the log-sum-exp.
    """

    undefined: Bool[torch.Tensor, "batch heads rows 1"]
    may_be_nan: Bool[torch.Tensor, "batch heads rows d_value"] | None
    lse_may_be_nan: Bool[torch.Tensor, "batch heads rows 1"] | None


def promised(rows: Rows, w: Weights, profile: Profile) -> Promised:
    """Say where poison lessens what is promised.

    A score that is read and is NaN makes its row NaN, whatever else it reads: that is demanded, not
    undefined.

    Args:
        rows: as given, with everything that is not finite.
        w: the weights of the same rows without it.
        profile: whether what is not read may do anything.
    """
    undefined, unread = w.overflows, w.overflows_unread
    operands = (rows.query, rows.key, rows.bias, rows.sinks)
    if not all(each is None or bool(each.isfinite().all()) for each in operands):
        scores = rows.scale * (rows.query @ rows.key.mT)
        if rows.bias is not None:
            scores = scores + rows.bias
        undefined = undefined | (scores.isinf() & w.readable).any(-1, keepdim=True)
        is_nan = (scores.isnan() & w.readable).any(-1, keepdim=True)
        if rows.sinks is not None:
            sinks = rows.sinks[None, :, None, None]
            undefined, is_nan = undefined | (sinks == torch.inf), is_nan | sinks.isnan()
        undefined = undefined & ~is_nan
        unread = unread | (~scores.isfinite() & ~w.readable).any(-1, keepdim=True)
    if profile.masked_nonfinite == MaskedNonfinite.BLOCKED:
        return Promised(undefined=undefined, may_be_nan=None, lse_may_be_nan=None)
    may_be_nan = unread.expand(*unread.shape[:3], rows.value.shape[3])
    poisoned = ~rows.value.isfinite()
    if bool(poisoned.any()):
        may_be_nan = may_be_nan | ((~w.readable).double() @ poisoned.double() > 0)
    return Promised(undefined=undefined, may_be_nan=may_be_nan, lse_may_be_nan=unread)
