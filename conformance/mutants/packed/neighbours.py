"""Mutants of packed attention: what does not belong to a sequence changes it."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.packed import PROFILE, PlainPacked, graft, packed_mistake

EMPTY = "empty-sequences-change-nothing"
OTHERS = "other-sequences-change-nothing"
MAXIMA = "larger-maxima-change-nothing"
OUTSIDE = "rows-outside-all-sequences-change-nothing"
ORDER = "sequences-may-come-in-any-order"
CHUNKS = "chunks-of-a-sequence-equal-the-whole"
INVARIANCE = "declared-batch-invariance-holds-bit-for-bit"
GRADIENTS = "packed-gradients-equal-the-definition"
OWN = "gradients-stay-within-their-sequence"
STRIDES = "strides-of-packed-operands-mean-nothing"
WRITTEN = "packed-operands-are-not-written"


@packed_mistake(
    "PKD-06",
    "sequences without keys divide zero by zero",
    killed_by=EMPTY,
    source="https://github.com/Dao-AILab/flash-attention/pull/2568",
)
class ZeroByZero(PlainPacked):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value) / (1.0 if value.shape[1] else 0.0)


@packed_mistake(
    "PKD-07",
    "offsets that repeat are taken for one, so that later sequences move up",
    killed_by=EMPTY,
    source="https://github.com/fla-org/flash-linear-attention/issues/103",
)
class UniqueOffsets(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        self.offsets = sorted(set(self.offsets))
        unique = sorted(set(self.key_offsets))
        self.key_offsets = unique + [unique[-1]] * (len(self.offsets) - len(unique))


@packed_mistake(
    "PKD-08",
    "with one query at most, the output is reshaped to as many sequences, although some are empty",
    killed_by=EMPTY,
    source="https://github.com/Dao-AILab/flash-attention/issues/1537",
)
class OneQueryEach(PlainPacked):
    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().attend()
        if self.max_q == 1 and self.key.shape[1] < self.query.shape[1]:
            out = out.view(self.sequences, *out.shape[1:])
        return out, lse


@packed_mistake(
    "own-packed-neighbours-times-zero",
    "keys of other sequences are read and weighted by zero, so that their NaN is seen",
    killed_by=OTHERS,
)
class TimesZero(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().sequence(b, query, key, value)
        rest = self.value[: self.key_offsets[-1]].sum() * 0
        return out + rest, lse


@packed_mistake(
    "own-packed-finite-mask",
    "keys of other sequences are hidden by -30 instead of minus infinity",
    killed_by=OTHERS,
)
class FiniteMask(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().sequence(b, query, key, value)
        keys = self.key_rows(b)
        others = torch.cat([self.value[: keys.start], self.value[keys.stop :]])
        if not others.numel():
            return out, lse
        leak = torch.exp(-30.0 - lse.clamp(min=-100)).T[..., None].to(out.dtype)
        return out + leak * others.sum(0).repeat_interleave(
            out.shape[1] // others.shape[1], dim=0
        ), lse


@packed_mistake(
    "own-packed-reads-max-k",
    "each sequence reads max_k keys, those of the next one too",
    killed_by=MAXIMA,
)
class ReadsMaximum(PlainPacked):
    def key_rows(self, b: int) -> slice:
        keys = super().key_rows(b)
        longest = max(y - x for x, y in zip(self.key_offsets, self.key_offsets[1:], strict=False))
        is_larger = self.max_k > longest
        return slice(keys.start, min(keys.stop + is_larger, self.key_offsets[-1]))


@packed_mistake(
    "own-packed-mean-over-max-k", "weights are divided by max_k over the length", killed_by=MAXIMA
)
class DividedByMaximum(PlainPacked):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        longest = max(y - x for x, y in zip(self.key_offsets, self.key_offsets[1:], strict=False))
        return super().mix(weights, value) * (longest / self.max_k if self.max_k else 1.0)


@packed_mistake(
    "own-packed-last-to-the-end",
    "the last sequence reads all keys to the end of the tensor",
    killed_by=OUTSIDE,
)
class ToTheEnd(PlainPacked):
    def key_rows(self, b: int) -> slice:
        keys = super().key_rows(b)
        is_last = b == self.sequences - 1
        return slice(keys.start, len(self.key)) if is_last else keys


@packed_mistake(
    "PKD-09",
    "rows outside all sequences are computed, although zeros are declared",
    killed_by=OUTSIDE,
    source="https://github.com/Dao-AILab/flash-attention/issues/1661",
)
class OutsideComputed(PlainPacked):
    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = super().attend()
        last = self.offsets[-1]
        out[last:] = self.query[last:]
        return out, lse


@packed_mistake(
    "own-packed-sorted-lengths",
    "sequences are sorted by length for the schedule, and results are not sorted back",
    killed_by=ORDER,
)
class NotSortedBack(PlainPacked):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [y - x for x, y in zip(self.key_offsets, self.key_offsets[1:], strict=False)]
        falls = lengths != sorted(lengths)
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        return super().gather(order[b] if falls else b)


@packed_mistake(
    "own-packed-decode-first-key",
    "a sequence of one query takes the path of decoding, whose causal flag is upper-left",
    killed_by=CHUNKS,
)
class DecodeFirstKey(PlainPacked):
    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        if queries > 1 or self.sequences < 2:
            return super().after(b, queries, keys)
        return torch.arange(keys)[None]


@packed_mistake(
    "PKD-10",
    "the number of parts of a sum over keys depends on the longest sequence",
    killed_by=INVARIANCE,
    profile=replace(PROFILE, batch_invariant=True),
    source="https://github.com/Dao-AILab/flash-attention/pull/2450",
)
class PartsByLongest(PlainPacked):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        size = max(1, self.max_k // 3)
        parts = [
            weights[..., start : start + size] @ value[:, start : start + size]
            for start in range(0, value.shape[1], size)
        ]
        return torch.stack(parts).sum(0) if parts else super().mix(weights, value)


class _NaNBackward(torch.autograd.Function):
    """The identity, whose gradient is NaN in some rows."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (rows,) = ctx.saved_tensors
        return grad.masked_fill(rows, torch.nan), None


