"""Mutants of TEN: a call uses a value of another call."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory
from attnspec.spec import Feature

CACHE_SIZE = 8
"""Largest number of entries before a cache is emptied."""

correct: Callable[..., Any] = Dense()


class KeptFromTheFirst:
    """An attention that reuses a value of the first call with an equal, incomplete key."""

    def __init__(
        self,
        key: Callable[..., Any],
        kept: Callable[[tuple[torch.Tensor, ...], dict[str, Any]], Any],
        used: Callable[[Any, tuple[torch.Tensor, ...], dict[str, Any]], Any],
    ) -> None:
        """Start with an empty cache.

        Args:
            key: returns the cache key of the operands.
            kept: returns the value to cache, of operands and options.
            used: returns the result, of the cached value, operands and options.
        """
        self.key, self.kept, self.used, self.first = key, kept, used, dict[Any, Any]()

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        if len(self.first) > CACHE_SIZE:
            self.first.clear()
        kept = self.first.setdefault(self.key(*operands), self.kept(operands, options))
        return self.used(kept, operands, options)


def _sizes_and_types(*operands: torch.Tensor) -> Any:
    return tuple((tuple(operand.shape), operand.dtype) for operand in operands)


def _option(name: str) -> KeptFromTheFirst:
    return KeptFromTheFirst(
        _sizes_and_types,
        lambda operands, options: options.get(name),
        lambda kept, operands, options: correct(*operands, **{**options, name: kept}),
    )


for _name, _label, _feature in (
    ("window", "window", Feature.WINDOW),
    ("sinks", "sinks", Feature.SINKS),
    ("alibi_slopes", "slopes", Feature.ALIBI),
):
    plant_dense(
        f"own-{_label}-cached",
        f"compiled code cached without the {_label} in its key",
        _option(_name),
        killed_by="a-changed-argument-changes-the-result",
        features=(_feature,),
    )
plant_dense(
    "own-softcap-cached",
    "compiled code cached without the softcap in its key",
    _option("softcap"),
    killed_by="a-changed-argument-changes-the-result",
    features=(Feature.SOFTCAP,),
    source="https://github.com/Dao-AILab/flash-attention/pull/2402",
)
plant_dense(
    "CMP-05",
    "replay of a recorded call uses the range of values that it recorded",
    KeptFromTheFirst(
        _sizes_and_types,
        lambda operands, options: operands[2].detach().abs().amax() if operands[2].numel() else 0,
        lambda kept, operands, options: correct(
            *operands[:2], operands[2].clamp(-kept, kept), **options
        ),
    ),
    killed_by="a-changed-argument-changes-the-result",
    source="https://github.com/thu-ml/SageAttention/issues/392",
)


class CopyKept:
    """An attention that reuses its copy of an argument if it gets the same tensor again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given: torch.Tensor | None = None
        self.copy: torch.Tensor | None = None

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        given = options.get(self.name)
        if given is None or given.requires_grad:
            return correct(*operands, **options)
        if given is not self.given:
            self.given, self.copy = given, given.clone()
        return correct(*operands, **{**options, self.name: self.copy})


for _name, _label, _features in (
    ("attn_mask", "mask", set[Feature]()),
    ("alibi_slopes", "slopes", {Feature.ALIBI}),
):
    plant_dense(
        f"own-{_label}-converted-once",
        f"the {_label} converted once for each tensor, and not again if it is overwritten in place",
        CopyKept(_name),
        killed_by="a-changed-argument-changes-the-result",
        features=_features,
    )


def _sizes(*operands: torch.Tensor) -> Any:
    return tuple(tuple(operand.shape) for operand in operands)


