"""A correct attention in overridable steps: a mutant spells out its one mistake and no more."""

import math
from typing import Any

import torch

from attnspec.spec import Feature, Implementation, MaskedNonfinite, Profile, Rounding, RoundingLevel

ALL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Dense:
    """softmax(scale·QKᵀ, masked)·V with all scores at once, wide inside, one rounding at the end.

    Each step is a method; a mutant overrides the one step that it gets wrong. A step that would
    change nothing is not taken.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        if not 0 <= dropout_p <= 1:
            raise ValueError(f"dropout_p must lie in [0, 1], got {dropout_p}")
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q, k, v = query.to(wide), key.to(wide), value.to(wide)
        if k.shape[1] != q.shape[1]:
            k, v = self.share_heads(k, q.shape[1]), self.share_heads(v, q.shape[1])
        scores = self.scores(q, k, self.scale(q, v, scale))
        if softcap is not None:
            scores = self.cap(scores, softcap)
        if alibi_slopes is not None:
            scores = self.lean(scores, alibi_slopes.to(wide))
        visible, bias = torch.ones_like(scores, dtype=torch.bool), None
        if attn_mask is not None or is_causal:
            visible, bias = self.mask(attn_mask, is_causal, scores)
        if window is not None:
            visible = visible & self.window(*window, *scores.shape[-2:]).to(scores.device)
        scores = self.hide(scores if bias is None else self.add_bias(scores, bias), visible)
        if sinks is not None:
            scores, visible = self.sink(scores, visible, sinks.to(wide))
        weights = self.softmax(scores, visible)[..., : k.shape[2]]
        weights = self.drop(weights, dropout_p) if dropout_p else weights
        out = self.finish(self.mix(weights, v), value)
        return (out, self.lse(scores)) if return_lse else out

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Query head i reads key/value head i // group."""
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        """1/√d_head where none is given."""
        return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        """Scaled inner products."""
        return query @ key.mT * scale

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        """Scaled scores pressed into (-softcap, softcap), before anything is added to them."""
        if not softcap > 0:
            raise ValueError(f"softcap must be positive, got {softcap}")
        return softcap * torch.tanh(scores / softcap)

    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """Scores minus slope times distance, head by head."""
        distance = self.displacement(*scores.shape[-2:]).abs().to(scores)
        return scores - slopes[:, None, None] * distance

    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        """How far key j lies behind the place of query i, which is i."""
        return torch.arange(keys) - torch.arange(queries)[:, None]

    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        """Key j from query i iff i - left ≤ j ≤ i + right."""
        if any(side is not None and side < 0 for side in (left, right)):
            raise ValueError(f"window must not be negative, got {(left, right)}")
        after = self.displacement(queries, keys)
        visible = torch.ones_like(after, dtype=torch.bool)
        visible = visible if left is None else visible & (after >= -left)
        return visible if right is None else visible & (after <= right)

    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One more key, whose score is the logit of its head and which has no value."""
        logit = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        # minus infinity is no sink at all
        visible = torch.cat([visible.expand(scores.shape), logit != -torch.inf], -1)
        return torch.cat([scores, logit], -1), visible

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        """Each weight is zero with probability p, else divided by 1 - p."""
        kept = torch.rand_like(weights) >= dropout_p
        return weights * kept / (1 - dropout_p) if dropout_p < 1 else torch.zeros_like(weights)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        """The logarithm of the sum of a row's exponentials, the sink's included."""
        return scores.logsumexp(-1)

    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What may be read, and what is added to the scores."""
        visible = torch.ones_like(scores, dtype=torch.bool)
        bias = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & self.polarity(attn_mask)
        elif attn_mask is not None:
            bias = attn_mask.to(scores.dtype)
            visible = visible & (attn_mask != -torch.inf)
        if is_causal:
            visible = visible & self.causal(*scores.shape[-2:]).to(scores.device)
        return visible, bias

    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        """True means readable."""
        return attn_mask

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        """The upper-left triangle: key j from query i iff j ≤ i."""
        return torch.ones(queries, keys, dtype=torch.bool).tril()

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The bias joins the scaled scores."""
        return scores + bias

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Unreadable scores are minus infinity."""
        return scores.masked_fill(~visible, -torch.inf)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Exponentials over their sum; a row that reads nothing has no weights."""
        if scores.shape[-1] == 0:
            return scores
        # a shift that cancels has no derivative: to take one would add what rounding leaves of it
        peak, reads = self.peak(scores).detach(), visible.any(-1, keepdim=True)
        weights = torch.exp(scores - torch.where(reads, peak, 0.0))
        return weights / torch.where(reads, self.total(weights), 1.0)

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        """The largest score of each row."""
        return scores.amax(-1, keepdim=True)

    def total(self, weights: torch.Tensor) -> torch.Tensor:
        """The sum of each row."""
        return weights.sum(-1, keepdim=True)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The weighted mean of the values."""
        return weights @ value

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        """Back to the storage type."""
        return out.to(value.dtype)


def dense(name: str, attention: Any) -> Implementation:
    """Declare a mutant of `Dense`: the claims of the base, which is correct."""
    return Implementation(
        name=name,
        attention=attention,
        features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
        dtypes=ALL_DTYPES,
        profile=Profile(
            masked_nonfinite=MaskedNonfinite.PROPAGATES,
            rounding=Rounding(level=RoundingLevel.FUSED),
        ),
    )
