"""Mutants of CAC, second part: keys remembered too long, and buffers read as something else."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory

ROLLBACK = "a-rollback-leaves-no-trace"
BUFFER = "the-rest-of-a-buffer-is-not-felt"
REORDER = "reordered-elements-keep-their-keys"
SHARED = "a-shared-prefix-is-as-copied"
SESSION = "a-session-of-decoding-is-all-at-once"

correct: Callable[..., Any] = Dense()


class _Packing:
    """Keep the keys and values of each address in a layout of its own, and add to them."""

    def __init__(self, again: Callable[[int, int], bool]) -> None:
        """Hold nothing.

        Args:
            again: of the number of keys held and now given, whether to pack all of them anew.
        """
        self.again, self.packed = again, dict[Any, Any]()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is held of a tensor, with what has come since."""
        batch, heads, keys, channels = tensor.shape
        place = (tensor.data_ptr(), batch, heads, channels, tensor.stride(), tensor.dtype)
        held = self.packed.get(place)
        if held is None or self.again(held.shape[2], keys):
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
    _Packing(again=lambda held, keys: False),
    ROLLBACK,
    REORDER,
    SESSION,
)
plant_dense(
    "own-packed-unless-shorter",
    "keys packed anew only where there are fewer than before",
    _Packing(again=lambda held, keys: keys < held),
    REORDER,
    SESSION,
)
plant_dense(
    "CAC-09",
    "beams go on with the keys of the element that stood in their place",
    _Packing(again=lambda held, keys: keys != held),
    REORDER,
    source="https://github.com/huggingface/transformers/issues/46612",
)


def _tile_past_the_end(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the rows that memory holds behind it, up to a whole tile of four."""
    batch, heads, keys, channels = tensor.shape
    more = -keys % 4
    if not keys or not more or tensor.stride(2) < channels:
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
    return torch.cat([tensor, behind.expand(batch, heads, more, channels)], dim=2)


@mistake(
    "own-tile-past-the-end",
    "the last tile reads behind the keys, and multiplies what it finds by zero",
    kills=(BUFFER, ROLLBACK, SESSION),
    source="https://github.com/Dao-AILab/flash-attention/issues/2374",
)
class _TilePastTheEnd(Dense):
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
    """Read as if one batch element began where the heads and keys of the last one end."""
    heads, keys, channels = tensor.shape[1:]
    rows = keys * tensor.stride(2) if tensor.stride(1) > tensor.stride(2) else tensor.stride(1)
    return read_memory(tensor, (heads * keys * channels, rows, *tensor.stride()[2:]))


@mistake(
    "own-elements-packed",
    "batch elements read as if no places were kept free between them",
    kills=(BUFFER, SESSION),
)
def _packed(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    key, value, *rest = operands
    if key.is_contiguous():
        return correct(query, *operands, **options)
    return correct(query, _elements_packed(key), _elements_packed(value), *rest, **options)


@mistake(
    "own-prefix-stored",
    "a prefix that the batch shares read as if each element had its own",
    kills=(SHARED,),
)
def _stored(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    key, value, *rest = operands

    def read(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[0] < 2 or tensor.stride(0):
            return tensor
        return read_memory(tensor, torch.empty(tensor.shape, device="meta").stride())

    return correct(query, read(key), read(value), *rest, **options)
