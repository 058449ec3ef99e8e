"""Mutants of MSK: the window has other edges than it says, or is lost beside other masks."""

from typing import Any

import torch

from attnspec.conformance.mutants.attention_pairs import Noticing
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import Feature, MaskedNonfinite

GITHUB = "https://github.com"
WINDOW = {Feature.WINDOW}
ROW = "a-windowed-row-attends-its-keys-alone"
SHOWN = "a-window-shows-exactly-its-keys"
FELT = "a-key-is-felt-within-the-window-alone"
POISON = "poison-beyond-the-window-follows-the-profile"
ENDS = "a-side-beyond-the-ends-hides-nothing"
ALL = "window-mask-and-causal-flag-all-apply"
CAUSAL = "a-right-side-of-zero-is-the-causal-flag"
NOTHING = "a-window-that-reaches-nothing-gives-an-empty-row"
NEGATIVE = "a-negative-side-is-refused"
DTYPE = "a-float-mask-of-another-dtype-is-read-or-refused"

Side = int | None


@mistake(
    "MSK-27",
    "a window of w keys reads w + 1",
    kills=(ROW, SHOWN, FELT, ALL, NOTHING),
    source=f"{GITHUB}/huggingface/transformers/issues/39408",
    features=WINDOW,
)
class OneTooMany(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(None if left is None else left + 1, right, queries, keys)


@mistake(
    "MSK-29",
    "the right side is compared by < where it should be by ≤",
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL),
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
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL),
    source=f"{GITHUB}/huggingface/transformers/pull/41228",
    features=WINDOW,
)
class LeftSign(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(None, right, queries, keys)
        # the lower triangle up to +w where that up to -w has to go
        return visible if left is None else visible & (self.displacement(queries, keys) <= left)


@mistake(
    "MSK-31",
    "the window is not passed on",
    kills=(ROW, SHOWN, FELT, POISON, ENDS, ALL, CAUSAL, NOTHING, NEGATIVE),
    source=f"{GITHUB}/unslothai/unsloth/pull/8253",
    features=WINDOW,
)
class WindowLost(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(None, None, queries, keys)


@mistake(
    "MSK-32",
    "a side of zero hides the query's own place too",
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL),
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
    kills=(ROW, SHOWN, FELT, POISON, ENDS, ALL, CAUSAL, NOTHING),
    source=f"{GITHUB}/jax-ml/jax/pull/39576",
    features=WINDOW,
)
class RightDropped(Noticing):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        return super().window(left, right if self.given.get("is_causal") else None, queries, keys)


@mistake(
    "own-window-zero-is-none",
    "a side of zero is taken for none given",
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL),
    features=WINDOW,
)
class ZeroIsNone(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(left or None, right or None, queries, keys)


@mistake(
    "own-window-sides-swapped",
    "left and right are swapped",
    kills=(ROW, SHOWN, FELT, POISON, ENDS, ALL, CAUSAL),
    features=WINDOW,
)
class SidesSwapped(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        return super().window(right, left, queries, keys)


@mistake(
    "own-window-one-width",
    "the left side serves for both",
    kills=(ROW, SHOWN, FELT, ENDS, ALL, CAUSAL),
    features=WINDOW,
)
class OneWidth(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        super().window(left, right, queries, keys)
        return super().window(left, left, queries, keys)


@mistake(
    "own-window-other-corner",
    "the window is aligned lower-right, the causal flag upper-left",
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL, NOTHING),
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
    kills=(ROW, SHOWN, FELT, ALL),
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
    kills=(ROW, SHOWN, FELT, ALL, CAUSAL),
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
    kills=(ROW, SHOWN, ENDS, ALL),
    features=WINDOW,
)
class OpenSideClosed(Dense):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        left, right = 4 if left is None else left, 4 if right is None else right
        return super().window(left, right, queries, keys)


@mistake(
    "own-window-open-side-minus-one",
    "an open side is kept as -1 and compared as a width",
    kills=(ROW, SHOWN, ENDS, ALL, CAUSAL),
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
    kills=(ENDS,),
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
    kills=(ALL, SHOWN, FELT, NOTHING),
    features=WINDOW,
)
class WindowOrMask(Noticing):
    def window(self, left: Side, right: Side, queries: int, keys: int) -> torch.Tensor:
        visible = super().window(left, right, queries, keys)
        mask = self.given.get("attn_mask")
        if mask is None or mask.dtype != torch.bool:
            return visible
        either: torch.Tensor = visible | mask.cpu()
        return either


@mistake(
    "own-window-instead-of-causal",
    "the causal flag is dropped where a window is given",
    kills=(ALL, SHOWN, FELT, CAUSAL),
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
    kills=(ROW, NOTHING),
    features=WINDOW,
)
class WindowClamped(Dense):
    def displacement(self, queries: int, keys: int) -> torch.Tensor:
        place = torch.arange(queries).clamp(max=max(keys - 1, 0))
        return torch.arange(keys) - place[:, None]


@mistake(
    "own-window-empty-is-everything",
    "a row whose window holds no key reads all keys",
    kills=(NOTHING,),
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
    kills=(ROW, SHOWN, FELT, POISON, ALL, CAUSAL),
    features=WINDOW,
)
class HiddenSoftly(Noticing):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if self.given.get("window") is None:
            return super().hide(scores, visible)
        return scores.masked_fill(~visible & visible.any(-1, keepdim=True), -7.0)


@mistake(
    "own-window-poison",
    "values beyond the window are multiplied by weights of zero, against the declared profile",
    kills=(POISON,),
    features=WINDOW,
    masked_nonfinite=MaskedNonfinite.BLOCKED,
)
class TimesZero(Tiled):
    """NaN times zero is NaN: right in a profile that says so."""


@mistake(
    "own-mask-read-by-the-size-of-the-query",
    "the memory of a float mask is read in the dtype of the query",
    kills=(DTYPE,),
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
    kills=(DTYPE,),
)
class MaskOfOtherDtypeDropped(Dense):
    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = more.get("attn_mask")
        if mask is not None and mask.is_floating_point() and mask.dtype != query.dtype:
            more.pop("attn_mask")
        return super().__call__(query, key, value, *rest, **more)