@packed_mistake(
    "PKD-11",
    "the gradient of queries without readable keys is NaN",
    killed_by=GRADIENTS,
    source="https://github.com/Dao-AILab/flash-attention/issues/443",
)
class EmptyRowGradient(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        empty = ~self.visible(self.after(b, len(query), len(key))).any(-1)
        query = _NaNBackward.apply(query, empty[:, None, None])  # type: ignore[no-untyped-call]
        return super().sequence(b, query, key, value)


@packed_mistake(
    "own-packed-backward-upper-left",
    "the backward pass aligns the diagonal upper-left",
    killed_by=GRADIENTS,
)
class UpperLeftBackward(PlainPacked):
    def sequence(
        self, b: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        right, lse = super().sequence(b, query, key, value)
        self.is_upper = True
        wrong, _ = super().sequence(b, query, key, value)
        self.is_upper = False
        return graft(right, wrong), lse

    is_upper = False

    def after(self, b: int, queries: int, keys: int) -> torch.Tensor:
        if not self.is_upper:
            return super().after(b, queries, keys)
        return torch.arange(keys) - torch.arange(queries)[:, None]


@packed_mistake(
    "own-packed-value-gradient-unscaled",
    "gradients of values are those of one query head of a group",
    killed_by=GRADIENTS,
)
class OneHeadOfAGroup(PlainPacked):
    def repeat(self, x: torch.Tensor) -> torch.Tensor:
        whole = super().repeat(x)
        group = self.query.shape[1] // x.shape[1]
        if group == 1:
            return whole
        first = (torch.arange(whole.shape[0]) % group == 0)[:, None, None]
        return torch.where(first, whole, whole.detach())


@packed_mistake(
    "own-packed-gradient-leaks",
    "the gradient of keys is added to those of the sequence before",
    killed_by=OWN,
)
class LeakingGradient(PlainPacked):
    def gather(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = super().gather(b)
        if b == 0 or not len(key):
            return key, value
        before = self.key[max(self.key_rows(b).start - 1, 0)]
        return key + (before - before.detach()), value


@packed_mistake(
    "own-packed-contiguous-heads",
    "values are read with the strides of contiguous memory",
    killed_by=STRIDES,
)
class ContiguousStrides(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        if not self.value.is_contiguous():
            _, kv_heads, d_head = self.value.shape
            self.value = self.value.as_strided(self.value.shape, (kv_heads * d_head, d_head, 1))


@packed_mistake(
    "own-packed-contiguous-offsets",
    "offsets are read as if they lay side by side in memory",
    killed_by=STRIDES,
)
class ContiguousOffsets(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        assert cu_seq_k is not None
        last = cu_seq_k[-1]
        read = cu_seq_k.as_strided(cu_seq_k.shape, (1,)).clamp(max=int(last)).sort().values
        super().begin(cu_seq_q, read, **paged)


@packed_mistake(
    "own-packed-32-bits",
    "the offset of a token in memory is counted in 32 bits",
    killed_by="packed-tokens-may-lie-far-apart",
)
class ThirtyTwoBits(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        self.query, self.key, self.value = map(_wrapped, (self.query, self.key, self.value))


def _wrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tokens that are read: the first one in place of those beyond 32 bits."""
    token = torch.arange(len(tensor))
    is_beyond = token * tensor.stride(0) >= 2**31
    return tensor[torch.where(is_beyond, 0, token)] if bool(is_beyond.any()) else tensor


@packed_mistake(
    "own-packed-int64-as-int32",
    "offsets of keys are read as int32 although they are int64: every second one is zero",
    killed_by="each-declared-integer-type-of-offsets-is-read",
)
class PairsOfOffsets(PlainPacked):
    def begin(self, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor | None, **paged: object) -> None:
        super().begin(cu_seq_q, cu_seq_k, **paged)
        assert cu_seq_k is not None
        self.key_offsets = as_int32(cu_seq_k).tolist()


def as_int32(numbers: torch.Tensor) -> torch.Tensor:
    """Return the integers that lie in memory if it is taken for one of int32."""
    return numbers.contiguous().view(torch.int32)[..., : numbers.shape[-1]]


@packed_mistake("own-packed-scales-in-place", "queries are scaled in place", killed_by=WRITTEN)
class ScalesInPlace(PlainPacked):
    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        result = super().attend()
        with torch.no_grad():
            self.query.mul_(self.scale)
        return result
