"""Regimes: classes of calls for which kernels have code of their own, such as decoding.

A kernel selects code by sizes, storage types, options and memory layouts, so that a mistake can
spoil one class of calls alone. Each axis below divides calls into such classes. A class is written
as a condition on fields of a call, from which both follow: whether a given call is of the class,
and which cases are.
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
from attnspec.spec.case import BIASES

Condition = Callable[[Any], bool]

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Regime:
    """A class of calls.

    Attributes:
        axis: the axis that it is a class of.
        name: its name on that axis.
        conditions: the condition on each field of `FIELDS` that it depends on.
    """

    axis: str
    name: str
    conditions: Mapping[str, Condition]

    def holds(self, call: Call) -> bool:
        """Return whether a call is of this class."""
        return all(
            any(map(condition, FIELDS[name].of_call(call)))
            for name, condition in self.conditions.items()
        )

    def __str__(self) -> str:
        return f"{self.axis}: {self.name}"


def regimes_of(call: Call) -> list[Regime]:
    """Return the regimes of a call, in the order of the axes."""
    # each field once: many regimes depend on the same one, and the scores and masks may be large
    values = {name: field.of_call(call) for name, field in FIELDS.items()}
    return [
        regime
        for regimes in AXES.values()
        for regime in regimes
        if all(any(map(condition, values[name])) for name, condition in regime.conditions.items())
    ]


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
    keys = mask.shape[-1]
    case = Case(batch=readable.shape[0] if mask.dim() == 4 else 1, queries=1, keys=keys)
    of_other_shape = {2: (0, 0), 3: (0,), 4: ()}[mask.dim()]
    own = tuple(
        pattern
        for pattern in HIDING_PATTERNS[:3]
        if bool((readable == visible_pairs(case, pattern).to(mask.device)[of_other_shape]).all())
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
    strides = zip(tensor.shape, tensor.stride(), _strides(tensor.shape, layout), strict=True)
    is_odd = layout is Layout.ODD_STRIDES
    return all(own == expected for size, own, expected in strides if size > 1 or is_odd)


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
        "batch", (1, 2, 3, 4, 5, 6, 9, 16, 33, 100, 65_537), lambda call: call.query.shape[0]
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


def _axis(name: str, field: str, classes: Mapping[str, Condition]) -> tuple[Regime, ...]:
    """Return the regimes of an axis whose classes depend on one field."""
    return tuple(
        Regime(axis=name, name=each, conditions={field: condition})
        for each, condition in classes.items()
    )


def _between(first: int, last: int) -> Condition:
    return lambda value: first <= value <= last


def _is(*values: Any) -> Condition:
    return lambda value: value in values


_LENGTHS: dict[str, Condition] = {
    "17 to 63": _between(17, 63),
    "0": _is(0),
    "1": _is(1),
    "2 to 8": _between(2, 8),
    "9 to 16": _between(9, 16),
    "64 to 128": _between(64, 128),
    "129 to 256": _between(129, 256),
    "257 to 512": _between(257, 512),
    "513 to 1 000": _between(513, 1000),
    "1 001 to 2 048": _between(1001, 2048),
    "2 049 to 8 000": _between(2049, 8000),
    "8 001 to 65 000": _between(8001, 65_000),
    "over 65 000": lambda value: value > 65_000,
}


def _remainder(tile: int, step: int) -> Condition:
    return lambda value: value > 1 and (value - step) % tile == 0


_REMAINDERS: dict[str, Condition] = {
    f"{words} {tile}": _remainder(tile, step)
    for tile in TILES
    for words, step in (
        ("multiple of", 0),
        ("one more than a multiple of", 1),
        ("one less than a multiple of", -1),
    )
}
_COMMON = (16, 64, 80, 96, 128, 192, 256)
_WIDTHS: dict[str, Condition] = {
    "another multiple of 8": lambda value: value % 8 == 0 and value not in _COMMON and value < 256,
    **{str(width): _is(width) for width in _COMMON},
    "257 to 512": _between(257, 512),
    "over 512": lambda value: value > 512,
    "4 more than a multiple of 8": lambda value: value % 8 == 4 and value > 16,
    "1": _is(1),
    "odd": lambda value: value % 2 == 1 and value > 1,
    "beside a common width": lambda value: value + 1 in _COMMON or value - 1 in _COMMON,
}
_LAYOUTS: dict[str, Condition] = {str(each): _is(each) for each in Layout}
_GROUPS_OF_WIDE_HEADS: dict[str, Condition] = {
    "queries": _between(257, 10**9),
    "keys": _between(257, 10**9),
    "d_head": _between(64, 10**9),
    "heads": lambda value: value[0] > value[1] > 1,
}
_BOTH_LONG = {"queries": _between(129, 10**9), "keys": _between(129, 10**9)}
_USES: dict[str, dict[str, Condition]] = {
    "prefill: over 1 024 tokens, 16 heads or more": {
        "queries": _between(1025, 10**9),
        "keys": _between(1025, 10**9),
        "heads": lambda value: value[0] >= 16,
    },
    "training: over 512 tokens, 16 heads or more, backward": {
        "queries": _between(513, 10**9),
        "keys": _between(513, 10**9),
        "heads": lambda value: value[0] >= 16,
        "backward": bool,
    },
    "training: 5 rows or more, over 128 tokens, 9 heads or more, backward": {
        "batch": _between(5, 10**9),
        "queries": _between(129, 10**9),
        "keys": _between(129, 10**9),
        "heads": lambda value: value[0] >= 9,
        "backward": bool,
    },
    "decoding: 5 rows or more, over 1 000 keys, groups of heads": {
        "batch": _between(5, 10**9),
        "queries": _between(1, 8),
        "keys": _between(1001, 10**9),
        "heads": lambda value: value[0] > value[1] > 1,
    },
    "latent attention: width 192 and values of width 128, over 512 keys": {
        "d_head": _is(192),
        "d_value": _is(128),
        "keys": _between(513, 10**9),
    },
}
"""Sizes that go together where people run attention, so that each meets all other classes."""

AXES: dict[str, tuple[Regime, ...]] = {
    "queries": _axis("queries", "queries", _LENGTHS),
    "keys": _axis("keys", "keys", _LENGTHS),
    "tiles of queries": _axis("tiles of queries", "queries", _REMAINDERS),
    "tiles of keys": _axis("tiles of keys", "keys", _REMAINDERS),
    "d_head": _axis("d_head", "d_head", _WIDTHS),
    "d_value": _axis("d_value", "d_value", _WIDTHS),
    "extent": (
        *(
            Regime(
                axis="extent",
                name=f"decoding: {queries} on {keys} keys",
                conditions={"queries": of_queries, "keys": of_keys},
            )
            for queries, of_queries, keys, of_keys in (
                ("1 query", _is(1), "1 001 to 4 000", _between(1001, 4000)),
                ("1 query", _is(1), "over 4 000", _between(4001, 10**9)),
                ("2 to 8 queries", _between(2, 8), "over 1 000", _between(1001, 10**9)),
            )
        ),
        Regime(axis="extent", name="several tiles of queries and keys", conditions=_BOTH_LONG),
        Regime(
            axis="extent",
            name="several tiles of queries and keys, backward",
            conditions=_BOTH_LONG | {"backward": bool},
        ),
    ),
    "prefill": (
        Regime(
            axis="prefill",
            name="groups of wide heads on over 256 queries and keys",
            conditions=_GROUPS_OF_WIDE_HEADS,
        ),
        Regime(
            axis="prefill",
            name="groups of wide heads on over 256 queries and keys, backward",
            conditions=_GROUPS_OF_WIDE_HEADS | {"backward": bool},
        ),
    ),
    "use": tuple(
        Regime(axis="use", name=name, conditions=conditions) for name, conditions in _USES.items()
    ),
    "heads": _axis(
        "heads",
        "heads",
        {
            "1": lambda value: value[0] == 1,
            "odd": lambda value: value[0] % 2 == 1 and value[0] > 1,
            "even, up to 6": lambda value: value[0] in (2, 4, 6),
            "8": lambda value: value[0] == 8,
            "9 to 16": lambda value: 9 <= value[0] <= 16,
            "17 to 32": lambda value: 17 <= value[0] <= 32,
            "33 to 64": lambda value: 33 <= value[0] <= 64,
            "over 64": lambda value: value[0] > 64,
        },
    ),
    "heads in a group": _axis(
        "heads in a group",
        "heads",
        {
            **{
                str(size): functools.partial(lambda size, value: value[0] == size * value[1], size)
                for size in (*range(1, 9), 16)
            },
            "odd, over 8": lambda value: value[0] // value[1] in (9, 11, 13, 15),
            "10, 12 or 14": lambda value: value[0] // value[1] in (10, 12, 14),
            "over 16": lambda value: value[0] // value[1] > 16,
        },
    ),
    "batch": _axis(
        "batch",
        "batch",
        {
            "1": _is(1),
            "2 to 4": _between(2, 4),
            "5 to 15": _between(5, 15),
            "16 to 65 535": _between(16, 65_535),
            "over 65 535": lambda value: value > 65_535,
        },
    ),
    "dtype": _axis(
        "dtype",
        "dtype",
        {str(dtype).removeprefix("torch."): _is(dtype) for dtype in FIELDS["dtype"].values},
    ),
    "scale": _axis(
        "scale",
        "scale",
        {
            "default": lambda value: value is None,
            "positive": lambda value: value is not None and value > 0,
            "negative": lambda value: value is not None and value < 0,
            "zero": lambda value: value is not None and value == 0,
        },
    ),
    "scores": _axis(
        "scores",
        "scores",
        {
            "ordinary": _is(*ORDINARY),
            "all below 0.0001": _is(Values.TINY),
            "all far below zero": _is(Values.NEGATIVE),
            "beyond 88, where exp overflows": _is(Values.OFFSET),
        },
    ),
    "mask": _axis(
        "mask",
        "mask",
        {
            "none": lambda value: value is None,
            "bool": lambda value: value is not None and value.kind is MaskKind.BOOL,
            "float that hides": lambda value: (
                value is not None and value.kind is MaskKind.FLOAT and value.pattern not in BIASES
            ),
            "float bias": lambda value: value is not None and value.pattern is MaskPattern.BIAS,
            "float bias beyond 88": lambda value: (
                value is not None and value.pattern is MaskPattern.LARGE_BIAS
            ),
            "float bias that hides": lambda value: (
                value is not None and value.pattern is MaskPattern.BIASED
            ),
        },
    ),
    "keys that a mask hides": _axis(
        "keys that a mask hides",
        "mask",
        {
            "half of them": lambda value: value is not None and value.pattern is MaskPattern.HALF,
            "the middle": lambda value: value is not None and value.pattern is MaskPattern.MIDDLE,
            "all from the first element": lambda value: (
                value is not None and value.pattern is MaskPattern.ELEMENT
            ),
            "all from some queries": lambda value: (
                value is not None and value.pattern is MaskPattern.EMPTY_ROWS
            ),
        },
    ),
    "shape of mask": _axis(
        "shape of mask",
        "mask",
        {
            str(shape): functools.partial(
                lambda shape, value: value is not None and value.shape is shape, shape
            )
            for shape in MaskShape
        },
    ),
    "causal": _axis("causal", "is_causal", {"no": _is(False), "yes": _is(True)}),
    "window": _axis(
        "window",
        "window",
        {
            "none": lambda value: value is None,
            "left": lambda value: value is not None and value[1] is None,
            "right": lambda value: value is not None and value[0] is None,
            "both sides": lambda value: value is not None and None not in value,
        },
    ),
    "softcap": _axis(
        "softcap", "softcap", {"no": lambda value: not value, "yes": lambda value: bool(value)}
    ),
    **{
        name: _axis(name, field, {"no": _is(False), "yes": _is(True)})
        for name, field in (
            ("sinks", "sinks"),
            ("alibi", "alibi"),
            ("log-sum-exp", "return_lse"),
            ("backward", "backward"),
        )
    },
    "call": _axis("call", "mode", {str(mode): _is(mode) for mode in CallMode}),
    **{
        f"layout of {name}": _axis(f"layout of {name}", f"layout of {name}", _LAYOUTS)
        for name in ("query", "key", "value", "mask")
    },
}
"""The axes and their classes; the first class of each is the simplest."""


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
