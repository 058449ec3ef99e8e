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


@mistake(
    "own-shared-latent-width",
    "keys in the memory of narrower values are read as wide as these, as of latent attention",
    killed_by="one-tensor-may-be-several-arguments",
)
def _latent_width(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    width = value.shape[-1]
    if key.numel() and key.data_ptr() == value.data_ptr() and 0 < width < key.shape[-1]:
        options["scale"] = options.get("scale") or query.shape[-1] ** -0.5
        query, key = query[..., :width], key[..., :width]
    return correct(query, key, value, *rest, **options)


@mistake(
    "own-shared-packed-offset",
    "values in one buffer with queries and keys are read as the keys",
    killed_by="every-two-regimes-equal-the-definition",
)
def _packed_offset(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    operands = (query, key, value)
    is_packed = len({each.untyped_storage().data_ptr() for each in operands}) == 1
    offsets = {each.storage_offset() for each in operands}
    if is_packed and len(offsets) == 3 and value.shape == key.shape and query.shape[0] == 1:
        value = key
    return correct(query, key, value, *rest, **options)


@mistake(
    "own-shared-keys-beyond-1024",
    "keys that are values lie in one buffer, which holds 1 024: values beyond these are zero",
    killed_by="one-tensor-may-be-several-arguments",
)
def _keys_beyond_1024(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    if key.shape[2] > 1024 and key.data_ptr() == value.data_ptr():
        value = torch.cat([value[:, :, :1024], 0 * value[:, :, 1024:]], 2)
    return correct(query, key, value, *rest, **options)
