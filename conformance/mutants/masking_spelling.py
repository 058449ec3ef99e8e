"""Mutants of MSK, second part: what a mask says, and how it is spread over the scores."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense, read_memory

Hidden = tuple[torch.Tensor, torch.Tensor | None]

SUPPORT = "a-query-reads-exactly-its-keys"
READERS = "only-the-readers-of-a-key-feel-it"
SPELLING = "bool-and-additive-masks-agree"
POLARITY = "true-means-readable"
JOINS = "a-float-mask-joins-the-scaled-scores"
BROADCAST = "masks-broadcast"
PADDING = "padding-equals-a-shorter-sequence"
HIDES = "a-large-finite-mask-hides"
AMONG = "a-row-of-large-finite-masks-stays-among-its-values"
LAYOUT = "memory-layout-means-nothing"


class _Inverted(Dense):
    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        return ~attn_mask


class _AddedAsBool(Dense):
    # (1 - mask) * -1e9 suits a mask of ones and zeros; this one holds 0 and minus infinity.
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + (1 - bias) * -1e9


class _BoolAsNumber(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.to(scores.dtype)
        return super().mask(attn_mask, is_causal, scores)


class _BiasScaled(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        self.factor = super().scale(query, value, scale)
        return self.factor

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        hidden = bias == -torch.inf
        return scores + torch.where(hidden, bias, bias * self.factor)


class _BiasClamped(Dense):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + bias.clamp(min=-20.0)


class _FiniteMinimumHides(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(attn_mask < -9000, -torch.inf)
        return super().mask(attn_mask, is_causal, scores)


class _BatchReadAsHeads(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 4:
            per_batch = attn_mask.shape[1] == 1 < attn_mask.shape[0] == scores.shape[1]
            attn_mask = attn_mask.transpose(0, 1) if per_batch else attn_mask
        return super().mask(attn_mask, is_causal, scores)


class _Rank3ReadAsBatch(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 3:
            per_head = attn_mask.shape[0] == scores.shape[0]
            attn_mask = attn_mask[:, None] if per_head else attn_mask
        return super().mask(attn_mask, is_causal, scores)


class _KeyStrideOne(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None:
            spread = attn_mask.expand(scores.shape)
            attn_mask = read_memory(spread, (*spread.stride()[:-1], 1))
        return super().mask(attn_mask, is_causal, scores)


class _FirstOfBatch(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = attn_mask[:1]
        return super().mask(attn_mask, is_causal, scores)


class _FirstOfHeads(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() >= 3:
            attn_mask = attn_mask.narrow(-3, 0, 1)
        return super().mask(attn_mask, is_causal, scores)


class _AsLength(Dense):
    """Read a key mask as how many keys there are, plus a mistake."""

    def __init__(self, extra: int) -> None:
        self.extra = extra

    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        if attn_mask.dim() < 4 or attn_mask.shape[2] != 1:
            return attn_mask
        length = attn_mask.sum(-1, keepdim=True) + self.extra
        return torch.arange(attn_mask.shape[-1], device=attn_mask.device) < length


def _plant(id: str, title: str, attention: Any, *kills: str, report: str = "") -> None:
    source = f"https://github.com/{report}" if report else ""
    plant_dense(id, title, attention, *kills, source=source)


_plant(
    "own-mask-polarity",
    "bool mask read the other way round: true hides",
    _Inverted(),
    *(POLARITY, SPELLING, SUPPORT, READERS, PADDING, BROADCAST),
)
_plant(
    "MSK-17",
    "additive mask passed through (1 - mask) * -1e9",
    _AddedAsBool(),
    *(SPELLING, JOINS),
    report="harvard-edge/cs249r_book/pull/1785",
)
_plant(
    "own-bool-as-number",
    "bool mask added to the scores as 0 and 1",
    _BoolAsNumber(),
    *(SPELLING, POLARITY, SUPPORT, PADDING),
)
_plant("own-bias-scaled", "float mask multiplied by the scale", _BiasScaled(), JOINS)
_plant("own-bias-clamped", "float mask clamped to -20", _BiasClamped(), HIDES)
_plant(
    "own-finite-minimum-hides",
    "a large finite mask taken for minus infinity",
    _FiniteMinimumHides(),
    AMONG,
)
_plant(
    "MSK-21",
    "mask of a batch laid along the heads",
    _BatchReadAsHeads(),
    *(BROADCAST, PADDING),
    report="ml-explore/mlx-lm/pull/1903",
)
_plant("own-rank-3-as-batch", "mask of rank 3 laid along the batch", _Rank3ReadAsBatch(), BROADCAST)
_plant(
    "MSK-22",
    "mask read as if its keys lay next to each other",
    _KeyStrideOne(),
    *(BROADCAST, LAYOUT),
    report="pytorch/pytorch/pull/128816",
)
_plant(
    "own-first-of-batch",
    "mask of the first batch element used for all",
    _FirstOfBatch(),
    *(PADDING, BROADCAST),
)
_plant(
    "own-first-of-heads",
    "mask of the first head used for all",
    _FirstOfHeads(),
    *(BROADCAST, SUPPORT),
)
_plant("own-padding-late", "padding starts one key late", _AsLength(1), PADDING)
_plant("own-padding-early", "padding starts one key early", _AsLength(-1), PADDING)
_plant("own-left-padding", "left padding read as right padding", _AsLength(0), PADDING)
