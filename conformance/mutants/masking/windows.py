"""Mutants of MSK: a window has wrong edges, or is lost together with other masks."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature, MaskedNonfinite

GITHUB = "https://github.com"
WINDOW = {Feature.WINDOW}

Side = int | None


@mistake(
    "MSK-27",
    "a window of w keys reads w + 1",
    killed_by="a-windowed-row-attends-its-keys-alone",
    source=f"{GITHUB}/huggingface/transformers/issues/39408",
    features=WINDOW,
)
class OneTooMany(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(None if left is None else left + 1, right, queries, keys)


@mistake(
    "MSK-29",
    "the right side is compared by < where it should be by ≤",
    killed_by="a-window-with-right-side-zero-is-causal",
    source=f"{GITHUB}/huggingface/transformers/pull/47010",
    features=WINDOW,
)
class RightTooShort(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        return visible if right is None else visible & (self.displacement(queries, keys) < right)


@mistake(
    "MSK-30",
    "the width of the left side has the wrong sign",
    killed_by="a-windowed-row-attends-its-keys-alone",
    source=f"{GITHUB}/huggingface/transformers/pull/41228",
    features=WINDOW,
)
class LeftSign(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(None, right, queries, keys)
        # tril(w) is kept, where tril(-w - 1) should be removed
        return visible if left is None else visible & (self.displacement(queries, keys) <= left)


@mistake(
    "MSK-31",
    "the window is not passed on",
    killed_by="a-windowed-row-attends-its-keys-alone",
    source=f"{GITHUB}/unslothai/unsloth/pull/8253",
    features=WINDOW,
)
class WindowLost(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(None, None, queries, keys)


@mistake(
    "own-window-negative-is-zero",
    "a negative side of a window is taken for zero",
    killed_by="a-negative-window-side-is-refused",
    features={Feature.WINDOW, Feature.VALIDATES},
)
class NegativeIsZero(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        left, right = (None if side is None else max(side, 0) for side in (left, right))
        return super().window(left, right, queries, keys)


@mistake(
    "MSK-32",
    "a side of zero hides the query's own position too",
    killed_by="a-windowed-row-attends-its-keys-alone",
    source=f"{GITHUB}/unslothai/unsloth/pull/8253",
    features=WINDOW,
)
class ZeroHidesAll(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        return visible & (self.displacement(queries, keys) != 0) if 0 in (left, right) else visible


@mistake(
    "MSK-33",
    "the right side is dropped unless the causal flag is set",
    killed_by="a-windowed-row-attends-its-keys-alone",
    source=f"{GITHUB}/jax-ml/jax/pull/39576",
    features=WINDOW,
)
class RightDropped(DenseWithArguments):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        return super().window(left, right if self.call.get("is_causal") else None, queries, keys)


@mistake(
    "own-window-zero-is-none",
    "a side of zero is taken for none given",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class ZeroIsNone(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(left or None, right or None, queries, keys)


@mistake(
    "own-window-sides-swapped",
    "left and right are swapped",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class SidesSwapped(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(right, left, queries, keys)


@mistake(
    "own-window-one-width",
    "the left side serves for both",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class OneWidth(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        return super().window(left, left, queries, keys)


@mistake(
    "own-window-other-corner",
    "the window is aligned lower-right, the causal flag upper-left",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class OtherCorner(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        after = self.displacement(queries, keys) - (keys - queries)
        visible = torch.ones_like(after, dtype=torch.bool)
        visible = visible if left is None else visible & (after >= -left)
        return visible if right is None else visible & (after <= right)


@mistake(
    "own-window-whole-tiles",
    "the left edge is rounded down to a tile of 16 keys",
    killed_by="a-window-shows-exactly-its-keys",
    features=WINDOW,
)
class WholeTiles(Tiled):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(None, right, queries, keys)
        if left is None:
            return visible
        super().window(left, right, queries, keys)
        first = (torch.arange(queries) - left).clamp(min=0) // 16 * 16
        return visible & (torch.arange(keys) >= first[:, None])


@mistake(
    "own-window-mirrored-at-the-start",
    "a query near the start reads as many keys more on the right as it lacks on the left",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class FullWidthAtTheStart(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        if left is None or right is None:
            return visible
        return visible | (
            (torch.arange(keys) <= left + right) & (torch.arange(queries)[:, None] < left)
        )


@mistake(
    "own-window-default-side",
    "an open side is taken for one of 4 keys",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class OpenSideClosed(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        left, right = 4 if left is None else left, 4 if right is None else right
        return super().window(left, right, queries, keys)


@mistake(
    "own-window-open-side-minus-one",
    "an open side is kept as -1 and compared as a width",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class MinusOneCompared(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        after = self.displacement(queries, keys)
        if left is None and right is not None:
            visible = visible & (after >= 1)
        return visible & (after <= -1) if right is None and left is not None else visible


@mistake(
    "own-window-narrow-integers",
    "places are added to sides in 16 bits",
    killed_by="a-window-side-beyond-the-keys-hides-no-key",
    features=WINDOW,
)
class NarrowPlaces(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        left = left if left is None else left % 2**16
        right = right if right is None else right % 2**16
        return super().window(left, right, queries, keys)


@mistake(
    "own-window-or-mask",
    "a key is read where the window or the mask allows it",
    killed_by="a-key-affects-only-queries-whose-window-holds-it",
    features=WINDOW,
)
class WindowOrMask(DenseWithArguments):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        mask = self.call.get("attn_mask")
        if mask is None or mask.dtype != torch.bool:
            return visible
        either: torch.Tensor = visible | mask.cpu()
        return either


@mistake(
    "own-window-instead-of-causal",
    "the causal flag is dropped where a window is given",
    killed_by="window-mask-and-causal-flag-all-apply",
    features=WINDOW,
)
class WindowInsteadOfCausal(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if options.get("window") is not None:
            options.pop("is_causal", None)
        return super().__call__(query, key, value, *rest, **options)


@mistake(
    "own-window-clamped",
    "a query beyond the keys reads the last ones",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class WindowClamped(Dense):
    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        place = torch.arange(queries).clamp(max=max(keys - 1, 0))
        return torch.arange(keys) - place[:, None]


@mistake(
    "own-window-empty-is-everything",
    "a row whose window holds no key reads all keys",
    killed_by="a-window-without-keys-gives-an-empty-row",
    features=WINDOW,
)
class EmptyIsEverything(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores, visible | ~visible.any(-1, keepdim=True))

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


@mistake(
    "own-window-hides-by-a-thousandth",
    "keys beyond the window keep a score of -7",
    killed_by="a-windowed-row-attends-its-keys-alone",
    features=WINDOW,
)
class HiddenSoftly(DenseWithArguments):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if self.call.get("window") is None:
            return super().hide(scores, visible)
        return scores.masked_fill(~visible & visible.any(-1, keepdim=True), -7.0)


@mistake(
    "own-window-poison",
    "values beyond the window are multiplied by weights of zero, against the declared profile",
    killed_by="nan-and-infinity-beyond-the-window-follow-the-profile",
    features=WINDOW,
    masked_keys=MaskedNonfinite.BLOCKED,
    masked_values=MaskedNonfinite.BLOCKED,
)
class TimesZero(Tiled):
    """An attention that conforms to another profile only, in which NaN times zero is NaN."""


@mistake(
    "own-mask-read-by-the-size-of-the-query",
    "the memory of a float mask is read in the dtype of the query",
    killed_by="a-float-mask-of-another-dtype-is-read-or-refused",
)
class MaskMisread(Dense):
    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = more.get("attn_mask")
        if mask is not None and mask.is_floating_point() and mask.dtype != query.dtype:
            memory = mask.contiguous().flatten().view(torch.uint8)
            memory = memory.repeat(2 + query.element_size())
            size = mask.numel() * query.element_size()
            more["attn_mask"] = memory[:size].view(query.dtype).view(mask.shape).nan_to_num(0.0)
        return super().__call__(query, key, value, *rest, **more)


@mistake(
    "own-mask-bits-dropped",
    "a float mask of another dtype is taken for one that hides nothing",
    killed_by="a-float-mask-of-another-dtype-is-read-or-refused",
)
class MaskOfOtherDtypeDropped(Dense):
    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = more.get("attn_mask")
        if mask is not None and mask.is_floating_point() and mask.dtype != query.dtype:
            more.pop("attn_mask")
        return super().__call__(query, key, value, *rest, **more)


@mistake(
    "own-mask-rounded-to-bfloat16",
    "a float mask of another dtype is rounded to bfloat16, whatever the dtype of the query",
    killed_by="a-float-mask-of-another-dtype-is-read-or-refused",
)
class MaskRoundedToBfloat16(Dense):
    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = more.get("attn_mask")
        if mask is not None and mask.is_floating_point() and mask.dtype != query.dtype:
            more["attn_mask"] = mask.to(torch.bfloat16)
        return super().__call__(query, key, value, *rest, **more)
