"""Exempt rows from the bound whose operands hold NaN or infinity, or whose scores overflow."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool

from attnspec.conformance.attention.bounds.rows import Rows
from attnspec.conformance.attention.bounds.scores import Weights
from attnspec.spec import MaskedNonfinite, Profile


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds no NaN and no infinity.

    Their sum is not finite either; it takes a tenth of the time of looking at each number.
    """
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def finite_rows(rows: Rows) -> Rows:
    """Return the same rows with zeros for NaN and infinities: the bound never sees a NaN."""

    def clean(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if is_finite(tensor) else torch.where(tensor.isfinite(), tensor, 0.0)

    return replace(
        rows,
        query=clean(rows.query),
        key=clean(rows.key),
        value=clean(rows.value),
        mask_bias=None if rows.mask_bias is None else clean(rows.mask_bias),
        alibi=None if rows.alibi is None else clean(rows.alibi),
        # a sink of minus infinity is no sink
        sinks=None if rows.sinks is None else rows.sinks.nan_to_num(0.0, 0.0, -torch.inf),
    )


@dataclass(frozen=True, kw_only=True)
class Exemptions:
    """The elements of which less is promised, because of NaN, infinities or overflow.

    Attributes:
        undefined: rows of which nothing is promised: they read a score out of range.
        may_be_nan: elements that NaN or infinity in a hidden key or value may make NaN; None if
            the profile blocks both.
        lse_may_be_nan: likewise of the log-sum-exp.
    """

    undefined: Bool[torch.Tensor, "batch heads rows 1"]
    may_be_nan: Bool[torch.Tensor, "batch heads rows d_value"] | None
    lse_may_be_nan: Bool[torch.Tensor, "batch heads rows 1"] | None


def exemptions(rows: Rows, finite: Rows, w: Weights, profile: Profile) -> Exemptions:
    """Return the elements of which NaN, infinity or overflow lessens the promise.

    A NaN score at a visible key makes its row NaN: that result is demanded, not undefined.

    Args:
        rows: as stored, with NaN and infinities.
        finite: the result of `finite_rows` for them.
        w: the weights of the same rows with zeros for NaN and infinities.
        profile: declares whether NaN and infinity in hidden keys and values may have an effect.
    """
    undefined, unread = w.overflows, w.overflows_unread
    is_clean = rows.query is finite.query and rows.key is finite.key
    added = (rows.bias, rows.sinks)
    if not is_clean or not all(each is None or is_finite(each) for each in added):
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
    may_be_nan = lse_may_be_nan = None
    if profile.masked_keys is MaskedNonfinite.PROPAGATES:
        lse_may_be_nan = unread
        may_be_nan = unread.expand(*unread.shape[:3], rows.value.shape[3])
    if profile.masked_values is MaskedNonfinite.PROPAGATES:
        by_value = w.readable.new_zeros((*w.readable.shape[:3], rows.value.shape[3]))
        if rows.value is not finite.value:
            by_value = (~w.readable).double() @ (~rows.value.isfinite()).double() > 0
        may_be_nan = by_value if may_be_nan is None else may_be_nan | by_value
    return Exemptions(undefined=undefined, may_be_nan=may_be_nan, lse_may_be_nan=lse_may_be_nan)
