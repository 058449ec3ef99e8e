"""Mutants of TEN, second part: tensors read as if they lay otherwise in memory."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense, read_memory

LAYOUT = "memory-layout-means-nothing"

correct: Callable[..., Any] = Dense()


def _as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return read_memory(tensor, torch.empty(tensor.shape, device="meta").stride())


def _reading(read: Callable[[torch.Tensor], torch.Tensor], only_masked: bool = False) -> Any:
    """A correct attention whose operands are read in a wrong way."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        if only_masked and options.get("attn_mask") is None:
            return correct(*operands, **options)
        return correct(*(read(each) for each in operands), **options)

    return attention


def _last_stride_one(tensor: torch.Tensor) -> torch.Tensor:
    return read_memory(tensor, (*tensor.stride()[:-1], 1))


def _no_offset(tensor: torch.Tensor) -> torch.Tensor:
    start = tensor.storage_offset()
    return tensor if start == 0 else torch.as_strided(tensor, tensor.shape, tensor.stride(), 0)


def _any_other_is_transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    heads, length, channels = tensor.shape[1:]
    return read_memory(tensor, (heads * length * channels, length * channels, 1, length))


def _expanded_is_stored(tensor: torch.Tensor) -> torch.Tensor:
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return _as_contiguous(tensor) if any(n > 1 and s == 0 for n, s in axes) else tensor


def _unit_stride_demanded(*operands: torch.Tensor, **options: Any) -> Any:
    for each in operands:
        if each.shape[-1] == 1 and each.stride(-1) != 1:
            raise RuntimeError("the last dimension must have stride 1")
    return correct(*operands, **options)


plant_dense(
    "STR-01",
    "permuted views read as if they were contiguous",
    _reading(_as_contiguous),
    LAYOUT,
    source="https://github.com/pytorch/pytorch/issues/181133",
)
plant_dense(
    "STR-02",
    "strides ignored where a mask is given",
    _reading(_as_contiguous, only_masked=True),
    LAYOUT,
    source="https://github.com/pytorch/pytorch/issues/112577",
)
plant_dense(
    "own-last-stride-one",
    "channels read as if they lay next to each other",
    _reading(_last_stride_one),
    LAYOUT,
)
plant_dense("own-offset-ignored", "storage offset ignored", _reading(_no_offset), LAYOUT)
plant_dense(
    "own-transposed-assumed",
    "whatever is not contiguous taken for transposed",
    _reading(_any_other_is_transposed),
    LAYOUT,
)
plant_dense(
    "own-expanded-stored",
    "expanded tensors read as if they were stored in full",
    _reading(_expanded_is_stored),
    LAYOUT,
)
plant_dense(
    "STR-07",
    "stride 1 demanded of an axis of size one",
    _unit_stride_demanded,
    LAYOUT,
    source="https://github.com/pytorch/pytorch/issues/116333",
)
