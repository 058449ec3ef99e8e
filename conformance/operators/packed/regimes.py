"""Regimes of packed attention: classes of calls for which kernels have code of their own."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from attnspec.conformance.operators.packed.case import PackedCase
from attnspec.conformance.operators.regimes import (
    Axes,
    axis_of,
    design_of,
    drawn,
)
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec.packed import CAUSAL, EVERYWHERE

MOST = 4_000_000
"""Numbers that the scores of a call multiply, above which a call is left out."""


@dataclass(frozen=True, kw_only=True)
class ServedCall:
    """The properties of a call that decide on its classes; `keys` counts those after it."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    kv_heads: int
    d_head: int
    window: tuple[int, int]
    dtype: torch.dtype
    backward: bool
    lse: bool
    page_size: int = 0
    append: bool = False

    @property
    def longest(self) -> int:
        """The number of keys of the longest sequence."""
        return max(self.keys)

    @property
    def ratio(self) -> float:
        """How much longer the longest sequence is than the shortest."""
        return self.longest / max(min(self.keys), 1)

    @property
    def group(self) -> int:
        """The number of query heads that share a key/value head."""
        return self.heads // self.kv_heads


def call_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int] = EVERYWHERE,
    return_aux: Any = None,
    seqused_k: torch.Tensor | None = None,
    new_key: torch.Tensor | None = None,
    **others: Any,
) -> ServedCall:
    """Return what the classes read of the arguments of a packed or a paged call."""
    queries = cu_seq_q.diff()
    if cu_seq_k is not None:
        keys = cu_seq_k.diff()
    else:
        assert seqused_k is not None
        keys = seqused_k + (0 if new_key is None else queries)
    return ServedCall(
        queries=tuple(queries.tolist()),
        keys=tuple(keys.tolist()),
        heads=query.shape[1],
        kv_heads=key.shape[-2],
        d_head=query.shape[2],
        window=window_size,
        dtype=query.dtype,
        backward=query.requires_grad,
        lse=return_aux is not None and return_aux.lse,
        page_size=key.shape[1] if key.dim() == 4 else 0,
        append=new_key is not None,
    )


def call_without_memory(case: Any) -> ServedCall:
    """Return what the classes read of the call of a case, without its tensors."""
    return ServedCall(
        queries=case.queries,
        keys=case.keys,
        heads=case.heads,
        kv_heads=case.kv_heads,
        d_head=case.d_head,
        window=case.window,
        dtype=case.dtype,
        backward=case.backward,
        lse=case.lse,
        page_size=getattr(case, "page_size", 0),
        append=getattr(case, "append", False),
    )


def between(name: str, low: float, high: float = float("inf")) -> Callable[[Any], bool]:
    """Return whether a number of a call lies in a range."""
    return lambda call: low <= getattr(call, name) <= high


def _is_prefill(call: ServedCall) -> bool:
    return max(call.queries) > 1 and call.queries == call.keys


def _is_in_chunks(call: ServedCall) -> bool:
    fits = all(n <= m for n, m in zip(call.queries, call.keys, strict=True))
    return fits and max(call.queries) > 1 and call.queries != call.keys


def _count(low: int, high: float) -> Callable[[ServedCall], bool]:
    return lambda call: low <= len(call.keys) <= high


def _is(dtype: torch.dtype) -> Callable[[ServedCall], bool]:
    return lambda call: call.dtype == dtype


def _left(low: int, high: float) -> Callable[[ServedCall], bool]:
    return lambda call: low <= call.window[0] <= high and call.window[1] == 0


COMMON: Axes = {
    "phase": axis_of(
        "phase",
        decoding=lambda call: max(call.queries) == 1,
        prefill=_is_prefill,
        chunks=_is_in_chunks,
    ),
    "sequences": axis_of(
        "sequences",
        one=_count(1, 1),
        _2_to_7=_count(2, 7),
        _8_to_31=_count(8, 31),
        _64_and_more=_count(64, float("inf")),
    ),
    "longest": axis_of(
        "longest",
        _1_to_32=between("longest", 1, 32),
        _63_to_65=between("longest", 63, 65),
        _127_to_129=between("longest", 127, 129),
        _255_to_257=between("longest", 255, 257),
        _511_to_513=between("longest", 511, 513),
        _4096_and_more=between("longest", 4096),
    ),
    "lengths": axis_of(
        "lengths",
        equal=lambda call: len(call.keys) > 1 and call.ratio == 1,
        unequal=lambda call: 1 < call.ratio < 64,
        one_64_times_as_long=between("ratio", 64),
    ),
    "group": axis_of(
        "group",
        one=between("group", 1, 1),
        _2_to_4=between("group", 2, 4),
        _5_to_7=between("group", 5, 7),
        _8=between("group", 8, 8),
        _9_and_more=between("group", 9),
    ),
    "heads_of_keys": axis_of(
        "heads of keys",
        one=between("kv_heads", 1, 1),
        several=between("kv_heads", 2),
    ),
    "d_head": axis_of(
        "d_head",
        _4_to_32=between("d_head", 4, 32),
        _64=between("d_head", 64, 64),
        _80_to_112=between("d_head", 80, 112),
        _128=between("d_head", 128, 128),
        _256=between("d_head", 256, 256),
    ),
    "window": axis_of(
        "window",
        none=lambda call: call.window == EVERYWHERE,
        causal=lambda call: call.window == CAUSAL,
        up_to_63=_left(0, 63),
        _64_and_more=_left(64, float("inf")),
    ),
    "dtype": axis_of(
        "dtype",
        float64=_is(torch.float64),
        float32=_is(torch.float32),
        float16=_is(torch.float16),
        bfloat16=_is(torch.bfloat16),
    ),
    "lse": axis_of("lse", yes=lambda call: call.lse, no=lambda call: not call.lse),
}
"""The axes that packed and paged attention have in common."""

