"""Mutants of MSK: the causal flag, alone and together with a mask."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.spec import CausalAlignment, CausalSingleQuery

Hidden = tuple[torch.Tensor, torch.Tensor | None]


plant_dense(
    "MSK-01",
    "causal mask aligned upper-left where lower-right is declared",
    Dense(),
    killed_by="the-diagonal-lies-where-the-profile-says",
    source="https://github.com/thu-ml/SageAttention/pull/372",
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)


@mistake(
    "own-causal-lower-right",
    "causal mask aligned lower-right where upper-left is declared",
    killed_by="the-diagonal-lies-where-the-profile-says",
)
class LowerRight(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@mistake(
    "own-causal-always",
    "no query reads a later key, whether the causal flag is set or not",
    killed_by="output-equals-the-definition",
)
class AlwaysCausal(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        past = self.causal(*scores.shape[-2:]).to(scores.device)
        return super().hide(scores, visible & past)


@mistake(
    "own-causal-single-query-ignored",
    "the causal flag is dropped if there is a single query",
    killed_by="the-diagonal-lies-where-the-profile-says",
)
class SingleQueryReadsAll(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        visible = super().causal(queries, keys)
        return torch.ones_like(visible) if queries == 1 else visible


plant_dense(
    "own-causal-single-query-hides",
    "the causal flag hides keys from a single query, where the profile declares that it does not",
    Dense(),
    killed_by="the-diagonal-lies-where-the-profile-says",
    causal_single_query=CausalSingleQuery.IGNORED,
)


@mistake(
    "own-causal-strict",
    "causal mask hides the query's own position",
    killed_by="a-key-affects-only-queries-that-read-it",
)
class OwnPlaceHidden(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(-1)


@mistake(
    "own-causal-one-too-many",
    "causal mask shows one key of the future",
    killed_by="a-causal-row-attends-its-prefix",
)
class OneKeyOfTheFuture(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(1)


@mistake(
    "own-causal-keys-smoothed",
    "the mean of all keys, later ones included, is subtracted from each key",
    killed_by="large-later-keys-change-nothing",
)
class KeysSmoothed(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        # the mean cancels, in the gradients too, except in the rounding of each difference
        return super().scores(query, key - key.mean(2, keepdim=True).detach(), scale)


@mistake(
    "own-causal-by-tile",
    "causal mask exact only to whole tiles of 16",
    killed_by="a-causal-row-attends-its-prefix",
)
class TriangleByTile(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) // 16 <= torch.arange(queries)[:, None] // 16


@mistake(
    "MSK-10",
    "causal mask skipped when no mask is passed",
    killed_by="a-causal-row-attends-its-prefix",
    source="https://github.com/facebookresearch/xformers/issues/103",
)
class CausalOnlyWithMask(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(attn_mask, is_causal and attn_mask is not None, scores)


@mistake(
    "own-causal-dropped-with-mask",
    "causal mask skipped when a mask is passed",
    killed_by="mask-and-causal-flag-both-apply",
)
class CausalOnlyWithoutMask(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(attn_mask, is_causal and attn_mask is None, scores)


@mistake(
    "MSK-37",
    "packed documents read across their borders: the mask is dropped when attention is causal",
    killed_by="packed-documents-equal-separate-calls",
    source="https://github.com/huggingface/nanoVLM/pull/204",
)
class MaskDroppedWhenCausal(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(None if is_causal else attn_mask, is_causal, scores)


@mistake(
    "MSK-08",
    "causality lost where the fused path is not taken",
    killed_by="finite-later-keys-change-nothing",
    source="https://github.com/keras-team/keras/issues/23038",
)
class CausalLostInFallback(Dense):
    # the fused path needs square scores; the other path never builds the triangle
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        fused = scores.shape[-2] == scores.shape[-1]
        return super().mask(attn_mask, is_causal and fused, scores)


@mistake(
    "MSK-11",
    "causality inferred from the number of queries",
    killed_by="a-query-reads-exactly-its-keys",
    source="https://github.com/McGill-NLP/llm2vec/issues/79",
)
class CausalByLength(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        options["is_causal"] = query.shape[2] > 1
        return super().__call__(query, *operands, **options)


@mistake(
    "own-mask-or-causal",
    "mask and causal flag joined by or",
    killed_by="mask-and-causal-flag-both-apply",
)
class MaskOrCausal(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        visible, bias = super().mask(attn_mask, False, scores)
        if is_causal and attn_mask is not None:
            visible = visible | self.causal(*scores.shape[-2:]).to(scores.device)
            return visible, bias if bias is None else bias.clamp(min=-1e4)
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "MSK-39",
    "padding and causality as sums of finite constants",
    killed_by="mask-and-causal-flag-both-apply",
    source="https://github.com/microsoft/onnxruntime/issues/14363",
)
class SumOfFiniteConstants(Dense):
    # constants of both constraints add up: a row without readable keys becomes a softmax over
    # the least forbidden keys
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        by_mask, bias = super().mask(attn_mask, False, scores)
        by_flag, _ = super().mask(None, is_causal, scores)
        penalty = -1e4 * (~by_mask).to(scores.dtype) - 1e4 * (~by_flag).to(scores.dtype)
        penalty = penalty if bias is None else penalty + bias.clamp(min=-1e4)
        return torch.ones_like(by_mask), penalty
