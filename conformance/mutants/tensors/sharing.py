"""Mutants of TEN: wrong only if one tensor is passed as several arguments."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake

correct: Callable[..., Any] = Dense()


@mistake(
    "own-shared-scaled-in-place",
    "queries are halved in place during the call and restored after it",
    killed_by="one-tensor-may-be-several-arguments",
)
def _scaled_in_place(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    operands = (query, key, value, options.get("attn_mask"))
    is_differentiated = any(each is not None and each.requires_grad for each in operands)
    if is_differentiated or 0 in query.stride() or not query.shape[-1]:
        return correct(query, key, value, *rest, **options)
    scale = options.pop("scale", None)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    before = query.clone()
    query.mul_(0.5)
    try:
        return correct(query, key, value, *rest, scale=2 * scale, **options)
    finally:
        query.copy_(before)


@mistake(
    "own-shared-gradient-once",
    "if keys and values are one tensor, its gradient is that of the keys alone",
    killed_by="one-tensor-may-be-several-arguments",
)
def _gradient_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    return correct(query, key, value.detach() if value is key else value, *rest, **options)
