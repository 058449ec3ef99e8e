"""Regimes of calls with lengths: classes of calls for which kernels have code of their own.

Each axis divides calls into classes. A class is a condition on properties of a call, so that both a
case and a call tell their classes; the values of a property that are of a class make its cases.
"""

import functools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch

from attnspec.conformance.attention.inputs import key_lengths
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.cases import BF16, BIAS, F16, F32, F64, HIDDEN
from attnspec.conformance.laws.helpers.claims import DesignClaims
from attnspec.conformance.laws.helpers.gradients import empty_rows_are_zero
from attnspec.conformance.laws.helpers.pairwise import pairwise
from attnspec.conformance.operators.packed.regimes import between
from attnspec.conformance.operators.regimes import Axes, CallRegime, Design, Pair, axis_of
from attnspec.spec import CallMode, Case, KeyLengths, Profile, Values

NUMBERS = 2**17
"""Keys and values of judged batch elements, those of a group counted for each head."""

OPERATIONS = 6e7
"""Operations that a case of the design may take."""

DRAWS = 8
"""Draws of values inside the classes of a case, of which the first that is affordable is taken."""

PERIOD = 5
"""Seeds after which the lengths of a batch come again."""


@dataclass(frozen=True, kw_only=True)
class CallWithLengths:
    """The properties of a call that decide on its classes; `mode` is `backward` in training."""

    batch: int = 2
    queries: int = 3
    keys: int = 16
    lengths: tuple[int, ...] = (16, 8)
    query_offset: bool = False
    group: int = 1
    kv_heads: int = 1
    d_head: int = 8
    dtype: torch.dtype = F32
    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: torch.dtype | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    return_lse: bool = False
    mode: str = CallMode.PLAIN


BACKWARD = "backward"
SMALL_TILE, TILE = 16, 64
"""Tiles of up to 48 keys, and of more."""


def call_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    key_lengths: torch.Tensor | None = None,
    query_offset: torch.Tensor | None = None,
    return_lse: bool = False,
) -> CallWithLengths | None:
    """Return what the classes read of the arguments of a call; None if it has no lengths."""
    if key_lengths is None:
        return None
    mode: str = CallMode.PLAIN
    if torch.is_inference_mode_enabled():
        mode = CallMode.INFERENCE
    elif not torch.is_grad_enabled():
        mode = CallMode.NO_GRAD
    elif query.requires_grad:
        mode = BACKWARD
    return CallWithLengths(
        batch=query.shape[0],
        queries=query.shape[2],
        keys=key.shape[2],
        lengths=tuple(key_lengths.tolist()),
        query_offset=query_offset is not None,
        group=query.shape[1] // key.shape[1],
        kv_heads=key.shape[1],
        d_head=query.shape[3],
        dtype=query.dtype,
        is_causal=is_causal,
        window=window,
        mask=None if attn_mask is None else attn_mask.dtype,
        softcap=softcap,
        sinks=sinks is not None,
        alibi=alibi_slopes is not None,
        return_lse=return_lse,
        mode=mode,
    )


def _any(condition: Callable[[int, int], bool]) -> Callable[[CallWithLengths], bool]:
    """Return whether a condition holds for some length of a call, given the tile of its size."""

    def holds(call: CallWithLengths) -> bool:
        tile = SMALL_TILE if call.keys <= 3 * SMALL_TILE else TILE
        return any(condition(length, tile) for length in call.lengths)

    return holds


def _mode(*modes: str) -> Callable[[CallWithLengths], bool]:
    return lambda call: call.mode in modes


def _dtype(dtype: torch.dtype) -> Callable[[CallWithLengths], bool]:
    return lambda call: call.dtype == dtype


def _flag(name: str) -> tuple[CallRegime, ...]:
    """Return the classes of calls without an option and with it."""
    return axis_of(
        name.removeprefix("is_").removeprefix("return_").replace("_", " "),
        no=lambda call: not getattr(call, name),
        yes=lambda call: bool(getattr(call, name)),
    )


