"""Mutants of CAC: keys cached too long, and buffers read with a wrong layout."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory

correct: Callable[..., Any] = Dense()


class PackedByAddress:
    """An attention that packs the keys and values of each address once, and appends."""

    def __init__(self, repack: Callable[[int, int], bool]) -> None:
        """Start with an empty cache.

        Args:
            repack: whether to pack all keys anew, by the number of packed and of passed keys.
        """
        self.repack, self.packed = repack, dict[Any, Any]()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the packed copy of a tensor, extended by its new keys."""
        batch, heads, keys, channels = tensor.shape
        place = (tensor.data_ptr(), batch, heads, channels, tensor.stride(), tensor.dtype)
        held = self.packed.get(place)
        if held is None or self.repack(held.shape[2], keys):
            held = tensor.detach().clone()
        held = torch.cat([held[:, :, :keys], tensor.detach()[:, :, held.shape[2] :]], dim=2)
        if len(self.packed) > 4:
            self.packed.clear()
        self.packed[place] = held
        return held

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> Any:
        return correct(query, self.pack(key), self.pack(value), **options)


plant_dense(
    "own-prefix-packed-once",
    "keys packed once per address: only those that came since are packed",
    PackedByAddress(repack=lambda held, keys: False),
    killed_by="a-rollback-leaves-no-trace",
)
plant_dense(
    "own-packed-unless-shorter",
    "keys packed anew only where there are fewer than before",
    PackedByAddress(repack=lambda held, keys: keys < held),
    killed_by="a-decoding-session-equals-all-at-once",
)
plant_dense(
    "CAC-09",
    "beams continue with the keys of the element that had their index before",
    PackedByAddress(repack=lambda held, keys: keys != held),
    killed_by="reordered-elements-keep-their-keys",
    source="https://github.com/huggingface/transformers/issues/46612",
)


def _tile_past_the_end(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with the rows behind it in memory, up to a whole tile of four."""
    batch, heads, keys, channels = tensor.shape
    padding = -keys % 4
    if not keys or not padding or tensor.stride(2) < channels:
        return tensor
    behind = tensor[:, :, -1:].clone()
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if last + tensor.stride(2) < tensor.untyped_storage().nbytes() // tensor.element_size():
        shape = (batch, heads, 1, channels)
        behind = torch.as_strided(
            tensor, shape, tensor.stride(), tensor.storage_offset() + keys * tensor.stride(2)
        )
    return torch.cat([tensor, behind.expand(batch, heads, padding, channels)], dim=2)


@mistake(
    "own-tile-past-the-end",
    "the last tile reads behind the keys, and multiplies what it finds by zero",
    killed_by="the-unused-part-of-a-buffer-changes-nothing",
    source="https://github.com/Dao-AILab/flash-attention/issues/2374",
)
class TilePastTheEnd(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        self.past = _tile_past_the_end(value)[:, :, value.shape[2] :]
        return super().__call__(query, key, value, *rest, **options)

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        if not self.past.numel():
            return super().finish(out, value)
        zero = self.share_heads(self.past.sum(2, keepdim=True) * 0, out.shape[1])
        return super().finish(out + zero, value)


def _elements_packed(tensor: torch.Tensor) -> torch.Tensor:
    """Read memory as if each batch element followed the last one without free rows."""
    heads, keys, channels = tensor.shape[1:]
    rows = keys * tensor.stride(2) if tensor.stride(1) > tensor.stride(2) else tensor.stride(1)
    return read_memory(tensor, (heads * keys * channels, rows, *tensor.stride()[2:]))


@mistake(
    "own-elements-packed",
    "batch elements read as if no places were kept free between them",
    killed_by="the-unused-part-of-a-buffer-changes-nothing",
)
def _packed(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    key, value, *rest = operands
    if key.is_contiguous():
        return correct(query, *operands, **options)
    return correct(query, _elements_packed(key), _elements_packed(value), *rest, **options)


@mistake(
    "own-prefix-stored",
    "a prefix that the batch shares read as if each element had its own",
    killed_by="a-shared-prefix-equals-its-copies",
)
def _stored(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    key, value, *rest = operands

    def read(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[0] < 2 or tensor.stride(0):
            return tensor
        return read_memory(tensor, torch.empty(tensor.shape, device="meta").stride())

    return correct(query, read(key), read(value), *rest, **options)