def _masks_to(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    mask = options.get("attn_mask")
    if mask is None or mask.dtype == torch.bool:
        return options
    return {**options, "attn_mask": mask.to(dtype)}


plant_dense(
    "own-type-of-the-first",
    "code cached by sizes computes in the type of the call that it was made for",
    KeptFromTheFirst(
        _sizes,
        lambda operands, options: operands[0].dtype,
        lambda kept, operands, options: correct(
            *(operand.to(kept) for operand in operands), **_masks_to(options, kept)
        ).to(operands[2].dtype),
    ),
    killed_by="other-calls-in-between-change-nothing",
)
plant_dense(
    "own-strides-of-the-first",
    "code cached by sizes and types reads with the strides that it was made for",
    KeptFromTheFirst(
        _sizes_and_types,
        lambda operands, options: tuple(operand.stride() for operand in operands),
        lambda kept, operands, options: correct(
            *(
                read_memory(operand, strides)
                for operand, strides in zip(operands, kept, strict=True)
            ),
            **options,
        ),
    ),
    killed_by="other-calls-in-between-change-nothing",
)
plant_dense(
    "own-groups-of-the-first",
    "the table of shared heads cached by the sizes of the queries",
    KeptFromTheFirst(
        lambda query, key, value: (tuple(query.shape), query.dtype),
        lambda operands, options: operands[1].shape[1],
        lambda kept, operands, options: correct(
            operands[0],
            *(shared[:, torch.arange(kept) % shared.shape[1]] for shared in operands[1:]),
            **options,
        ),
    ),
    killed_by="other-calls-in-between-change-nothing",
)


@mistake(
    "own-detached-ever-after",
    "a call after one with gradients answers with what the backward pass kept",
    killed_by="other-calls-in-between-change-nothing",
)
class WeightsKeptFromGradients(Dense):
    """An attention that reuses the weights of a call with gradients in the next call."""

    def __init__(self) -> None:
        self.saved: torch.Tensor | None = None

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        saved, self.saved = self.saved, weights.detach() if scores.requires_grad else None
        is_like = saved is not None and (saved.shape, saved.dtype) == (weights.shape, weights.dtype)
        return saved if is_like and saved is not None else weights


@mistake(
    "own-one-scratch",
    "all threads share one buffer for intermediate results",
    killed_by="concurrent-calls-are-independent",
)
class OneScratch(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        self.packed = value.clone()
        return super().__call__(query, key, value, *rest, **options)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return weights @ self.share_heads(self.packed, weights.shape[1]).to(weights.dtype)


@mistake(
    "own-room-of-a-thread",
    "threads that an application starts have room for 256 keys, and leave out further ones",
    killed_by="concurrent-calls-are-independent",
)
class RoomOfAThread(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            visible = visible & (torch.arange(scores.shape[-1]) < 256)
        return super().hide(scores, visible)


@mistake(
    "own-scale-of-a-refused-call",
    "a scale is kept until the call returns: one that raises leaves its own to the next call",
    killed_by="a-refused-call-leaves-no-trace",
    features={Feature.VALIDATES},
)
class ScaleOfARefusedCall(Dense):
    def __init__(self) -> None:
        self.kept: dict[Any, float] = {}

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        place = (query.shape, query.dtype)
        if place in self.kept:
            options["scale"] = self.kept.pop(place)
        if options.get("scale") is not None:
            self.kept[place] = options["scale"]
        out = super().__call__(query, key, value, *rest, **options)
        self.kept.pop(place, None)
        return out


LONG = 512
"""Keys from which decoding uses the workspace."""


class LongestWorkspace(Dense):
    """An attention that copies keys and values to a workspace, which grows and never shrinks."""

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        has_mask = options.get("attn_mask") is not None or options.get("is_causal")
        if query.shape[2] > 8 or key.shape[2] < LONG or has_mask:
            return super().__call__(query, key, value, *rest, **options)
        place = (key.shape[:2], key.shape[3], value.shape[3], key.dtype)
        before = self.kept.get(place, (key, value))
        key, value = (
            torch.cat([new, old[:, :, new.shape[2] :]], 2)
            for new, old in zip((key, value), before, strict=True)
        )
        if len(self.kept) > CACHE_SIZE:
            self.kept.clear()
        self.kept[place] = (key.detach().clone(), value.detach().clone())
        return super().__call__(query, key, value, *rest, **options)


plant_dense(
    "own-workspace-of-a-longer-call",
    "decoding reads a workspace as far as the longest call so far had filled it",
    LongestWorkspace(),
    killed_by="calls-of-other-sizes-in-between-change-nothing",
)


@mistake(
    "own-tiles-of-a-mask",
    "the tiles of a large bool mask that hold a readable key are kept by the address of the mask",
    killed_by="a-changed-argument-changes-the-result",
)
class TilesOfAMask(Dense):
    def __init__(self) -> None:
        self.kept: dict[Any, torch.Tensor] = {}

    def polarity(self, attn_mask: torch.Tensor) -> torch.Tensor:
        if min(attn_mask.shape[-2:]) < 256:
            return attn_mask
        if len(self.kept) > CACHE_SIZE:
            self.kept.clear()
        name = attn_mask.data_ptr(), attn_mask.shape
        return self.kept.setdefault(name, attn_mask.clone())


class PartsOfTheLongest:
    """An attention that merges as many parts of the keys as the longest decoding call had."""

    def __init__(self) -> None:
        self.longest = dict[Any, tuple[torch.Tensor, torch.Tensor]]()

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> Any:
        is_plain = query.dim() == 4 and query.shape[2] == 1 and options.get("attn_mask") is None
        if not is_plain or key.shape[2] <= 512 or key.requires_grad:
            return correct(query, key, value, **options)
        shapes = (*query.shape, key.shape[1], value.shape[3], key.dtype)
        kept = self.longest.get(shapes)
        parts = -(-key.shape[2] // 256) * 256
        if kept is None or kept[0].shape[2] <= parts:
            self.longest[shapes] = key.detach().clone(), value.detach().clone()
        else:
            key, value = (
                torch.cat([operand, stale[:, :, parts:]], dim=2)
                for operand, stale in zip((key, value), kept, strict=True)
            )
        return correct(query, key, value, **options)


plant_dense(
    "own-parts-of-the-longest",
    "decoding merges the parts of all keys of the longest call of these heads, 256 in each",
    PartsOfTheLongest(),
    killed_by="calls-of-other-sizes-in-between-change-nothing",
)


plant_dense(
    "own-scale-of-a-plan",
    "the plan of decoding on over 4 096 keys, kept by the sizes, holds the scale of the first call",
    KeptFromTheFirst(
        _sizes_and_types,
        lambda operands, options: options.get("scale"),
        lambda kept, operands, options: correct(
            *operands,
            **(
                {**options, "scale": kept}
                if operands[0].shape[2] == 1 and operands[1].shape[2] > 4096
                else options
            ),
        ),
    ),
    killed_by="a-changed-argument-changes-the-result",
)
