"""Mutants that are right until a sequence, or an offset in memory, is long."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake

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
