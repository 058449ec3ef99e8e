"""Mutants of NUM that are wrong only for long sequences or large offsets in memory."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature


@mistake(
    "own-positions-in-float16",
    "positions held in float16, which counts to 2048",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
)
class PositionsInFloat16(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        place = torch.arange(queries).half()
        return torch.arange(keys).half() <= place[:, None]


@mistake(
    "own-keys-counted-in-16-bits",
    "keys beyond the 65 536th are never read",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
)
class KeysCountedIn16Bits(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores, visible & (torch.arange(scores.shape[-1]) < 2**16))


@mistake(
    "own-last-key-of-an-odd-length",
    "the last key of a long sequence of odd length is never read",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
)
class LastKeyOfAnOddLength(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        keys = scores.shape[-1]
        if keys > 600 and keys % 2:
            visible = visible & (torch.arange(keys) < keys - 1)
        return super().hide(scores, visible)


@mistake(
    "own-window-of-a-late-query",
    "a window is a key too narrow beyond the 300th query",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
    features=(Feature.WINDOW,),
)
class WindowOfALateQuery(Dense):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        if left:
            is_late = torch.arange(queries)[:, None] > 300
            visible = visible & ~(is_late & (self.displacement(queries, keys) == -left))
        return visible


def _read_by_32_bits(tensor: torch.Tensor, signed: bool = True) -> torch.Tensor:
    """Read a tensor by offsets that wrap around at 32 bits."""
    limit = 2**31 if signed else 2**32
    offset = torch.tensor(tensor.storage_offset())
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride
        offset = offset + steps.view(-1, *[1] * (tensor.dim() - 1 - axis))
    if not tensor.numel() or int(offset.max()) < limit:
        return tensor
    offset = offset.to(torch.int32).long() if signed else offset % limit
    memory = tensor.new_empty(0).set_(tensor.untyped_storage())
    read: torch.Tensor = memory[offset % max(memory.numel(), 1)]
    return read


@mistake(
    "STR-09",
    "offsets in memory computed in 32 bits",
    killed_by="elements-far-apart-in-memory-are-read",
    source="https://github.com/vllm-project/vllm/issues/50427",
)
class OffsetsIn32Bits(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        read: list[Any] = [_read_by_32_bits(operand) for operand in operands]
        return super().__call__(*read, **options)


@mistake(
    "STR-10",
    "the index into a mask computed in 32 bits",
    killed_by="elements-far-apart-in-memory-are-read",
    source="https://github.com/ml-explore/mlx/issues/2894",
)
class MaskIndexIn32Bits(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        read = None if attn_mask is None else _read_by_32_bits(attn_mask)
        return super().mask(read, is_causal, scores)


@mistake(
    "own-offsets-in-unsigned-32-bits",
    "offsets in memory computed in 32 bits without a sign",
    killed_by="elements-beyond-unsigned-32-bits-are-read",
)
class OffsetsInUnsigned32Bits(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        read: list[Any] = [_read_by_32_bits(operand, signed=False) for operand in operands]
        return super().__call__(*read, **options)


@mistake(
    "own-maximum-of-the-last-tile",
    "a growth of the maximum by less than 256 is left out, counted from the tile before",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
)
class MaximumOfTheLastTile(Tiled):
    tile = 64
    before: torch.Tensor

    def start(
        self, column: torch.Tensor, sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        peak, total = super().start(column, sinks)
        self.before = peak
        return peak, total

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        jumps = (scores.amax(-1, keepdim=True) > self.before + 5.5) | peak.isinf()
        self.before = scores.amax(-1, keepdim=True)
        return torch.where(jumps, grown, peak)


@mistake(
    "own-output-rounded-once-a-tile",
    "the output so far is stored in the storage type after each 128 keys",
    killed_by="rows-of-a-long-sequence-stay-within-the-bound",
)
class OutputRoundedOnceATile(Tiled):
    tile = 128
    storage: torch.dtype

    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.storage = query.dtype
        return super().__call__(query, *rest, **options)

    def shrink_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrink_out(out.to(self.storage).to(out.dtype), shrink)
