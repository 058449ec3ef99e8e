"""Mutants of TEN: tensors read with a wrong memory layout."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory
from attnspec.spec import Feature

correct: Callable[..., Any] = Dense()


def _reading(read: Callable[[torch.Tensor], torch.Tensor], only_masked: bool = False) -> Any:
    """Return an attention that reads its operands with a wrong layout."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        if only_masked and options.get("attn_mask") is None:
            return correct(*operands, **options)
        return correct(*(read(operand) for operand in operands), **options)

    return attention


def _as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return read_memory(tensor, torch.empty(tensor.shape, device="meta").stride())


plant_dense(
    "STR-01",
    "permuted views read as if they were contiguous",
    _reading(_as_contiguous),
    killed_by="memory-layout-changes-nothing",
    source="https://github.com/pytorch/pytorch/issues/181133",
)
plant_dense(
    "STR-02",
    "strides ignored where a mask is given",
    _reading(_as_contiguous, only_masked=True),
    killed_by="memory-layout-changes-nothing",
    source="https://github.com/pytorch/pytorch/issues/112577",
)


def _last_stride_one(tensor: torch.Tensor) -> torch.Tensor:
    return read_memory(tensor, (*tensor.stride()[:-1], 1))


plant_dense(
    "own-last-stride-one",
    "channels read as if they lay next to each other",
    _reading(_last_stride_one),
    killed_by="memory-layout-changes-nothing",
)


def _no_offset(tensor: torch.Tensor) -> torch.Tensor:
    start = tensor.storage_offset()
    return tensor if start == 0 else torch.as_strided(tensor, tensor.shape, tensor.stride(), 0)


plant_dense(
    "own-offset-ignored",
    "storage offset ignored",
    _reading(_no_offset),
    killed_by="memory-layout-changes-nothing",
)


def _from_a_multiple_of_16_bytes(tensor: torch.Tensor) -> torch.Tensor:
    start = tensor.storage_offset() - tensor.data_ptr() % 16 // tensor.element_size()
    if start < 0 or not tensor.is_contiguous():
        return tensor
    return torch.as_strided(tensor, tensor.shape, tensor.stride(), start)


plant_dense(
    "own-vector-loads",
    "contiguous operands read from the last multiple of 16 bytes, as vector loads do",
    _reading(_from_a_multiple_of_16_bytes),
    killed_by="memory-layout-changes-nothing",
)


def _not_contiguous_is_transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    heads, length, channels = tensor.shape[1:]
    return read_memory(tensor, (heads * length * channels, length * channels, 1, length))


plant_dense(
    "own-transposed-assumed",
    "whatever is not contiguous taken for transposed",
    _reading(_not_contiguous_is_transposed),
    killed_by="memory-layout-changes-nothing",
)


def _expanded_is_stored(tensor: torch.Tensor) -> torch.Tensor:
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return _as_contiguous(tensor) if any(n > 1 and s == 0 for n, s in axes) else tensor


plant_dense(
    "own-expanded-stored",
    "expanded tensors read as if they were stored in full",
    _reading(_expanded_is_stored),
    killed_by="memory-layout-changes-nothing",
)


def _heads_are_dense(tensor: torch.Tensor) -> torch.Tensor:
    heads, channels = tensor.shape[1], tensor.shape[3]
    of_batch, of_head, of_token, of_channel = tensor.stride()
    if heads == 1 or of_token != heads * of_head:
        return tensor
    return read_memory(tensor, (of_batch, channels, of_token, of_channel))


plant_dense(
    "own-packed-for-each-head",
    "heads inside taken for dense: projections packed for each head are wrong",
    _reading(_heads_are_dense),
    killed_by="memory-layout-changes-nothing",
)


def _batch_follows_from_heads(tensor: torch.Tensor) -> torch.Tensor:
    _, *inner = tensor.stride()
    is_outside = inner[0] > inner[1]  # heads lie outside of the length
    return read_memory(tensor, (tensor.shape[1] * inner[0], *inner)) if is_outside else tensor


plant_dense(
    "own-stride-of-the-batch",
    "batch elements as far apart as their heads take, if these lie outside of the length",
    _reading(_batch_follows_from_heads),
    killed_by="memory-layout-changes-nothing",
)


@mistake(
    "STR-07",
    "stride 1 demanded of an axis of size one",
    killed_by="memory-layout-changes-nothing",
    source="https://github.com/pytorch/pytorch/issues/116333",
)
def _unit_stride_demanded(*operands: torch.Tensor, **options: Any) -> Any:
    for operand in operands:
        if operand.shape[-1] == 1 and operand.stride(-1) != 1:
            raise RuntimeError("the last dimension must have stride 1")
    return correct(*operands, **options)


def _reading_option(name: str) -> Any:
    """Return an attention that reads the numbers per head of an option as if contiguous."""

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        if options.get(name) is not None:
            options[name] = _as_contiguous(options[name])
        return correct(*operands, **options)

    return attention


for _name, _label, _feature in (
    ("sinks", "sinks", Feature.SINKS),
    ("alibi_slopes", "slopes", Feature.ALIBI),
):
    plant_dense(
        f"own-{_label}-as-contiguous",
        f"a view of {_label} read as if it were contiguous",
        _reading_option(_name),
        killed_by="memory-layout-changes-nothing",
        features={_feature},
    )
