"""Fields: the properties of calls on which regimes depend, with the values that cases may have.

A field reads its value from any call, whoever made it, and says which fields of a case make a call
that has a given value.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import visible_pairs
from attnspec.conformance.attention.layouts import is_unaligned, lay_out
from attnspec.spec import (
    CallMode,
    Case,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

TILES = (48, 64, 80, 112, 176)
"""Tile lengths that kernels use; other lengths in use, 96 to 2 048, are multiples of these."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A property of calls on which regimes depend.

    Attributes:
        values: the values that cases may have, the simplest first.
        of_call: returns the values that a call may be said to have: several if they make no
            difference to it, as layouts of a tensor of one element.
        changes: returns the fields of a case that give it a value.
    """

    values: tuple[Any, ...]
    of_call: Callable[[Call], tuple[Any, ...]]
    changes: Callable[[Any], dict[str, Any]]


def _scores(call: Call) -> tuple[Values, ...]:
    """Return the families with scores of a call's size, seen by 8 queries and 1 000 keys."""
    query = call.query.detach()[:1, :, :8].double()
    key = call.key.detach()[:1, :, :1000].double()
    if not query.numel() or not key.numel():
        return ()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = (query @ key.mT) * scale
    largest, mean = float(scores.abs().max()), float(scores.mean())
    if largest < 1e-4:
        return (Values.TINY,)
    if -90 < mean < -30:
        return (Values.NEGATIVE,)
    return (Values.OFFSET,) if largest > 88 else ORDINARY


ORDINARY = (
    Values.NORMAL,
    Values.PEAKED,
    Values.ONE_HOT,
    Values.TIES,
    Values.GROWING,
    Values.CANCELLATION,
)
"""Families with scores of ordinary size."""


