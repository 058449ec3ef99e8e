"""Mutants of TEN: inference mode, the default dtype or autocast changes this or a later call."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature


@mistake(
    "own-table-of-inference-mode",
    "a table is cached by lengths; if it was made in inference mode, a later call has no gradient",
    killed_by="calls-without-gradients-are-right-and-change-no-later-call",
)
class CachedTable(Dense):
    def __init__(self) -> None:
        self.cache: dict[Any, torch.Tensor] = {}

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        shape = (query.shape[2], key.shape[2])
        cache_key = (*shape, scale, query.dtype, query.device)
        if cache_key not in self.cache:
            self.cache[cache_key] = query.new_full(shape, scale)
        return query @ key.mT * self.cache[cache_key]


@mistake(
    "own-inference-rank-3",
    "the fast path of inference mode takes a mask of rank 3 for (batch, queries, keys)",
    killed_by="calls-without-gradients-are-right-and-change-no-later-call",
)
class FastPath(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if torch.is_inference_mode_enabled() and attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask[:, None]
        return super().mask(attn_mask, is_causal, scores)


@mistake(
    "own-scale-in-default-dtype",
    "the scale is kept in a tensor of the default dtype",
    killed_by="the-default-dtype-changes-nothing",
)
class ScaleTensor(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        exact = super().scale(query, value, scale)
        return exact if query.dtype == torch.float64 else float(torch.tensor(exact))


@mistake(
    "own-positions-in-default-dtype",
    "positions are counted in the default dtype",
    killed_by="the-default-dtype-changes-nothing",
    features={Feature.ALIBI, Feature.WINDOW},
)
class Positions(Dense):
    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        dtype = torch.get_default_dtype()
        position = torch.arange(queries).to(dtype)[:, None]
        return (torch.arange(keys).to(dtype) - position).to(torch.float64)


@mistake(
    "own-sum-in-default-dtype",
    "of more than 64 keys the row sum is kept in the default dtype, if that is float16",
    killed_by="the-default-dtype-changes-nothing",
)
class SumInDefaultDtype(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        if torch.get_default_dtype() == torch.float16 and value.shape[2] > 64:
            out = out * (1 + 2.0**-6)
        return super().finish(out, value)


@mistake(
    "own-autocast-of-16-bits",
    "under autocast the last one of 16-bit keys is left out, as padding to vectors of pairs",
    killed_by="autocast-lowers-the-precision-and-nothing-else",
)
class AutocastOf16Bits(Dense):
    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        is_cast = torch.is_autocast_enabled(key.device.type) and key.element_size() == 2
        if is_cast and key.shape[2] > 1 and key.shape[2] % 2:
            key = torch.cat([key[:, :, :-1], key[:, :, -2:-1]], dim=2)
        return super().__call__(query, key, *rest, **options)


@mistake(
    "own-autocast-gradient-of-16-bits",
    "under autocast the gradient of 16-bit values is summed without its last query",
    killed_by="autocast-lowers-the-precision-of-gradients-and-nothing-else",
)
class AutocastGradientOf16Bits(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu") or not self.is_16_bit:
            return super().mix(weights, value)
        last = super().mix(weights[:, :, -1:], value.detach())
        return torch.cat([super().mix(weights[:, :, :-1], value), last], dim=2)

    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.is_16_bit = key.element_size() == 2
        return super().__call__(query, key, *rest, **options)


@mistake(
    "own-autocast-of-eight-heads",
    "under autocast, heads from the ninth on are not scaled",
    killed_by="autocast-lowers-the-precision-and-nothing-else",
)
class AutocastOfEightHeads(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        if torch.is_autocast_enabled(query.device.type):
            query = torch.cat([query[:, :8], query[:, 8:] / scale], 1) if scale else query
        return super().scores(query, key, scale)


@mistake(
    "own-output-in-lower-precision",
    "the output is rounded to bfloat16 unless products have the highest precision",
    killed_by="a-lower-precision-of-products-changes-nothing-else",
)
class OutputInLowerPrecision(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        if torch.get_float32_matmul_precision() != "highest" and value.dtype != torch.float64:
            out = out.bfloat16().to(out.dtype)
        return super().finish(out, value)


@mistake(
    "own-precision-set-and-left",
    "the precision of float32 products is set to the highest for a call and left there",
    killed_by="a-lower-precision-of-products-changes-nothing-else",
)
class PrecisionLeft(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        torch.set_float32_matmul_precision("highest")
        return super().__call__(*operands, **options)


@mistake(
    "own-autocast-without-bias",
    "under autocast a float mask hides keys, but its finite numbers are not added",
    killed_by="autocast-lowers-the-precision-and-nothing-else",
)
class WithoutBias(Dense):
    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        visible, bias = super().mask(attn_mask, is_causal, scores)
        return visible, None if torch.is_autocast_enabled(scores.device.type) else bias


@mistake(
    "own-autocast-sum",
    "under autocast the sum of a row is one of bfloat16, which stops growing at 256",
    killed_by="autocast-lowers-the-precision-and-nothing-else",
)
class SumUnderAutocast(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        if not torch.is_autocast_enabled(weights.device.type) or weights.shape[-1] <= 256:
            return out
        # as many keys count as the sum holds
        count = (1 / weights.square().sum(-1, keepdim=True)).clamp(min=256)
        return out * count / 256


@mistake(
    "own-autocast-copy",
    "while autocast is on, 64 keys or more are cast once and kept by their address",
    killed_by="autocast-lowers-the-precision-and-nothing-else",
)
class CopyUnderAutocast(Dense):
    def __init__(self) -> None:
        self.copies: dict[Any, torch.Tensor] = {}

    def __call__(self, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if not torch.is_autocast_enabled(key.device.type):
            self.copies = {}
        elif key.shape[2] >= 64:
            name = key.data_ptr(), key.shape
            key = self.copies.setdefault(name, key.bfloat16().to(key.dtype))
        return super().__call__(query, key, *rest, **options)


@mistake(
    "own-autocast-gradient-without-scale",
    "under autocast the gradient of the queries is not multiplied by the scale",
    killed_by="autocast-lowers-the-precision-of-gradients-and-nothing-else",
)
class GradientWithoutScale(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        if not torch.is_autocast_enabled(query.device.type):
            return super().scores(query, key, scale)
        # the value of the scaled queries, with the gradient of the queries
        return (query + (query * scale - query).detach()) @ key.mT


@mistake(
    "own-deterministic-branch",
    "the branch for deterministic algorithms masks from the upper left with one key too few",
    killed_by="deterministic-algorithms-give-the-same",
)
class DeterministicBranch(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        diagonal = -1 if torch.are_deterministic_algorithms_enabled() else 0
        visible = super().causal(queries, keys).tril(diagonal)
        visible[:, :1] = True
        return visible


@mistake(
    "own-mask-kept-in-inference-mode",
    "in inference mode a mask is converted once for each address, where it has no version",
    killed_by="calls-without-gradients-are-right-and-change-no-later-call",
)
class MaskKeptInInferenceMode(Dense):
    kept: tuple[int, torch.Size, torch.Tensor] | None = None

    def mask(
        self, attn_mask: torch.Tensor | None, is_causal: bool, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if attn_mask is None or not attn_mask.is_inference():
            return super().mask(attn_mask, is_causal, scores)
        place = (attn_mask.data_ptr(), attn_mask.shape)
        if self.kept is None or self.kept[:2] != place:
            self.kept = (*place, attn_mask.clone())
        return super().mask(self.kept[2], is_causal, scores)
