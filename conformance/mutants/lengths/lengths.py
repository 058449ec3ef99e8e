"""Mutants of LEN: keys beyond the length are read, or queries are at the wrong place among them."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.lengths import LENGTHS, Ragged
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import CausalAlignment

GITHUB = "https://github.com"
BEYOND = "numbers-beyond-the-length-change-nothing"
NONFINITE = "nan-and-infinity-beyond-the-length-follow-the-profile"
ALONE = "a-batch-of-lengths-equals-separate-calls"
EMPTY = "a-batch-element-without-keys-is-empty"
OPTIONS = "lengths-and-options-combine"
PLACES = "positions-count-from-the-length"
OFFSETS = "queries-begin-at-their-offset"
CHUNKS = "chunks-at-their-offsets-equal-one-call"
AS_MASK = "lengths-and-offsets-equal-a-mask"
GRADIENTS = "keys-beyond-the-length-have-no-gradient"
MEMORY = "lengths-are-read-in-any-memory-and-kept"
REFUSED = "lengths-out-of-range-are-refused"
LOWER_RIGHT = CausalAlignment.LOWER_RIGHT


@mistake(
    "LEN-01",
    "the number of keys that the tensors hold is used in place of the lengths",
    killed_by=BEYOND,
    source=f"{GITHUB}/GeeeekExplorer/nano-vllm/pull/213",
    features=LENGTHS,
)
class WholeBuffer(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(torch.full_like(lengths, keys), keys)


@mistake(
    "LEN-02",
    "a length is taken for the index of the last key",
    killed_by=BEYOND,
    source=f"{GITHUB}/onnx/onnx/issues/8054",
    features=LENGTHS,
)
class LengthIsAnIndex(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(lengths + (lengths > 0).long(), keys)


@mistake(
    "LEN-03",
    "with lengths, the diagonal begins at the first key where it should end at the last one",
    killed_by=PLACES,
    source=f"{GITHUB}/onnx/onnx/issues/8054",
    features=LENGTHS,
    causal_alignment=LOWER_RIGHT,
)
class DiagonalAtTheFirstKey(Ragged):
    lower_right = True

    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        if query_offset is None and bool((lengths < keys).any()):
            return torch.zeros_like(lengths)
        return super().places(lengths, query_offset, queries, keys)


@mistake(
    "LEN-04",
    "the offset of the first batch element is used for all",
    killed_by=OFFSETS,
    source=f"{GITHUB}/EricLBuehler/candle-vllm/pull/140",
    features=LENGTHS,
)
class OffsetOfTheFirst(Ragged):
    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        places = super().places(lengths, query_offset, queries, keys)
        return places[:1].expand_as(places) if query_offset is not None else places


@mistake(
    "LEN-05",
    "a chunk of queries is masked as if its first query were at the first key",
    killed_by=CHUNKS,
    source=f"{GITHUB}/gittensor-ai-lab/sparkinfer/issues/3",
    features=LENGTHS,
)
class ChunksBeginAtZero(Ragged):
    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        if query_offset is not None and 1 < queries < keys:
            query_offset = torch.zeros_like(query_offset)
        return super().places(lengths, query_offset, queries, keys)


@mistake(
    "own-lengths-diagonal-of-the-buffer",
    "the diagonal ends at the last key of the tensors and not of the batch element",
    killed_by=PLACES,
    features=LENGTHS,
    causal_alignment=LOWER_RIGHT,
)
class DiagonalOfTheBuffer(Ragged):
    lower_right = True

    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        return super().places(torch.full_like(lengths, keys), query_offset, queries, keys)


@mistake(
    "own-lengths-move-an-upper-left-diagonal",
    "lengths move a diagonal that begins at the first key",
    killed_by=PLACES,
    features=LENGTHS,
)
class LengthsMoveTheDiagonal(Ragged):
    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        if query_offset is None:
            return lengths - keys
        return super().places(lengths, query_offset, queries, keys)


@mistake(
    "own-lengths-of-the-first",
    "the length of the first batch element is used for all",
    killed_by=ALONE,
    features=LENGTHS,
)
class LengthOfTheFirst(Ragged):
    def read(self, key_lengths: torch.Tensor) -> torch.Tensor:
        return super().read(key_lengths)[:1].expand(key_lengths.shape)


@mistake(
    "own-lengths-in-whole-tiles",
    "lengths are rounded up to a multiple of 16",
    killed_by=BEYOND,
    features=LENGTHS,
)
class WholeTiles(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(16 * -(-lengths // 16), keys)


@mistake(
    "own-lengths-last-key",
    "the last key of a batch element is not read where there are more than 16",
    killed_by=ALONE,
    features=LENGTHS,
)
class LastKeyUnread(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(
            torch.where((lengths > 16) & (lengths < keys), lengths - 1, lengths), keys
        )


@mistake(
    "own-lengths-values-beyond-are-zeros",
    "values beyond the length are set to zero, and their keys keep their weight",
    killed_by=ALONE,
    features=LENGTHS,
)
class KeysKeepWeight(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(torch.full_like(lengths, keys), keys)

    def operands(
        self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        has = super().within(lengths, key.shape[2])[:, :, 0, :, None]
        return torch.where(has, key, 0.0), torch.where(has, value, 0.0)


@mistake(
    "own-lengths-mask-replaces-them",
    "where a mask is given, the lengths are not looked at",
    killed_by=OPTIONS,
    features=LENGTHS,
)
class MaskReplacesLengths(Ragged):
    def combined(self, attn_mask: torch.Tensor | None, visible: torch.Tensor) -> torch.Tensor:
        every = torch.ones_like(visible)
        return super().combined(attn_mask, visible if attn_mask is None else every)


@mistake(
    "own-lengths-window-replaces-them",
    "a window without a right side reads to the end of the tensors",
    killed_by=OPTIONS,
    features=LENGTHS,
)
class WindowReplacesLengths(Ragged):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.is_open = (options.get("window") or (0, 0))[1] != 0
        self.has_window = options.get("window") is not None
        return super().__call__(*operands, **options)

    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        ignored = self.has_window and self.is_open
        return super().within(torch.full_like(lengths, keys) if ignored else lengths, keys)


@mistake(
    "own-lengths-log-sum-exp-of-the-buffer",
    "keys beyond the length count as scores of zero in the log-sum-exp",
    killed_by=OPTIONS,
    features=LENGTHS,
)
class LogSumExpOfTheBuffer(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        self.beyond = keys - lengths
        return super().within(lengths, keys)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        beyond = self.beyond.to(scores).log()[:, None, None]
        return torch.logaddexp(super().lse(scores), beyond)


@mistake(
    "own-lengths-zero-reads-all",
    "a length of zero means that there are no lengths",
    killed_by=EMPTY,
    features=LENGTHS,
)
class ZeroReadsAll(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(torch.where(lengths == 0, keys, lengths), keys)


@mistake(
    "own-lengths-zero-reads-one",
    "a batch element without keys reads its first one",
    killed_by=EMPTY,
    features=LENGTHS,
)
class ZeroReadsOne(Ragged):
    def within(self, lengths: torch.Tensor, keys: int) -> torch.Tensor:
        return super().within(lengths.clamp(min=1), keys)


@mistake(
    "own-lengths-finite-mask",
    "keys beyond the length lose 30 in place of being hidden",
    killed_by=BEYOND,
    features=LENGTHS,
)
class FiniteMask(Ragged):
    def combined(self, attn_mask: torch.Tensor | None, visible: torch.Tensor) -> torch.Tensor:
        mask = super().combined(attn_mask, visible)
        return self.zero(mask).clamp(min=-5.0) if mask.dtype == torch.bool else mask


@mistake(
    "own-lengths-times-zero",
    "values beyond the length are multiplied by zero, though the profile says that NaN is blocked",
    killed_by=NONFINITE,
    features=LENGTHS,
    masked_keys="blocked",
    masked_values="blocked",
)
class TimesZero(Ragged):
    pass


@mistake(
    "own-lengths-offset-and-length",
    "with lengths, offsets are counted from the end of the tensors",
    killed_by=AS_MASK,
    features=LENGTHS,
)
class OffsetFromTheEnd(Ragged):
    def places(
        self, lengths: torch.Tensor, query_offset: torch.Tensor | None, queries: int, keys: int
    ) -> torch.Tensor:
        places = super().places(lengths, query_offset, queries, keys)
        return places if query_offset is None else places + (keys - lengths)


class _Left(torch.autograd.Function):
    """Changes nothing; its gradient beyond the length is what the memory held before."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, has: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(has)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (has,) = ctx.saved_tensors
        return torch.where(has, grads[0], 0.125), None


