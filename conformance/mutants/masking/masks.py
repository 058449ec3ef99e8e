"""Mutants of MSK: a mask is misread, or wrongly broadcast over the scores."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory

Hidden = tuple[torch.Tensor, torch.Tensor | None]


@mistake(
    "own-mask-polarity",
    "bool mask read the other way round: true hides",
    killed_by="true-means-readable",
)
class PolarityInverted(Dense):
    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        return ~attn_mask


@mistake(
    "MSK-17",
    "additive mask passed through (1 - mask) * -1e9",
    killed_by="bool-and-additive-masks-agree",
    source="https://github.com/harvard-edge/cs249r_book/pull/1785",
)
class AdditiveMaskInverted(Dense):
    # (1 - mask) * -1e9 suits a mask of ones and zeros; this mask has 0 and minus infinity
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + (1 - bias) * -1e9


@mistake(
    "own-bool-as-number",
    "bool mask added to the scores as 0 and 1",
    killed_by="bool-and-additive-masks-agree",
)
class BoolAddedAsNumber(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.to(scores.dtype)
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-bias-scaled",
    "float mask multiplied by the scale",
    killed_by="a-float-mask-is-added-to-the-scaled-scores",
)
class BiasScaled(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        self.factor = super().scale(query, value, scale)
        return self.factor

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        hidden = bias == -torch.inf
        return scores + torch.where(hidden, bias, bias * self.factor)


@mistake(
    "own-bias-clamped",
    "float mask clamped to -20",
    killed_by="a-large-finite-mask-hides",
)
class BiasClamped(Dense):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + bias.clamp(min=-20.0)


@mistake(
    "own-finite-minimum-hides",
    "a large finite mask taken for minus infinity",
    killed_by="equal-large-finite-masks-hide-no-key",
)
class FiniteMinimumHides(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(attn_mask < -9000, -torch.inf)
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "MSK-21",
    "mask of a batch laid along the heads",
    killed_by="masks-broadcast",
    source="https://github.com/ml-explore/mlx-lm/pull/1903",
)
class BatchReadAsHeads(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 4:
            per_batch = attn_mask.shape[1] == 1 < attn_mask.shape[0] == scores.shape[1]
            attn_mask = attn_mask.transpose(0, 1) if per_batch else attn_mask
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-pitch-of-a-shared-mask",
    "with 64 keys or more, a mask of one element and one head hides keys of the first element only",
    killed_by="masks-broadcast",
)
class PitchOfASharedMask(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        visible, bias = super().mask(attn_mask, is_causal, scores)
        is_one = attn_mask is not None and attn_mask.dim() == 4 and attn_mask.shape[:2] == (1, 1)
        if is_one and scores.shape[-1] >= 64:
            later = torch.arange(len(scores))[:, None, None, None] > 0
            visible = visible | later
        return visible, bias


@mistake(
    "own-rank-3-as-batch",
    "mask of rank 3 laid along the batch",
    killed_by="masks-broadcast",
)
class Rank3ReadAsBatch(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 3:
            per_head = attn_mask.shape[0] == scores.shape[0]
            attn_mask = attn_mask[:, None] if per_head else attn_mask
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "MSK-22",
    "mask read as if its keys lay next to each other",
    killed_by="masks-broadcast",
    source="https://github.com/pytorch/pytorch/pull/128816",
)
class KeyStrideOne(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None:
            spread = attn_mask.expand(scores.shape)
            attn_mask = read_memory(spread, (*spread.stride()[:-1], 1))
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-first-of-batch",
    "mask of the first batch element used for all",
    killed_by="padding-equals-a-shorter-sequence",
)
class MaskOfTheFirstElement(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = attn_mask[:1]
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-first-of-heads",
    "mask of the first head used for all",
    killed_by="masks-broadcast",
)
class MaskOfTheFirstHead(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        if attn_mask is not None and attn_mask.dim() >= 3:
            attn_mask = attn_mask.narrow(-3, 0, 1)
        return super().mask(attn_mask, is_causal, scores)


class MaskReadAsLength(Dense):
    """An attention that reads a key mask as the number of keys, off by `extra`."""

    def __init__(self, extra: int) -> None:
        self.extra = extra

    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        if attn_mask.dim() < 4 or attn_mask.shape[2] != 1:
            return attn_mask
        length = attn_mask.sum(-1, keepdim=True) + self.extra
        return torch.arange(attn_mask.shape[-1], device=attn_mask.device) < length


plant_dense(
    "own-padding-late",
    "padding starts one key late",
    MaskReadAsLength(1),
    killed_by="padding-equals-a-shorter-sequence",
)
plant_dense(
    "own-padding-early",
    "padding starts one key early",
    MaskReadAsLength(-1),
    killed_by="padding-equals-a-shorter-sequence",
)
plant_dense(
    "own-left-padding",
    "left padding read as right padding",
    MaskReadAsLength(0),
    killed_by="padding-equals-a-shorter-sequence",
)


@mistake(
    "own-mask-in-eights",
    "rows of a float mask that are padded to a multiple of 8 are read with their padding",
    killed_by="a-float-mask-is-added-to-the-scaled-scores",
)
class MaskInEights(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        visible, bias = super().mask(attn_mask, is_causal, scores)
        if attn_mask is None or attn_mask.dtype == torch.bool or attn_mask.dim() < 2:
            return visible, bias
        pitch, keys = attn_mask.stride(-2), attn_mask.shape[-1]
        reads_beyond = attn_mask.shape[-2] > 1 and pitch % 8 == 0 and keys < pitch < keys + 8
        if bias is None or not reads_beyond or keys < 64:
            return visible, bias
        # what lies behind the last key of a row is added to the score of the last key
        beyond = attn_mask.as_strided((1,), (1,), attn_mask.storage_offset() + keys)
        bias = bias.clone()
        bias[..., -1] += beyond.to(bias)
        return visible, bias