AXES: Axes = {
    **COMMON,
    "backward": axis_of(
        "backward", yes=lambda call: call.backward, no=lambda call: not call.backward
    ),
}
"""The classes of each axis."""

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
PINNED = (
    PackedCase(queries=(1,), keys=(17,), seed=1),
    PackedCase(queries=(17, 17), keys=(17, 17), heads=6, kv_heads=3, window=(0, 0), seed=2),
    PackedCase(queries=(1, 1), keys=(2, 2), heads=3, d_head=256, dtype=F16, backward=True, seed=3),
    PackedCase(queries=(1,), keys=(256,), d_head=80, dtype=F32, window=CAUSAL, seed=4),
    PackedCase(
        queries=(1,) * 8,
        keys=(1, 1, 1, 64, 1, 1, 1, 1),
        heads=8,
        d_head=128,
        dtype=BF16,
        window=CAUSAL,
        lse=True,
        seed=5,
    ),
    PackedCase(
        queries=(4, 3, 2, 1, 2),
        keys=(4, 3, 2, 2, 511),
        heads=12,
        d_head=16,
        dtype=F32,
        window=(127, 0),
        lse=True,
        seed=6,
    ),
    PackedCase(
        queries=(1,) * 64, keys=tuple(range(64, 128)), heads=5, d_head=64, dtype=F16, seed=7
    ),
    PackedCase(queries=(1, 1), keys=(4111, 64), d_head=16, dtype=F32, seed=8),
)
"""A case of every class."""


LONG: dict[str, tuple[Any, ...]] = {
    "sequences": (1, 2),
    "longest": (511, 513, 4096, 4111),
    "group": (1,),
    "kv_heads": (1,),
}
"""Values of calls with long sequences, few of which are small enough among the others."""


def values_of(subject: OperatorSubject) -> dict[str, tuple[Any, ...]]:
    """Return the values of fields that packed and paged cases share."""
    features = subject.implementation.features
    windows: list[tuple[int, int]] = [EVERYWHERE]
    windows += [CAUSAL] if "causal" in features else []
    windows += [(0, 0), (31, 0), (64, 0), (127, 0)] if "window" in features else []
    return {
        "phase": ("decoding", "decoding", "prefill", "chunks"),
        "sequences": (1, 2, 5, 8, 20, 64, 100),
        "longest": (1, 17, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 4096, 4111),
        "lengths": ("equal", "unequal", "far"),
        "group": (1, 2, 3, 4, 5, 6, 7, 8, 12, 16) if "gqa" in features else (1,),
        "kv_heads": (1, 1, 2, 3),
        "d_head": (4, 16, 32, 64, 80, 96, 128, 256),
        "window": tuple(windows),
        "dtype": subject.implementation.dtypes,
        "lse": (False, True) if "lse" in features else (False,),
    }


def lengths_of(values: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of queries and of keys of each sequence."""
    chance, longest = random.Random(values["seed"]), values["longest"]
    least = {"equal": longest, "unequal": max(longest // 4, 1), "far": 1}[values["lengths"]]
    most = max(longest // 64, 1) if values["lengths"] == "far" else longest
    keys = [chance.randint(min(least, most), most) for _ in range(values["sequences"])]
    keys[chance.randrange(len(keys))] = longest
    queries = [1] * len(keys)
    if values["phase"] == "prefill":
        queries = list(keys)
    elif values["phase"] == "chunks":
        queries = [min(chance.choice((1, 2, 5, 17)), m) for m in keys]
    return tuple(queries), tuple(keys)


def cases(subject: OperatorSubject, seed: int) -> tuple[PackedCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    if subject.implementation.compiles_each_shape:
        return ()  # the pinned ones hold every class
    values = values_of(subject) | {"backward": (False, False, True)}
    many = chain(drawn(2500, **values), drawn(800, **values | LONG))
    made = [PackedCase(**each) for each in fields_of(many)]
    fitting = [each for each in made if size(each) <= MOST]
    return design_of(subject, fitting, size, call_without_memory, AXES).cases


def fields_of(drawn_values: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of a case from drawn values."""
    for values in drawn_values:
        queries, keys = lengths_of(values)
        rest = {
            name: value
            for name, value in values.items()
            if name not in ("phase", "sequences", "longest", "lengths", "group")
        }
        heads = values["group"] * values["kv_heads"]
        yield {"queries": queries, "keys": keys, "heads": heads} | rest


def size(case: Any) -> int:
    """Return the numbers that the scores of a case multiply."""
    scores = sum(n * m for n, m in zip(case.queries, case.keys, strict=True))
    # each sequence has an oracle of its own
    work: int = (scores * case.d_head + 1000 * len(case.keys)) * case.heads
    return work
