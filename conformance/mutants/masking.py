"""Mutants of MSK, first part: the causal flag, alone and together with a mask."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense
from attnspec.spec import CausalAlignment

Hidden = tuple[torch.Tensor, torch.Tensor | None]

PREFIX = "a-causal-row-attends-its-prefix"
FINITE = "a-finite-future-moves-nothing"
LARGE = "a-large-future-moves-nothing"
DIAGONAL = "the-diagonal-lies-where-the-profile-says"
BOTH = "mask-and-causal-flag-both-apply"
SUPPORT = "a-query-reads-exactly-its-keys"
READERS = "only-the-readers-of-a-key-feel-it"
EXTENSION = "an-extension-changes-no-earlier-row"
SPELLING = "bool-and-additive-masks-agree"
TRIANGLE = "the-causal-flag-equals-its-triangle"
POLARITY = "true-means-readable"
PADDING = "padding-equals-a-shorter-sequence"
DOCUMENTS = "packed-documents-equal-separate-calls"
EMPTY = "an-empty-row-gives-the-profiles-answer"
UNREADABLE = "unreadable-nan-and-infinity-follow-the-profile"


class _LowerRight(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class _Strict(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(-1)


class _OneTooMany(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(1)


class _ByTile(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) // 16 <= torch.arange(queries)[:, None] // 16


class _CausalOnlyWithMask(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(attn_mask, is_causal and attn_mask is not None, scores)


class _CausalOnlyWithoutMask(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(attn_mask, is_causal and attn_mask is None, scores)


class _MaskDroppedWhenCausal(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        return super().mask(None if is_causal else attn_mask, is_causal, scores)


class _CausalLostInFallback(Dense):
    # The fused path needs square scores; the other one never builds the triangle.
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        fused = scores.shape[-2] == scores.shape[-1]
        return super().mask(attn_mask, is_causal and fused, scores)


class _CausalByLength(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        options["is_causal"] = query.shape[2] > 1
        return super().__call__(query, *operands, **options)


class _Either(Dense):
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        visible, bias = super().mask(attn_mask, False, scores)
        if is_causal and attn_mask is not None:
            visible = visible | self.causal(*scores.shape[-2:]).to(scores.device)
            return visible, bias if bias is None else bias.clamp(min=-1e4)
        return super().mask(attn_mask, is_causal, scores)


class _FiniteConstants(Dense):
    # Both constraints are sums of constants, so that a row that neither lets read anything
    # is a softmax over the least forbidden keys.
    def mask(self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor) -> Hidden:
        by_mask, bias = super().mask(attn_mask, False, scores)
        by_flag, _ = super().mask(None, is_causal, scores)
        penalty = -1e4 * (~by_mask).to(scores.dtype) - 1e4 * (~by_flag).to(scores.dtype)
        penalty = penalty if bias is None else penalty + bias.clamp(min=-1e4)
        return torch.ones_like(by_mask), penalty


plant_dense(
    "MSK-01",
    "causal mask aligned upper-left where lower-right is declared",
    Dense(),
    DIAGONAL,
    PREFIX,
    TRIANGLE,
    source="https://github.com/thu-ml/SageAttention/pull/372",
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)
plant_dense(
    "own-causal-lower-right",
    "causal mask aligned lower-right where upper-left is declared",
    _LowerRight(),
    DIAGONAL,
    PREFIX,
    FINITE,
    LARGE,
    TRIANGLE,
    SUPPORT,
    EXTENSION,
)
plant_dense(
    "own-causal-strict",
    "causal mask hides the query's own place",
    _Strict(),
    PREFIX,
    SUPPORT,
    READERS,
    BOTH,
    TRIANGLE,
)
plant_dense(
    "own-causal-one-too-many",
    "causal mask shows one key of the future",
    _OneTooMany(),
    PREFIX,
    FINITE,
    LARGE,
    SUPPORT,
    READERS,
    EXTENSION,
    DIAGONAL,
    TRIANGLE,
    BOTH,
)
plant_dense(
    "own-causal-by-tile",
    "causal mask exact only to whole tiles of 16",
    _ByTile(),
    PREFIX,
    FINITE,
    LARGE,
    SUPPORT,
    EXTENSION,
    UNREADABLE,
)
plant_dense(
    "MSK-10",
    "causal mask skipped when no mask is passed",
    _CausalOnlyWithMask(),
    PREFIX,
    FINITE,
    LARGE,
    TRIANGLE,
    SUPPORT,
    source="https://github.com/facebookresearch/xformers/issues/103",
)
plant_dense(
    "own-causal-dropped-with-mask",
    "causal mask skipped when a mask is passed",
    _CausalOnlyWithoutMask(),
    BOTH,
    DOCUMENTS,
)
plant_dense(
    "MSK-37",
    "packed documents read across their borders: the mask is dropped when attention is causal",
    _MaskDroppedWhenCausal(),
    DOCUMENTS,
    BOTH,
    source="https://github.com/huggingface/nanoVLM/pull/204",
)
plant_dense(
    "MSK-08",
    "causality lost where the fused path is not taken",
    _CausalLostInFallback(),
    DIAGONAL,
    PREFIX,
    FINITE,
    LARGE,
    source="https://github.com/keras-team/keras/issues/23038",
)
plant_dense(
    "MSK-11",
    "causality inferred from the number of queries",
    _CausalByLength(),
    SUPPORT,
    READERS,
    SPELLING,
    POLARITY,
    PADDING,
    source="https://github.com/McGill-NLP/llm2vec/issues/79",
)
plant_dense("own-mask-or-causal", "mask and causal flag joined by or", _Either(), BOTH, DOCUMENTS)
plant_dense(
    "MSK-39",
    "padding and causality as sums of finite constants",
    _FiniteConstants(),
    BOTH,
    EMPTY,
    source="https://github.com/microsoft/onnxruntime/issues/14363",
)
