"""A correct attention in overridable steps: a mutant overrides the one step that it gets wrong."""

import math
from typing import Any

import torch

from attnspec.spec import Feature, Implementation, MaskedNonfinite, Profile, Rounding, RoundingLevel

ALL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Dense:
    """A correct attention, softmax(scale·QKᵀ, masked)·V, that computes all scores at once.

    It computes in float32 or wider and rounds once, at the end. Each step is a method; a mutant
    overrides the one step that it gets wrong. A step that would change nothing is skipped.
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
        wide = self.wide(query.dtype)
        q, k, v = query.to(wide), key.to(wide), value.to(wide)
        if k.shape[1] != q.shape[1]:
            k, v = self.share_heads(k, q.shape[1]), self.share_heads(v, q.shape[1])
        scores = self.scores(q, k, self.scale(q, v, scale))
        if softcap is not None:
            scores = self.cap(scores, softcap)
        if alibi_slopes is not None:
            scores = self.add_alibi(scores, alibi_slopes.to(wide))
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

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which to compute: float32 or wider."""
        return torch.float64 if dtype == torch.float64 else torch.float32

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Repeat key/value heads so that query head i reads head i // group."""
        return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)

    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        """Return the given scale, or 1/√d_head if there is none."""
        return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        """Return the scaled inner products."""
        return query @ key.mT * scale

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        """Bound the scaled scores to (-softcap, softcap), before anything is added to them."""
        if not softcap > 0:
            raise ValueError(f"softcap must be positive, got {softcap}")
        return softcap * torch.tanh(scores / softcap)

    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """Subtract slope times distance from the scores of each head."""
        distance = self.displacement(*scores.shape[-2:]).abs().to(scores)
        return scores - slopes[:, None, None] * distance

    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        """Return the position of key j relative to that of query i, j - i."""
        return torch.arange(keys) - torch.arange(queries)[:, None]

    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        """Return the mask in which query i reads key j if and only if i - left ≤ j ≤ i + right."""
        if any(width is not None and width < 0 for width in (left, right)):
            raise ValueError(f"window must not be negative, got {(left, right)}")
        after = self.displacement(queries, keys)
        visible = torch.ones_like(after, dtype=torch.bool)
        visible = visible if left is None else visible & (after >= -left)
        return visible if right is None else visible & (after <= right)

    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a key that has no value; its score is the sink logit of the head."""
        logit = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        # minus infinity is no sink at all
        visible = torch.cat([visible.expand(scores.shape), logit != -torch.inf], -1)
        return torch.cat([scores, logit], -1), visible

    def drop(self, weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
        """Set each weight to zero with probability p, and divide it by 1 - p otherwise."""
        kept = torch.rand_like(weights) >= dropout_p
        return weights * kept / (1 - dropout_p) if dropout_p < 1 else torch.zeros_like(weights)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the sum of a row's exponentials, including the sink's."""
        return scores.logsumexp(-1)

    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return which keys are readable, and the bias to add to the scores, or None."""
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
        """Return the bool mask as it is: true means readable."""
        return attn_mask

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        """Return the upper-left triangle: query i reads key j if and only if j ≤ i."""
        return torch.ones(queries, keys, dtype=torch.bool).tril()

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Add the bias to the scaled scores."""
        return scores + bias

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Set the scores of unreadable keys to minus infinity."""
        return scores.masked_fill(~visible, -torch.inf)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Divide exponentials by their sum; a row that reads nothing has weights of zero."""
        if scores.shape[-1] == 0:
            return scores
        # the shift cancels, so its derivative is zero: autograd would add rounding errors
        peak, reads = self.peak(scores).detach(), visible.any(-1, keepdim=True)
        weights = self.exp(scores, torch.where(reads, peak, 0.0))
        return weights / torch.where(reads, self.total(weights), 1.0)

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the largest score of each row."""
        return scores.amax(-1, keepdim=True)

    def exp(self, scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return the exponentials of scores relative to a shift."""
        return torch.exp(scores - shift)

    def total(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of each row."""
        return weights.sum(-1, keepdim=True)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean of the values."""
        return weights @ value

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        """Round to the storage type."""
        return out.to(value.dtype)


def dense(name: str, attention: Any) -> Implementation:
    """Declare an attention with the claims of the correct base."""
    return Implementation(
        name=name,
        attention=attention,
        features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
        dtypes=ALL_DTYPES,
        profile=Profile(
            masked_keys=MaskedNonfinite.PROPAGATES,
            masked_values=MaskedNonfinite.PROPAGATES,
            rounding=Rounding(level=RoundingLevel.FUSED),
        ),
    )


class DenseWithArguments(Dense):
    """A correct attention whose steps can read all arguments of the call, by name."""

    call: dict[str, Any]

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        self.call = {"query": query, "key": key, "value": value, **options}
        return super().__call__(query, key, value, *rest, **options)
