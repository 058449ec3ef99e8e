"""Regimes: classes of calls for which kernels have code of their own, such as decoding.

A kernel selects code by sizes, storage types, options and memory layouts, so that a mistake can
spoil one class of calls alone. Each axis below divides calls into such classes. A class is written
as a condition on fields of a call, from which both follow: whether a given call is of the class,
and which cases are.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.fields import FIELDS, ORDINARY, TILES
from attnspec.conformance.attention.modes import DEFAULTS
from attnspec.spec import CallMode, Layout, MaskKind, MaskPattern, MaskShape, Values
from attnspec.spec.case import BIASES

Condition = Callable[[Any], bool]


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


def _axis(name: str, field: str, classes: Mapping[str, Condition]) -> tuple[Regime, ...]:
    """Return the regimes of an axis whose classes depend on one field."""
    return tuple(
        Regime(axis=name, name=each, conditions={field: condition})
        for each, condition in classes.items()
    )


def _axis_of_several(
    name: str, classes: Mapping[str, Mapping[str, Condition]]
) -> tuple[Regime, ...]:
    """Return the regimes of an axis whose classes depend on several fields."""
    return tuple(
        Regime(axis=name, name=each, conditions=conditions) for each, conditions in classes.items()
    )


def _between(first: int, last: int = 10**9) -> Condition:
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


def _pattern(pattern: MaskPattern) -> Condition:
    return lambda value: value is not None and value.pattern is pattern


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
_ALIKE: dict[Any, tuple[Any, ...]] = {
    Layout.HEADS_INSIDE: (Layout.HEADS_INSIDE, Layout.LENGTH_FIRST),
    Layout.PACKED: (Layout.PACKED, Layout.PACKED_HEADS),
    Layout.PADDED: (
        Layout.PADDED,
        Layout.PADDED_TO_EIGHT,
        Layout.CACHE,
        Layout.CACHE_INSIDE,
        Layout.FEWER_HEADS,
    ),
    CallMode.PLAIN: (
        CallMode.PLAIN,
        CallMode.THREADS,
        CallMode.LAYERS,
        CallMode.OTHER_THREAD,
        CallMode.TWO_BACKWARDS,
    ),
    CallMode.DEFAULT_FLOAT64: tuple(DEFAULTS),
    CallMode.INFERENCE: (CallMode.INFERENCE, CallMode.SERVING),
    CallMode.DETERMINISTIC: (CallMode.DETERMINISTIC, CallMode.TRAINING),
}
"""Layouts and modes of one class, named by the first: a seed selects among them."""


def _classes_of(values: Iterable[Layout] | Iterable[CallMode]) -> dict[str, Condition]:
    """Return a class for each layout or mode, those that are alike in one."""
    further = {each for alike in _ALIKE.values() for each in alike[1:]}
    return {str(each): _is(*_ALIKE.get(each, (each,))) for each in values if each not in further}


_LAYOUTS = _classes_of(Layout)


def _from(first: int, *fields: str) -> dict[str, Condition]:
    """Return the condition that some fields are at least `first`."""
    return dict.fromkeys(fields, _between(first))


def _long(first: int) -> dict[str, Condition]:
    return _from(first, "queries", "keys")


def _decoding(first: int, last: int, *keys: int) -> dict[str, Condition]:
    return {"queries": _between(first, last), "keys": _between(*keys)}


def _heads_from(first: int) -> dict[str, Condition]:
    return {"heads": lambda value: value[0] >= first}


def _sides(condition: Callable[[int], bool]) -> Condition:
    """Return the condition that a side of a window fulfils another one."""
    return lambda value: (
        value is not None and any(side is not None and condition(side) for side in value)
    )


AXES: dict[str, tuple[Regime, ...]] = {
    "queries": _axis("queries", "queries", _LENGTHS),
    "keys": _axis("keys", "keys", _LENGTHS),
    "tiles of queries": _axis("tiles of queries", "queries", _REMAINDERS),
    "tiles of keys": _axis("tiles of keys", "keys", _REMAINDERS),
    "d_head": _axis("d_head", "d_head", _WIDTHS),
    "d_value": _axis("d_value", "d_value", _WIDTHS),
    "extent": _axis_of_several(
        "extent",
        {
            "decoding: 1 query on 1 001 to 4 000 keys": _decoding(1, 1, 1001, 4000),
            "decoding: 1 query on over 4 000 keys": _decoding(1, 1, 4001),
            "decoding: 2 to 8 queries on over 1 000 keys": _decoding(2, 8, 1001),
            "several tiles of queries and keys": _long(129),
            "several tiles of queries and keys, backward": _long(129) | {"backward": bool},
            "over 65 535 heads of batch elements, 16 heads or more": (
                _from(4097, "batch") | _heads_from(16)
            ),
        },
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
            "float bias": _pattern(MaskPattern.BIAS),
            "float bias beyond 88": _pattern(MaskPattern.LARGE_BIAS),
            "float bias that hides": _pattern(MaskPattern.BIASED),
        },
    ),
    "keys that a mask hides": _axis(
        "keys that a mask hides",
        "mask",
        {
            "half of them": _pattern(MaskPattern.HALF),
            "the middle": _pattern(MaskPattern.MIDDLE),
            "all from the first element": _pattern(MaskPattern.ELEMENT),
            "all from some queries": _pattern(MaskPattern.EMPTY_ROWS),
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
    "side of window": _axis(
        "side of window",
        "window",
        {
            "of no tile": _sides(lambda side: (side + 1) % 128 > 2),
            "multiple of 128": _sides(lambda side: side > 0 and side % 128 == 0),
            "one off a multiple of 128": _sides(
                lambda side: side > 1 and (side + 1) % 128 in (0, 2)
            ),
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
    "call": _axis("call", "mode", _classes_of(CallMode)),
    **{
        f"layout of {name}": _axis(f"layout of {name}", f"layout of {name}", _LAYOUTS)
        for name in ("query", "key", "value", "mask")
    },
}
"""The axes and their classes; the first class of each is the simplest."""
