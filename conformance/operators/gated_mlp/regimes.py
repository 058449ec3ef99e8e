"""Regimes of a gated MLP: classes of calls for which kernels have code of their own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators import regimes as of_rows
from attnspec.conformance.operators.gated_mlp.case import GatedMLPCase
from attnspec.conformance.operators.regimes import Axes, axis_of, axis_over, design_of, drawn
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec import Layout


class GatedMLPCall(NamedTuple):
    """The operands of a call that its classes depend on."""

    x: torch.Tensor
    down: torch.Tensor
    is_biased: bool


def call_of(*tensors: torch.Tensor, **biases: torch.Tensor) -> GatedMLPCall:
    """Return what the classes read of the operands of a call."""
    return GatedMLPCall(tensors[0], tensors[-1], bool(biases))


def _x(call: GatedMLPCall) -> torch.Tensor:
    return call.x


def widths(of: Callable[[Any], int]) -> dict[str, Callable[[Any], bool]]:
    """Return classes of numbers of channels, of which a function returns the number of a call."""
    return {
        "_1_to_16": lambda call: 1 <= of(call) <= 16,
        "_31_to_33": lambda call: 31 <= of(call) <= 33,
        "_63_to_65": lambda call: 63 <= of(call) <= 65,
        "_127_to_129": lambda call: 127 <= of(call) <= 129,
        "_255_to_257": lambda call: 255 <= of(call) <= 257,
    }


AXES: Axes = {
    "d_model": axis_of("d_model", **widths(lambda call: call.x.shape[-1])),
    "d_inner": axis_of("d_inner", **widths(lambda call: call.down.shape[-1])),
    "width": axis_over(of_rows.AXES["width"], _x),
    "inner width": axis_of(
        "inner width",
        odd=lambda call: call.down.shape[-1] % 2 == 1,
        multiple_of_16=lambda call: call.down.shape[-1] % 16 == 0,
    ),
    "rows": axis_over([each for each in of_rows.AXES["rows"] if each.name != "none"], _x),
    "layout": axis_over(of_rows.AXES["layout"], _x),
    "weights": axis_of(
        "weights",
        contiguous=lambda call: call.down.is_contiguous(),
        transposed=lambda call: not call.down.is_contiguous(),
    ),
    "bias": axis_of("bias", no=lambda call: not call.is_biased, yes=lambda call: call.is_biased),
    "dtype": axis_over(of_rows.AXES["dtype"], _x),
    "backward": axis_over(of_rows.AXES["backward"], _x),
}
"""The classes of each axis."""

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
_PLAIN = (
    GatedMLPCase(shape=(5,), d_model=64, d_inner=32, seed=1),
    GatedMLPCase(shape=(1,), d_model=33, d_inner=129, dtype=F32, seed=2),
    GatedMLPCase(shape=(2, 3), d_model=128, d_inner=5, dtype=F16, seed=3),
    GatedMLPCase(shape=(3,), d_model=5, d_inner=256, dtype=BF16, layout=Layout.SLICED, seed=4),
    GatedMLPCase(shape=(300,), d_model=16, d_inner=65, dtype=F32, backward=True, seed=5),
    GatedMLPCase(shape=(2,), d_model=257, d_inner=16, of_weights=Layout.TRANSPOSED, seed=6),
    *(
        GatedMLPCase(shape=(5,), d_model=32, d_inner=7, layout=layout, dtype=F32, seed=7)
        for layout in (Layout.UNALIGNED, Layout.PADDED, Layout.EXPANDED)
    ),
)
PINNED = (*_PLAIN, _PLAIN[0].but(biased=True))
"""A case of every class, also for implementations without biases."""


def cases(subject: OperatorSubject, seed: int) -> tuple[GatedMLPCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    sizes = (1, 3, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
    values = drawn(
        1500,
        shape=((1,), (1, 1), (3,), (33,), (2, 7), (300,)),
        d_model=sizes,
        d_inner=sizes,
        dtype=subject.implementation.dtypes,
        biased=(False, True),
        layout=of_rows.LAYOUTS,
        of_weights=(Layout.CONTIGUOUS, Layout.TRANSPOSED),
        backward=(False, True),
    )
    made = [GatedMLPCase(**each) for each in values]
    return design_of(subject, made, _size, call_without_memory, AXES).cases


def _size(case: GatedMLPCase) -> int:
    return torch.Size(case.shape).numel() * case.d_model * case.d_inner


def call_without_memory(case: GatedMLPCase) -> GatedMLPCall:
    """Return a call of a case whose tensors have strides alone."""
    x = torch.empty(*case.shape, case.d_model, dtype=case.dtype, device="meta")
    down = torch.empty(case.d_model, case.d_inner, dtype=case.dtype, device="meta")
    return GatedMLPCall(
        lay_out(x, case.layout).requires_grad_(case.backward),
        lay_out(down, case.of_weights),
        case.biased,
    )