def _lengths() -> tuple[int, ...]:
    """Return lengths beside whole multiples of tile lengths, small and long ones; 17 first."""
    multiples = {
        tile * count
        for tile in TILES
        for count in (
            *range(1, 2100 // tile),
            *(-(-length // tile) for length in (2600, 4097, 6300, 8001, 65_001)),
        )
    }
    beside = {multiple + step for multiple in multiples for step in (-1, 0, 1)}
    others = (*range(70), 2047, 2048, 2049, 8191, 8192, 65_537)
    return tuple(dict.fromkeys((17, *sorted(beside.union(others)))))


LENGTHS = _lengths()
_MULTIPLES = range(16, 257, 8)
_BESIDE = (63, 65, 79, 81, 95, 97, 127, 129)
_OTHERS = (20, 36, 100, 320, 512, 576, 640, 768, 1024)
WIDTHS = (8, *sorted({*range(1, 8), *range(9, 18), *_MULTIPLES, *_BESIDE, *_OTHERS}))
GROUP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 32)
HEADS = tuple(
    sorted(
        {
            (group * kv_heads, kv_heads)
            for group, kv_heads in product(GROUP_SIZES, (1, 2, 3, 4, 5, 8, 12, 33, 40))
            if group * kv_heads <= 48
        }.union({(64, 1), (64, 8), (71, 71), (96, 8), (130, 130)})
    )
)
"""Numbers of (heads, kv_heads)."""
HIDING_PATTERNS = (
    MaskPattern.HALF,
    MaskPattern.MIDDLE,
    MaskPattern.ELEMENT,
    MaskPattern.EMPTY_ROWS,
)
"""The patterns that are classes of their own."""
MASKS = (
    None,
    *(
        Mask(kind=kind, pattern=pattern, shape=shape)
        for shape in (MaskShape.RANK_2, *MaskShape)
        for kind, pattern in (
            (MaskKind.BOOL, MaskPattern.RANDOM),
            (MaskKind.BOOL, MaskPattern.PADDING),
            (MaskKind.FLOAT, MaskPattern.RANDOM),
            (MaskKind.FLOAT, MaskPattern.BIAS),
            (MaskKind.FLOAT, MaskPattern.LARGE_BIAS),
            (MaskKind.FLOAT, MaskPattern.BIASED),
            *product(MaskKind, HIDING_PATTERNS),
        )
    ),
)
WINDOWS: tuple[tuple[int | None, int | None] | None, ...] = (
    None,
    (2, None),
    (64, None),
    (300, None),
    (None, 1),
    (None, 17),
    (3, 2),
    (128, 0),
    (17, 65),
    (600, 0),
    (1023, None),
    (128, None),
    (256, 0),
    (512, None),
    (1024, 0),
    (4096, None),
    (127, None),
    (255, 0),
    (None, 128),
    (257, 127),
)


def _masks(call: Call) -> tuple[Mask | None, ...]:
    """Return the masks of `MASKS` that have the type, the shape and the bias of a call's."""
    mask = call.attn_mask
    if mask is None:
        return (None,)
    batch, heads, queries, keys = *call.query.shape[:3], call.key.shape[2]
    shapes = {
        MaskShape.FULL: (batch, heads, queries, keys),
        MaskShape.HEADS: (1, heads, queries, keys),
        MaskShape.BATCH: (batch, 1, queries, keys),
        MaskShape.KEYS: (batch, 1, min(1, queries), keys),
        MaskShape.KEYS_OF_HEADS: (batch, heads, min(1, queries), keys),
        MaskShape.QUERIES: (batch, 1, queries, 1),
        MaskShape.RANK_3: (heads, queries, keys),
        MaskShape.RANK_2: (queries, keys),
    }
    kind = MaskKind.BOOL if mask.dtype == torch.bool else MaskKind.FLOAT
    patterns = _patterns(mask)
    return tuple(
        each
        for each in MASKS
        if each is not None
        and each.kind is kind
        and shapes[each.shape] == tuple(mask.shape)
        and each.pattern in patterns
    )


LARGEST_BIAS = 20.0
"""The size up to which the numbers of a mask are those of an ordinary bias."""


def _patterns(mask: torch.Tensor) -> tuple[MaskPattern, ...]:
    """Return the patterns that a mask may be drawn by."""
    if mask.numel() == 0:
        return tuple(MaskPattern)
    mask = mask.detach()
    if mask.dtype != torch.bool and bool(((mask != 0) & mask.isfinite()).any()):
        if bool((mask.isfinite() & (mask.abs() > LARGEST_BIAS)).any()):
            return (MaskPattern.LARGE_BIAS,)
        # a mask that hides with a probability may hide nothing
        hides = bool(mask.isinf().any())
        return (MaskPattern.BIASED,) if hides else (MaskPattern.BIAS, MaskPattern.BIASED)
    readable = mask if mask.dtype == torch.bool else mask == 0
    if mask.dim() == 4 and mask.stride(0) == 0:
        readable = readable[:1]  # every element has the mask of the first
    if mask.dim() > 2 and mask.stride(-3) == 0:
        readable = readable.narrow(-3, 0, 1)  # and every head that of the first
    keys = mask.shape[-1]
    batch, heads = (1, 1, *readable.shape[:-2])[-2:]
    case = Case(batch=batch, heads=heads, queries=1, keys=keys)
    own = tuple(
        pattern
        for pattern in HIDING_PATTERNS[:3]
        if bool((readable == visible_pairs(case, pattern).to(mask.device)).all())
    )
    if not bool(readable.any(-1).all()):
        return (MaskPattern.EMPTY_ROWS, *own)
    return (MaskPattern.RANDOM, MaskPattern.PADDING, *own)


@functools.lru_cache(maxsize=4096)
def _strides(shape: torch.Size, layout: Layout) -> tuple[int, ...]:
    """Return the strides of a tensor of a shape in a layout."""
    return lay_out(torch.empty(shape, device="meta"), layout).stride()


def _has_layout(tensor: torch.Tensor, layout: Layout) -> bool:
    """Return whether a tensor has the strides of a layout, those of dimensions of size 1 apart."""
    if layout is Layout.UNALIGNED and tensor.numel() and not is_unaligned(tensor):
        return False
    if layout is Layout.PACKED and tensor.dim() == 4:
        return _is_packed(tensor)
    strides = zip(tensor.shape, tensor.stride(), _strides(tensor.shape, layout), strict=True)
    is_odd = layout is Layout.ODD_STRIDES
    return all(own == expected for size, own, expected in strides if size > 1 or is_odd)


def _is_packed(tensor: torch.Tensor) -> bool:
    """Return whether each token of a tensor has room for the heads of other tensors."""
    batch, heads, length, channels = tensor.shape
    of_batch, of_head, of_token, of_channel = tensor.stride()
    is_dense = (channels <= 1 or of_channel == 1) and (heads <= 1 or of_head == channels)
    room = of_token if length > 1 else of_batch
    has_room = max(batch, length) <= 1 or room > heads * channels
    return is_dense and has_room and (min(batch, length) <= 1 or of_batch == length * of_token)


def _layouts(name: str) -> Callable[[Call], tuple[Layout, ...]]:
    """Return a function from a call to the layouts that one of its tensors has."""

    def layouts(call: Call) -> tuple[Layout, ...]:
        tensor = getattr(call, name)
        if tensor is None:
            return ()
        return tuple(each for each in Layout if _has_layout(tensor, each))

    return layouts


def _window_of(call: Call) -> tuple[Any, ...]:
    return (call.window,)


def _number(name: str, values: tuple[int, ...], of_call: Callable[[Call], int]) -> Field:
    return Field(
        values=values, of_call=lambda call: (of_call(call),), changes=lambda value: {name: value}
    )


def _flag(name: str, of_call: Callable[[Call], bool]) -> Field:
    return Field(
        values=(False, True),
        of_call=lambda call: (of_call(call),),
        changes=lambda value: {name: value},
    )


def _choice(
    name: str, values: tuple[Any, ...], of_call: Callable[[Call], tuple[Any, ...]]
) -> Field:
    return Field(values=values, of_call=of_call, changes=lambda value: {name: value})


FIELDS: dict[str, Field] = {
    "queries": _number("queries", LENGTHS, lambda call: call.query.shape[2]),
    "keys": _number("keys", LENGTHS, lambda call: call.key.shape[2]),
    "d_head": _number("d_head", WIDTHS, lambda call: call.query.shape[3]),
    "d_value": _number("d_value", WIDTHS, lambda call: call.value.shape[3]),
    "heads": Field(
        values=HEADS,
        of_call=lambda call: ((call.query.shape[1], call.key.shape[1]),),
        changes=lambda value: {"heads": value[0], "kv_heads": value[1]},
    ),
    "batch": _number(
        "batch", (1, 2, 3, 4, 5, 6, 9, 16, 33, 100, 4100, 65_537), lambda call: call.query.shape[0]
    ),
    "dtype": _choice(
        "dtype",
        (torch.float32, torch.float64, torch.float16, torch.bfloat16),
        lambda call: (call.query.dtype,),
    ),
    "scale": _choice("scale", (None, 0.3, 1.0, 2, -0.7, -0.2, 0.0), lambda call: (call.scale,)),
    "scores": _choice("values", (*ORDINARY, Values.TINY, Values.NEGATIVE, Values.OFFSET), _scores),
    "mask": _choice("mask", MASKS, _masks),
    "is_causal": _flag("is_causal", lambda call: call.is_causal),
    "window": _choice("window", WINDOWS, _window_of),
    "softcap": _choice("softcap", (None, 1.5, 30.0), lambda call: (call.softcap,)),
    "sinks": _flag("sinks", lambda call: call.sinks is not None),
    "alibi": _flag("alibi", lambda call: call.alibi_slopes is not None),
    "return_lse": _flag("return_lse", lambda call: call.return_lse),
    "backward": _flag("backward", lambda call: call.query.requires_grad),
    "mode": _choice("mode", tuple(CallMode), lambda call: (call.mode,)),
    **{
        f"layout of {name}": Field(
            values=tuple(Layout), of_call=_layouts(argument), changes=lambda value: {}
        )
        for name, argument in (
            ("query", "query"),
            ("key", "key"),
            ("value", "value"),
            ("mask", "attn_mask"),
        )
    },
}
"""The fields on which regimes depend, by name."""


def case_of(values: Mapping[str, Any], device: str = "cpu") -> Case:
    """Return the case whose fields of `FIELDS` have given values.

    Raises:
        ValueError: if no case has them together.
    """
    changes: dict[str, Any] = {"device": device}
    for name, value in values.items():
        changes |= FIELDS[name].changes(value)
    layouts = {name: values[f"layout of {name}"] for name in ("query", "key", "value", "mask")}
    return Case(**changes, layouts=Layouts(**layouts))
