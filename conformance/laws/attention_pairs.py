"""The law of ATT that lets every two options meet: each result held to the oracle."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import check_oracle, drawn, evident, plain
from attnspec.conformance.oracle_gradients import Gradient
from attnspec.conformance.pairwise import Row, pairwise
from attnspec.conformance.strategies import FINITE, cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import (
    Case,
    Feature,
    Implementation,
    Layout,
    Layouts,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

BOOL = Mask(shape=MaskShape.FULL)
FLOAT = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
AXES = {
    "values": tuple(Values),
    "mask": (
        None,
        BOOL,
        FLOAT,
        Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
        Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.BATCH),
        Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.DOCUMENTS, shape=MaskShape.RANK_2),
    ),
    "keys": (7, 1, 17, 33),
    "queries": (5, 1, 16, 18),
    "dtype": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "groups": ((2, 2), (3, 1), (6, 2)),
    "channels": ((8, 8), (5, 5), (16, 3)),
    "batch": (2, 1, 3),
    "is_causal": (False, True),
    "scale": (None, 0.3),
    "window": (None, (2, 0), (None, 1), (1, None)),
    "softcap": (None, 1.5, 30.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "return_lse": (False, True),
    "backward": (False, True),
    "query_layout": (Layout.CONTIGUOUS, Layout.HEADS_INSIDE, Layout.SLICED),
    "key_layout": (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.EXPANDED),
    "value_layout": (Layout.CONTIGUOUS, Layout.HEADS_INSIDE, Layout.ODD_STRIDES),
}
SMALLEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=torch.float32)
FEATURES = (
    Feature.WINDOW,
    Feature.SOFTCAP,
    Feature.SINKS,
    Feature.ALIBI,
    Feature.LSE,
    Feature.BACKWARD,
)


def case_of(row: Row) -> Case:
    """The case that a row of the design stands for."""
    (heads, kv_heads), (d_head, d_value) = row["groups"], row["channels"]
    layouts = Layouts(query=row["query_layout"], key=row["key_layout"], value=row["value_layout"])
    compound = ("groups", "channels", "query_layout", "key_layout", "value_layout")
    fields = {name: value for name, value in row.items() if name not in compound}
    return Case(
        heads=heads, kv_heads=kv_heads, d_head=d_head, d_value=d_value, layouts=layouts, **fields
    )


def design(subject: Subject) -> list[Case]:
    """Cases within the claims of a subject in which every two options meet."""
    claims = subject.implementation
    return list(_design(claims.features, claims.dtypes, claims.supports, subject.device))


@functools.lru_cache(maxsize=64)
def _design(
    features: frozenset[Feature],
    dtypes: tuple[torch.dtype, ...],
    supports: Callable[[Case], str | None],
    device: str,
) -> tuple[Case, ...]:
    """The same for all that claim the same."""
    claims = Implementation(
        name="claims",
        attention=_unused,
        features=features,
        dtypes=dtypes,
        devices=(torch.device(device).type,),
        supports=supports,
    )

    def claimed(row: Row) -> bool:
        return claims.refuses(case_of(row).but(device=device)) is None

    own = {"dtype": tuple(each for each in AXES["dtype"] if each in dtypes)}
    # what is kept from row to row must be claimed
    first = case_of({name: values[0] for name, values in (AXES | own).items()})
    first = Subject(claims, device=device).fit(first)
    channels = dict.fromkeys([(first.d_head, first.d_value), *AXES["channels"]])
    axes = AXES | own | {"channels": tuple(channels)}
    if not claimed({name: values[0] for name, values in axes.items()}):
        return ()
    return tuple(case_of(row).but(device=device) for row in pairwise(axes, claimed))


def _unused(*arguments: Any, **options: Any) -> NoReturn:
    raise NotImplementedError


@law(
    "ATT-1",
    judges=Judged.ATTENTION,
    pinned=(SMALLEST, *every(SMALLEST, dtype=AXES["dtype"])),
    design=design,
    explore=cases(only=plain, sometimes=FEATURES, families=FINITE),
)
def law_options_combine(subject: Subject, case: Case) -> None:
    """ATT-1: whatever two options meet, output, log-sum-exp and gradients are the definition's."""
    call = subject.draw(case)
    if case.return_lse:
        out, lse = subject.call_with_lse(call)
    else:
        out, lse = subject.call(call), None
    expected = subject.expect(call)
    check_oracle(call, out, expected, "the output is not that of the definition")
    if lse is not None:
        check_close(
            lse,
            expected.lse,
            expected.lse_bound,
            what="lse",
            message="the log-sum-exp is not that of the definition",
            may_be_nan=expected.lse_may_be_nan,
            axes=("batch", "head", "query"),
        )
    if case.backward:
        grad_out = drawn(case, "grad_out", out)
        _, found = subject.differentiate(call, grad_out)
        due = subject.expect_gradients(call, grad_out)
        for name, gradient in found.items():
            exact: Gradient = getattr(due, name)
            check_close(
                gradient,
                exact.exact,
                exact.bound,
                what=f"the gradient of {name}",
                message="a gradient is not that of the definition",
                dtype=case.dtype,
                may_be_nan=exact.may_be_nan,
            )
    evident(call, expected)