@mistake(
    "own-lengths-gradient-not-written",
    "the gradient of keys beyond the length is never written",
    killed_by=GRADIENTS,
    features=LENGTHS,
)
class GradientNotWritten(Ragged):
    def operands(
        self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        has = self.within(lengths, key.shape[2])[:, :, 0, :, None]
        kept: torch.Tensor = _Left.apply(key, has)  # type: ignore[no-untyped-call]
        return kept, value


@mistake(
    "own-lengths-in-place",
    "offsets are added to the lengths in the memory of the caller",
    killed_by=MEMORY,
    features=LENGTHS,
)
class WritesLengths(Ragged):
    def read(self, key_lengths: torch.Tensor) -> torch.Tensor:
        lengths = super().read(key_lengths).clone()
        key_lengths.add_(1)
        return lengths


@mistake(
    "own-lengths-stride",
    "lengths are read as if they lay one after another in memory",
    killed_by=MEMORY,
    features=LENGTHS,
)
class StrideOfLengths(Ragged):
    def read(self, key_lengths: torch.Tensor) -> torch.Tensor:
        beside = key_lengths.as_strided(key_lengths.shape, (1,), key_lengths.storage_offset())
        return super().read(beside).clamp(min=0)


@mistake(
    "own-lengths-unchecked",
    "a length beyond the keys is clamped without a word",
    killed_by=REFUSED,
    features=LENGTHS,
)
class Unchecked(Ragged):
    def check(
        self,
        key_lengths: torch.Tensor | None,
        query_offset: torch.Tensor | None,
        batch: int,
        keys: int,
    ) -> None:
        if key_lengths is not None:
            key_lengths = key_lengths.clamp(max=keys)
        super().check(key_lengths, query_offset, batch, keys)
