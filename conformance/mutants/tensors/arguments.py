"""Mutants of TEN: options are read from keywords only."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake

correct: Callable[..., Any] = Dense()


@mistake(
    "own-position-dropped",
    "a wrapper passes on the options that are given by keyword, and no others",
    killed_by="options-may-be-passed-by-position",
)
def _keywords_only(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    return correct(query, key, value, **options)


@mistake(
    "own-position-without-dropout",
    "a wrapper for inference takes the first two options for the mask and the causal flag",
    killed_by="options-may-be-passed-by-position",
)
def _without_dropout(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    names = ("attn_mask", "is_causal", "scale", "enable_gqa")
    return correct(query, key, value, **dict(zip(names, rest, strict=False)) | options)
