"""Regimes of rotary positions: classes of calls for which kernels have code of their own."""

from typing import Any, NamedTuple

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators import regimes as of_rows
from attnspec.conformance.operators.regimes import Axes, axis_of, axis_over, design_of, drawn
from attnspec.conformance.operators.rotary.case import Places, RotaryCase
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec import Layout


class RotaryCall(NamedTuple):
    """The operands of a call that its classes depend on."""

    x: torch.Tensor
    positions: torch.Tensor
    turned: int


def call_of(
    x: torch.Tensor, positions: torch.Tensor, *, rotary_dim: int | None = None, **others: Any
) -> RotaryCall:
    """Return what the classes read of the operands of a call."""
    return RotaryCall(x, positions, x.shape[-1] if rotary_dim is None else rotary_dim)


def _d_head(low: int, high: float) -> Any:
    return lambda call: low <= call.x.shape[3] <= high


def _heads(low: int, high: float) -> Any:
    return lambda call: low <= call.x.shape[1] <= high


def _length(low: int, high: float) -> Any:
    return lambda call: low <= call.x.shape[2] <= high


def _largest(low: int, high: float) -> Any:
    return lambda call: low <= int(call.positions.max()) <= high


def _has_own_positions(call: RotaryCall) -> bool:
    return not torch.equal(call.positions, call.positions[:1].expand_as(call.positions))


def _has_heads_inside(x: torch.Tensor) -> bool:
    return not x.is_contiguous() and x.transpose(1, 2).is_contiguous()


def _has_gaps(x: torch.Tensor) -> bool:
    return any(each.name == "rows apart" and each.holds(x) for each in of_rows.AXES["layout"])


def _x(call: RotaryCall) -> torch.Tensor:
    return call.x


AXES: Axes = {
    "d_head": axis_of(
        "d_head",
        _2_to_32=_d_head(2, 32),
        _64=_d_head(64, 64),
        _80_to_112=_d_head(80, 112),
        _128=_d_head(128, 128),
        _256=_d_head(256, 256),
    ),
    "turned": axis_of(
        "turned",
        whole_head=lambda call: call.turned == call.x.shape[3],
        part=lambda call: call.turned < call.x.shape[3],
    ),
    "pairs": axis_of(
        "pairs",
        odd=lambda call: call.turned // 2 % 2 == 1,
        multiple_of_8=lambda call: call.turned // 2 % 8 == 0,
    ),
    "positions": axis_of(
        "positions",
        zero=_largest(0, 0),
        below_2048=_largest(1, 2047),
        below_32_768=_largest(2048, 32_767),
        below_131_072=_largest(32_768, 131_071),
        _131_072_and_more=_largest(131_072, float("inf")),
    ),
    "heads": axis_of("heads", one=_heads(1, 1), _2_to_7=_heads(2, 7), _8_and_more=_heads(8, 128)),
    "batch": axis_of(
        "batch",
        one=lambda call: call.x.shape[0] == 1,
        same_positions=lambda call: call.x.shape[0] > 1 and not _has_own_positions(call),
        own_positions=_has_own_positions,
    ),
    "length": axis_of(
        "length",
        one=_length(1, 1),
        _2_to_62=_length(2, 62),
        _63_to_65=_length(63, 65),
        _127_to_129=_length(127, 129),
    ),
    "layout": (
        *axis_over([each for each in of_rows.AXES["layout"] if each.name != "rows apart"], _x),
        *axis_of(
            "layout",
            rows_apart=lambda call: _has_gaps(call.x) and not _has_heads_inside(call.x),
            heads_inside=lambda call: _has_heads_inside(call.x),
        ),
    ),
    "dtype": axis_over(of_rows.AXES["dtype"], _x),
    "backward": axis_over(of_rows.AXES["backward"], _x),
}
"""The classes of each axis."""

PINNED = (
    RotaryCase(heads=2, length=5, d_head=16, seed=1),
    RotaryCase(length=1, d_head=64, dtype=torch.float16, layout=Layout.UNALIGNED, seed=2),
    RotaryCase(
        batch=2,
        heads=8,
        length=63,
        d_head=64,
        rotary_dim=16,
        start=4000,
        dtype=torch.bfloat16,
        layout=Layout.HEADS_INSIDE,
        seed=3,
    ),
    RotaryCase(
        batch=2,
        length=64,
        d_head=96,
        rotary_dim=6,
        places=Places.SCATTERED,
        start=40_000,
        dtype=torch.float32,
        layout=Layout.PADDED,
        backward=True,
        seed=4,
    ),
    RotaryCase(heads=3, length=128, d_head=128, start=131_072, layout=Layout.SLICED, seed=5),
    RotaryCase(
        heads=2,
        length=1,
        d_head=256,
        start=200_000,
        dtype=torch.float32,
        layout=Layout.EXPANDED,
        seed=6,
    ),
    RotaryCase(batch=2, length=33, d_head=6, backward=True, dtype=torch.float32, seed=7),
    RotaryCase(batch=2, length=2, d_head=80, places=Places.PADDED, dtype=torch.float32, seed=8),
    *(
        RotaryCase(batch=2, heads=2, length=5, d_head=64, layout=layout, start=9, seed=9)
        for layout in (Layout.UNALIGNED, Layout.HEADS_INSIDE, Layout.SLICED, Layout.EXPANDED)
    ),
)
"""A case of every class, also for implementations that turn the whole head alone."""


def cases(subject: OperatorSubject, seed: int) -> tuple[RotaryCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    values = drawn(
        1500,
        batch=(1, 2, 3),
        heads=(1, 2, 3, 8),
        length=(1, 2, 9, 63, 64, 65, 127, 128, 129),
        d_head=(2, 6, 16, 32, 64, 80, 96, 112, 128, 256),
        rotary_dim=(None, None, 2, 16, 26, 48, 64),
        places=(Places.COUNTED, Places.SCATTERED, Places.PADDED),
        start=(0, 1, 1900, 2048, 30_000, 32_768, 130_000, 131_072, 500_000),
        dtype=subject.implementation.dtypes,
        layout=(
            *(Layout.CONTIGUOUS, Layout.UNALIGNED, Layout.SLICED, Layout.TRANSPOSED),
            *(Layout.PADDED, Layout.HEADS_INSIDE, Layout.EXPANDED, Layout.EXPANDED_BATCH),
        ),
        backward=(False, True),
    )
    made = (RotaryCase(**each) for each in values)
    fitting = [each for each in made if each.turned <= each.d_head]
    zero = [  # one token, or two that are padding
        each.but(length=1 + place % 2, places=Places.PADDED, start=0, batch=1 + place % 3)
        for place, each in enumerate(fitting[:200])
    ]
    return design_of(subject, (*fitting, *zero), _size, call_without_memory, AXES).cases


def _size(case: RotaryCase) -> int:
    return case.batch * case.heads * case.length * case.d_head


def call_without_memory(case: RotaryCase) -> RotaryCall:
    """Return a call of a case whose x has strides alone."""
    shape = (case.batch, case.heads, case.length, case.d_head)
    x = lay_out(torch.empty(shape, dtype=case.dtype, device="meta"), case.layout)
    return RotaryCall(x.requires_grad_(case.backward), case.positions(), case.turned)
