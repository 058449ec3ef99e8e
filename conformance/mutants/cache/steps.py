"""Mutants of CAC: calls with fewer queries than keys take a separate, wrong path."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import CausalAlignment, Feature

LOWER_RIGHT = CausalAlignment.LOWER_RIGHT


class LowerRightDense(Dense):
    """A correct attention aligned lower-right: the last query is at the last key."""

    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        """Return the position of key j relative to that of query i, i + keys - queries."""
        return super().displacement(queries, keys) - (keys - queries)

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        """Return the lower-right triangle."""
        return self.displacement(queries, keys) <= 0


@mistake(
    "own-halves-unweighted",
    "one query's keys split in two, and the halves averaged",
    killed_by="step-by-step-equals-all-at-once",
)
class HalvesUnweighted(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        queries, keys = scores.shape[-2:]
        if queries > 1 or keys < 2:
            return weights
        both = weights.split([keys // 2, keys - keys // 2], dim=-1)
        totals = [half.sum(-1, keepdim=True) for half in both]
        return torch.cat([half / (2 * t.clamp_min(1e-30)) for half, t in zip(both, totals)], -1)  # noqa: B905


@mistake(
    "own-decode-heads-interleaved",
    "heads shared in the wrong order where there is one query",
    killed_by="step-by-step-equals-all-at-once",
)
class DecodeHeadsInterleaved(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        one = query.shape[2] == 1 and operands[0].shape[2] > 1
        self.heads = torch.arange(query.shape[1]) % operands[0].shape[1] if one else None
        return super().__call__(query, *operands, **options)

    def share_heads(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        return super().share_heads(tensor, heads) if self.heads is None else tensor[:, self.heads]


@mistake(
    "CAC-15",
    "the newest key and value of one query never reach the cache",
    killed_by="step-by-step-equals-all-at-once",
    source="https://github.com/flagos-ai/vllm-plugin-FL/pull/353",
)
def _newest_not_written(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    if query.shape[2] == 1 and key.shape[2] > 1:
        key, value = key.clone(), value.clone()
        key[:, :, -1], value[:, :, -1] = 0, 0
    return Dense()(query, key, value, *rest, **options)


@mistake(
    "own-chunk-without-past",
    "a chunk of several queries reads only its own keys",
    killed_by="chunks-equal-all-at-once",
    features=(Feature.WINDOW,),
    causal_alignment=LOWER_RIGHT,
)
class ChunkWithoutPast(LowerRightDense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        if 1 < queries < keys:
            visible = visible.clone()
            visible[..., : keys - queries] = False
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


@mistake(
    "own-keys-end-with-the-queries",
    "a tile of queries ends its keys at the number of queries",
    killed_by="step-by-step-equals-all-at-once",
    causal_alignment=LOWER_RIGHT,
    source="https://github.com/thu-ml/SageAttention/pull/372",
)
class KeysEndWithQueries(LowerRightDense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return super().causal(queries, keys) & (torch.arange(keys) < queries)


@mistake(
    "own-padding-in-the-cache",
    "padding of the keys in the cache forgotten",
    killed_by="a-ragged-batch-equals-separate-calls",
    source="https://github.com/huggingface/transformers/issues/4130",
)
class PaddingInTheCacheForgotten(Dense):
    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        queries, keys = attn_mask.shape[-2:]
        if queries >= keys or attn_mask.dim() < 4:
            return attn_mask
        attn_mask = attn_mask.clone()
        attn_mask[..., : keys - queries] = True
        return attn_mask


@mistake(
    "own-length-of-the-first",
    "the length of the first batch element taken for all where there is one query",
    killed_by="a-ragged-batch-equals-separate-calls",
)
class LengthOfTheFirst(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if attn_mask is not None and attn_mask.dim() == 4 and scores.shape[-2] == 1:
            attn_mask = attn_mask[:1]
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-left-padding-counted",
    "padding on the left taken for padding on the right",
    killed_by="a-ragged-batch-equals-separate-calls",
)
class LeftPaddingReadAsRight(Dense):
    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        if attn_mask.dim() == 4 and attn_mask.shape[1] == 1 and bool(attn_mask[..., -1].all()):
            return attn_mask.sort(dim=-1, descending=True).values
        return attn_mask


@mistake(
    "own-window-prefill-only",
    "window ignored where there is one query",
    killed_by="windows-and-slopes-count-from-the-position-of-a-query",
    features=(Feature.WINDOW,),
    causal_alignment=LOWER_RIGHT,
    source="https://github.com/EricLBuehler/mistral.rs/issues/2094",
)
class WindowInPrefillOnly(LowerRightDense):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        return super().window(None if queries == 1 else left, right, queries, keys)


@mistake(
    "MSK-28",
    "window of a chunk one key wider than the window of one query",
    killed_by="windows-and-slopes-count-from-the-position-of-a-query",
    features=(Feature.WINDOW,),
    source="https://github.com/ml-explore/mlx-lm/pull/390",
)
class WiderInPrefill(Dense):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        wider = left if left is None or queries == 1 else left + 1
        return super().window(wider, right, queries, keys)


@mistake(
    "own-slopes-from-query-zero",
    "ALiBi measured as if there were no keys before the queries",
    killed_by="windows-and-slopes-count-from-the-position-of-a-query",
    features=(Feature.ALIBI,),
    causal_alignment=LOWER_RIGHT,
)
class SlopesFromZero(LowerRightDense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = Dense.displacement(self, *scores.shape[-2:]).abs().to(scores)
        return scores - slopes[:, None, None] * distance


@mistake(
    "own-sink-prefill-only",
    "sink left out where there is one query",
    killed_by="windows-and-slopes-count-from-the-position-of-a-query",
    features=(Feature.SINKS,),
)
class SinkInPrefillOnly(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        decoding = scores.shape[-2] == 1 and scores.shape[-1] > 1
        return super().sink(scores, visible, sinks - torch.inf if decoding else sinks)


@mistake(
    "own-softcap-prefill-only",
    "softcap left out where there are fewer queries than keys",
    killed_by="windows-and-slopes-count-from-the-position-of-a-query",
    features=(Feature.SOFTCAP,),
)
class CapInPrefillOnly(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        return scores if queries < keys else super().cap(scores, softcap)