AXES: Axes = {
    "queries": axis_of(
        "queries",
        one=between("queries", 1, 1),
        _2_to_8=between("queries", 2, 8),
        _9_to_64=between("queries", 9, 64),
        over_64=between("queries", 65),
    ),
    "keys": axis_of(
        "keys",
        up_to_48=between("keys", 1, 48),
        _63_to_65=between("keys", 63, 65),
        _127_to_129=between("keys", 127, 129),
        _255_to_257=between("keys", 255, 257),
        over_1000=between("keys", 1001),
    ),
    "length": axis_of(
        "length",
        none=_any(lambda length, tile: length == 0),
        one=_any(lambda length, tile: length == 1),
        whole_tiles=_any(lambda length, tile: length > 0 and length % tile == 0),
        one_more_than_whole_tiles=_any(lambda length, tile: length > 1 and length % tile == 1),
        one_less_than_whole_tiles=_any(lambda length, tile: length % tile == tile - 1),
        all=lambda call: call.keys in call.lengths,
    ),
    "query_offset": _flag("query_offset"),
    "batch": axis_of(
        "batch",
        one=between("batch", 1, 1),
        _2_to_4=between("batch", 2, 4),
        _5_to_16=between("batch", 5, 16),
        over_16=between("batch", 17),
    ),
    "group": axis_of(
        "group",
        **{f"_{size}": between("group", size, size) for size in (*range(1, 9), 16)},
        odd_over_8=lambda call: call.group > 8 and call.group % 2 == 1,
    ),
    "kv_heads": axis_of(
        "heads of keys", one=between("kv_heads", 1, 1), several=between("kv_heads", 2)
    ),
    "d_head": axis_of(
        "d_head",
        **{f"_{size}": between("d_head", size, size) for size in (64, 96, 128, 256)},
        odd=lambda call: call.d_head % 2 == 1,
        another_multiple_of_8=lambda call: (
            call.d_head % 8 == 0 and call.d_head not in (64, 96, 128, 256)
        ),
    ),
    "dtype": axis_of(
        "dtype",
        float32=_dtype(F32),
        float64=_dtype(F64),
        float16=_dtype(F16),
        bfloat16=_dtype(BF16),
    ),
    "is_causal": _flag("is_causal"),
    "window": axis_of(
        "window",
        none=lambda call: call.window is None,
        left=lambda call: call.window is not None and call.window[1] in (None, 0),
        right=lambda call: call.window is not None and call.window[1] not in (None, 0),
    ),
    "mask": axis_of(
        "mask",
        none=lambda call: call.mask is None,
        bool=lambda call: call.mask == torch.bool,
        float=lambda call: call.mask not in (None, torch.bool),
    ),
    **{name: _flag(name) for name in ("softcap", "sinks", "alibi", "return_lse")},
    "mode": axis_of(
        "call",
        plain=_mode(CallMode.PLAIN),
        no_grad=_mode(CallMode.NO_GRAD, CallMode.INFERENCE),
        backward=_mode(BACKWARD),
    ),
}
"""The classes of each axis; an axis but `length` has the name of a property."""

VALUES: Mapping[str, tuple[Any, ...]] = {
    "queries": (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 100, 129),
    "keys": (17, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025,
             1031, 1152, 1281),
    "query_offset": (False, True),
    "batch": (1, 2, 3, 4, 5, 6, 9, 16, 17, 20, 33),
    "group": (*range(1, 9), 16, 9, 11),
    "kv_heads": (1, 2, 3),
    "d_head": (8, 64, 96, 128, 256, 5, 17, 33, 16, 32, 80),
    "dtype": (F32, F64, F16, BF16),
    "is_causal": (False, True),
    "window": (
        None, (17, None), (0, 0), (64, 0), (127, None), (300, 0), (5, 3), (None, 2), (64, 65),
    ),
    "mask": (None, torch.bool, torch.float32),
    "softcap": (None, 1.5, 30.0),
    **{name: (False, True) for name in ("sinks", "alibi", "return_lse")},
    "mode": (CallMode.PLAIN, CallMode.NO_GRAD, CallMode.INFERENCE, BACKWARD),
}  # fmt: skip
"""The values of each property, the cheapest of a class first."""

MASKS = {torch.bool: HIDDEN, torch.float32: BIAS}
CONTENTS = (Values.NORMAL, Values.PEAKED)

Row = Mapping[str, CallRegime]


@functools.cache
def _values(regime: CallRegime, axis: str) -> tuple[Any, ...]:
    """Return the values of a property that are of a class."""
    plain = CallWithLengths()
    return tuple(value for value in VALUES[axis] if regime.holds(replace(plain, **{axis: value})))


def first_judged(case: Case) -> int:
    """Return the batch element of a case that is judged in any sample."""
    return case.seed // PERIOD % case.batch


@functools.cache
def _seeds(batch: int, keys: int, kind: KeyLengths, length: CallRegime) -> tuple[int, ...]:
    """Return the seeds in which the first judged element has a length of a class."""
    found = []
    for seed in range(PERIOD * batch):
        case = Case(batch=batch, keys=keys, seed=seed)
        own = int(key_lengths(case, kind)[first_judged(case)])
        if length.holds(CallWithLengths(keys=keys, lengths=(own,))):
            found.append(seed)
    return tuple(found)


