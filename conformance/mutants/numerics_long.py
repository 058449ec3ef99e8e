"""Mutants that are right until a sequence, or an offset in memory, is long."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

LONG = "rows-of-a-long-sequence-stay-within-the-bound"
FAR = "elements-far-apart-are-found"


@mistake(
    "own-positions-in-float16",
    "positions held in float16, which counts to 2048",
    kills=(LONG,),
)
class PositionsInFloat16(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        place = torch.arange(queries).half()
        return torch.arange(keys).half() <= place[:, None]


@mistake(
    "own-keys-counted-in-16-bits",
    "keys beyond the 65 536th are never read",
    kills=(LONG,),
)
class KeysCountedIn16Bits(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores, visible & (torch.arange(scores.shape[-1]) < 2**16))


@mistake(
    "own-last-key-of-an-odd-length",
    "the last key of a long sequence of odd length is never read",
    kills=(LONG,),
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
    kills=(LONG,),
    features=(Feature.WINDOW,),
)
class WindowOfALateQuery(Dense):
    def window(self, left: int | None, right: int | None, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        if left:
            is_late = torch.arange(queries)[:, None] > 300
            visible = visible & ~(is_late & (self.displacement(queries, keys) == -left))
        return visible


def _found_by_32_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Read a tensor by offsets that wrap around at 32 bits."""
    offset = torch.tensor(tensor.storage_offset())
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride
        offset = offset + steps.view(-1, *[1] * (tensor.dim() - 1 - axis))
    if not tensor.numel() or int(offset.max()) < 2**31:
        return tensor
    memory = tensor.new_empty(0).set_(tensor.untyped_storage())
    read: torch.Tensor = memory[offset.to(torch.int32).long() % max(memory.numel(), 1)]
    return read


@mistake(
    "STR-09",
    "offsets in memory computed in 32 bits",
    kills=(FAR,),
    source="https://github.com/vllm-project/vllm/issues/50427",
)
class OffsetsIn32Bits(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        read: list[Any] = [_found_by_32_bits(each) for each in operands]
        return super().__call__(*read, **options)


@mistake(
    "STR-10",
    "the index into a mask computed in 32 bits",
    kills=(FAR,),
    source="https://github.com/ml-explore/mlx/issues/2894",
)
class MaskIndexIn32Bits(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        read = None if attn_mask is None else _found_by_32_bits(attn_mask)
        return super().mask(read, is_causal, scores)
