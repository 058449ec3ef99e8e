"""Regimes of paged attention: those of packed attention, page sizes and places."""

from itertools import chain
from typing import Any

import torch

from attnspec.conformance.operators.packed import regimes as of_packed
from attnspec.conformance.operators.packed.regimes import (
    between,
    call_of,
    call_without_memory,
    size,
)
from attnspec.conformance.operators.paged.case import PagedCase, Places
from attnspec.conformance.operators.regimes import Axes, axis_of, design_of, drawn
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec.packed import CAUSAL

__all__ = ["AXES", "call_of", "call_without_memory", "cases"]

PAGE_SIZES = (1, 2, 7, 16, 24, 32, 64, 100, 128, 256)

AXES: Axes = {
    **of_packed.COMMON,
    "page_size": axis_of(
        "page size",
        one=between("page_size", 1, 1),
        _2_to_15=between("page_size", 2, 15),
        _16=between("page_size", 16, 16),
        _17_to_63=between("page_size", 17, 63),
        _64=between("page_size", 64, 64),
        _65_to_127=between("page_size", 65, 127),
        _128=between("page_size", 128, 128),
        _256=between("page_size", 256, 256),
    ),
    "pages": axis_of(
        "pages",
        one_each=lambda call: call.longest <= call.page_size,
        over_64=lambda call: call.longest > 64 * call.page_size,
        full=lambda call: all(m % call.page_size == 0 for m in call.keys),
    ),
    "append": axis_of("append", yes=lambda call: call.append, no=lambda call: not call.append),
}
"""The classes of each axis."""

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
PINNED = (
    PagedCase(queries=(1,), keys=(1,), heads=5, d_head=32, window=CAUSAL, lse=True, page_size=1),
    PagedCase(queries=(1, 1), keys=(2, 2), d_head=256, dtype=F16, page_size=100, seed=1),
    PagedCase(queries=(32, 32), keys=(32, 32), heads=16, dtype=F32, page_size=24, seed=2),
    PagedCase(
        queries=(1, 5, 1, 1, 1, 1, 1, 1),
        keys=(64, 128, 64, 64, 64, 64, 64, 64),
        heads=2,
        kv_heads=2,
        dtype=BF16,
        window=(127, 0),
        page_size=64,
        seed=3,
    ),
    PagedCase(
        queries=(1,) * 8,
        keys=(65, 1, 1, 1, 1, 1, 1, 1),
        heads=8,
        d_head=80,
        dtype=F32,
        page_size=256,
        append=True,
        seed=4,
    ),
    PagedCase(
        queries=(1, 1),
        keys=(511, 2),
        heads=4,
        d_head=64,
        dtype=F32,
        window=(0, 0),
        page_size=7,
        lse=True,
        seed=5,
    ),
    PagedCase(
        queries=(1,) * 64,
        keys=tuple(range(2, 66)),
        heads=3,
        kv_heads=3,
        d_head=128,
        window=CAUSAL,
        page_size=128,
        seed=6,
    ),
    PagedCase(
        queries=(1,),
        keys=(256,),
        heads=3,
        kv_heads=3,
        dtype=F32,
        window=(64, 0),
        append=True,
        page_size=16,
        seed=7,
    ),
    PagedCase(queries=(1, 1), keys=(4096, 64), heads=2, dtype=F32, page_size=64, seed=8),
)
"""A case of every class."""


def cases(subject: OperatorSubject, seed: int) -> tuple[PagedCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    if subject.implementation.compiles_each_shape:
        return ()  # the pinned ones hold every class
    sizes: Any = getattr(subject.implementation, "page_sizes", None) or PAGE_SIZES
    appends = (False, True) if "append" in subject.implementation.features else (False,)
    values = of_packed.values_of(subject)
    values |= {"page_size": sizes, "append": appends, "places": tuple(Places)}
    many = chain(drawn(3000, **values), drawn(800, **values | of_packed.LONG))
    made = [PagedCase(**each) for each in of_packed.fields_of(many)]
    full = [  # only full pages
        each.but(keys=tuple(-(-m // each.page_size) * each.page_size for m in each.keys))
        for each in made[:600]
        if each.queries != each.keys
    ]
    fitting = [each for each in (*made, *full) if size(each) <= of_packed.MOST]
    return design_of(subject, fitting, size, call_without_memory, AXES).cases