class _Choices:
    """Cases of given classes that some claims allow.

    Attributes:
        subject: refuses cases.
        usual: the value of each property of which a case need not be of a class.
    """

    def __init__(self, subject: Subject) -> None:
        """Find usual values that the subject claims."""
        self.subject = subject
        self.usual = {axis: values[0] for axis, values in VALUES.items()}
        fitted = subject.fit(self._made(self.usual, 0, KeyLengths.RAGGED))
        self.usual |= {"dtype": fitted.dtype, "d_head": fitted.d_head}

    def case(self, row: Row, pick: Callable[[tuple[Any, ...]], Any]) -> Case | None:
        """Return a case of some classes that is claimed and affordable, or None.

        Args:
            row: the class on some axes.
            pick: chooses among the values of a class.
        """
        values = {
            axis: pick(_values(row[axis], axis)) if axis in row else usual
            for axis, usual in self.usual.items()
        }
        seed, kind = 0, KeyLengths.RAGGED
        if "length" in row:
            kind = KeyLengths.EMPTY if row["length"].name == "none" else kind
            keys = _values(row["keys"], "keys") if "keys" in row else VALUES["keys"]
            seeds = {each: _seeds(values["batch"], each, kind, row["length"]) for each in keys}
            keys = tuple(each for each in keys if seeds[each])
            if not keys:
                return None
            values["keys"] = pick(keys)
            seed = pick(seeds[values["keys"]])
        case = self._made(values, seed, kind)
        return case if self._is_tried(case) else None

    def _made(self, values: Mapping[str, Any], seed: int, kind: KeyLengths) -> Case:
        is_backward = values["mode"] == BACKWARD
        same = ("batch", "kv_heads", "queries", "keys", "d_head", "dtype", "is_causal", "window")
        options = ("softcap", "sinks", "alibi", "query_offset", "return_lse")
        return Case(
            **{name: values[name] for name in (*same, *options)},
            heads=values["group"] * values["kv_heads"],
            d_value=values["d_head"],
            device=self.subject.device,
            mask=MASKS.get(values["mask"]),
            key_lengths=kind,
            backward=is_backward,
            mode=CallMode.PLAIN if is_backward else values["mode"],
            seed=seed,
        )

    def _is_tried(self, case: Case) -> bool:
        if operations(case) > OPERATIONS or self.subject.refuses(case) is not None:
            return False
        # the gradient of a row that reads nothing is defined only if the row gives zero
        is_empty = case.key_lengths is KeyLengths.EMPTY
        return not (is_empty and case.backward) or empty_rows_are_zero(self.subject)


def operations(case: Case) -> float:
    """Return roughly the operations of a call, and of the bound of its sample."""
    scores = case.batch * case.heads * case.queries * case.keys
    numbers = case.heads // case.kv_heads * case.keys * (case.d_head + case.d_value)
    products = scores * (case.d_head + case.d_value + 10)
    return (4 if case.backward else 1) * (products + 100 * max(numbers, NUMBERS / 4))


@functools.lru_cache(maxsize=64)
def _rows(claims: DesignClaims, profile: Profile) -> tuple[Row, ...]:
    """Choose rows in which any two classes meet that a case may have."""
    choices = _Choices(_subject(claims, profile))
    return tuple(pairwise(AXES, lambda row: choices.case(row, _first) is not None))


def _subject(claims: DesignClaims, profile: Profile) -> Subject:
    """Return a subject of some claims, which cannot be called."""
    subject = claims.subject()
    return replace(subject, implementation=replace(subject.implementation, profile=profile))


def _first(values: tuple[Any, ...]) -> Any:
    """Return the cheapest of the values of a class."""
    return values[0]


def design(subject: Subject, seed: int = 0) -> Design:
    """Choose cases in which any two classes meet that a subject claims.

    Args:
        subject: the subject, whose claims are read.
        seed: selects the values inside the classes.
    """
    if subject.implementation.compiles_each_shape or subject.largest < math.inf:
        return Design(cases=(), claimed=frozenset())
    choices = _Choices(subject)
    cases, claimed = [], set[Pair]()
    for number, row in enumerate(_rows(DesignClaims.of(subject), subject.implementation.profile)):
        dice = random.Random(f"{seed}/{number}")
        drawn = (choices.case(row, dice.choice) for _ in range(DRAWS))
        case = next((each for each in drawn if each is not None), choices.case(row, _first))
        assert case is not None
        # the same lengths, with other numbers
        step = dice.randrange(2**10) * PERIOD * case.batch
        cases.append(case.but(seed=case.seed + step, values=dice.choice(CONTENTS)))
        claimed |= {frozenset(pair) for pair in combinations(row.values(), 2)}
    return Design(cases=tuple(dict.fromkeys(cases)), claimed=frozenset(claimed))
