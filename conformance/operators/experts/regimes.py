"""Regimes of experts: classes of calls for which kernels have code of their own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators import regimes as of_rows
from attnspec.conformance.operators.experts.case import Choice, ExpertsCase
from attnspec.conformance.operators.gated_mlp.regimes import widths
from attnspec.conformance.operators.regimes import Axes, axis_of, axis_over, design_of, drawn
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec import Layout


class ExpertsCall(NamedTuple):
    """The operands of a call that its classes depend on."""

    x: torch.Tensor
    indices: torch.Tensor
    down: torch.Tensor
    is_biased: bool
    is_shared: bool

    @property
    def experts(self) -> int:
        """The number of experts."""
        return self.down.shape[0]

    @property
    def top_k(self) -> int:
        """The number of experts of a token."""
        return self.indices.shape[1]

    @property
    def d_inner(self) -> int:
        """The channels of gate and up."""
        return self.down.shape[2]


def call_of(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    *weights: torch.Tensor,
    shared: dict[str, torch.Tensor] | None = None,
    **biases: torch.Tensor,
) -> ExpertsCall:
    """Return what the classes read of the operands of a call."""
    return ExpertsCall(x, indices, weights[-1], bool(biases), shared is not None)


def _x(call: ExpertsCall) -> torch.Tensor:
    return call.x


def experts_between(low: int, high: float) -> Callable[[Any], bool]:
    """Return whether the number of experts of a call lies in a range."""
    return lambda call: low <= call.experts <= high


def _top_k(low: int, high: float) -> Callable[[Any], bool]:
    return lambda call: low <= call.top_k <= high


CHOICE: Axes = {
    "top_k": axis_of(
        "top_k",
        _1=_top_k(1, 1),
        _2=_top_k(2, 2),
        _3_to_7=_top_k(3, 7),
        _8_and_more=_top_k(8, float("inf")),
    ),
    "chosen": axis_of(
        "chosen",
        some=lambda call: call.top_k < call.experts,
        all=lambda call: call.top_k == call.experts,
    ),
}
"""The axes of the choice of experts, on which a router depends as well."""


def _has_group(low: int, high: float) -> Callable[[ExpertsCall], bool]:
    def holds(call: ExpertsCall) -> bool:
        sizes = call.indices.flatten().bincount(minlength=call.experts).tolist()
        return any(low <= size <= high for size in sizes)

    return holds


AXES: Axes = {
    "d_model": axis_of("d_model", **widths(lambda call: call.x.shape[1])),
    "d_inner": axis_of("d_inner", **widths(lambda call: call.d_inner)),
    "group": axis_of(
        "group",
        none=_has_group(0, 0),
        one=_has_group(1, 1),
        _2_to_63=_has_group(2, 63),
        _64_and_more=_has_group(64, float("inf")),
    ),
    "experts": axis_of(
        "experts",
        _1=experts_between(1, 1),
        _2_to_7=experts_between(2, 7),
        _8=experts_between(8, 8),
        _16_and_more=experts_between(16, float("inf")),
    ),
    **CHOICE,
    "layout": axis_over(of_rows.AXES["layout"], _x),
    "weights": axis_of(
        "weights",
        contiguous=lambda call: call.down.is_contiguous(),
        transposed=lambda call: not call.down.is_contiguous(),
    ),
    "bias": axis_of("bias", no=lambda call: not call.is_biased, yes=lambda call: call.is_biased),
    "shared": axis_of(
        "shared", no=lambda call: not call.is_shared, yes=lambda call: call.is_shared
    ),
    "dtype": axis_over(of_rows.AXES["dtype"], _x),
    "backward": axis_over(of_rows.AXES["backward"], _x),
}
"""The classes of each axis. A call has groups of several sizes."""

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
_PLAIN = (
    ExpertsCase(tokens=5, d_model=16, d_inner=33, experts=8, top_k=2, seed=1),
    ExpertsCase(tokens=1, d_model=33, d_inner=5, experts=1, top_k=1, dtype=F32, seed=2),
    ExpertsCase(tokens=3, d_model=64, d_inner=129, experts=16, top_k=8, dtype=F16, seed=3),
    ExpertsCase(tokens=65, d_model=3, d_inner=64, experts=4, top_k=4, dtype=BF16, seed=4),
    ExpertsCase(
        tokens=4, d_model=128, d_inner=8, experts=5, top_k=3, dtype=F32, backward=True, seed=5
    ),
    ExpertsCase(tokens=2, d_model=256, d_inner=8, experts=3, top_k=1, seed=6),
    ExpertsCase(tokens=2, d_model=8, d_inner=257, experts=3, top_k=1, dtype=F32, seed=7),
)
_LAID_OUT = (
    *(_PLAIN[0].but(layout=layout, dtype=F32) for layout in of_rows.LAYOUTS[1:]),
    _PLAIN[0].but(of_weights=Layout.TRANSPOSED),
)
PINNED = (*_PLAIN, *_LAID_OUT, _PLAIN[0].but(biased=True), _PLAIN[0].but(shared=True))
"""A case of every class, also for implementations without biases and shared experts."""

_EVERY = 1000


def cases(subject: OperatorSubject, seed: int) -> tuple[ExpertsCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    sizes = (1, 3, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
    values = drawn(
        2000,
        tokens=(1, 2, 5, 33, 65, 130),
        d_model=sizes,
        d_inner=sizes,
        experts=(1, 2, 3, 5, 8, 16, 32),
        top_k=(1, 2, 3, 4, 8, _EVERY),
        choice=tuple(Choice),
        dtype=subject.implementation.dtypes,
        biased=(False, True),
        shared=(False, True),
        layout=of_rows.LAYOUTS,
        of_weights=(Layout.CONTIGUOUS, Layout.TRANSPOSED),
        backward=(False, True),
    )
    made = (ExpertsCase(**each) for each in values)
    possible = [each.but(top_k=min(each.top_k, each.experts)) for each in made]
    telling = [each for each in possible if not _hides_mistakes(each)]
    return design_of(subject, telling, _size, call_without_memory, AXES).cases


def _hides_mistakes(case: ExpertsCase) -> bool:
    """Return whether all bounds may be wide: 16 bits, long sums, and few elements of the output."""
    return case.dtype.itemsize == 2 and case.d_inner > 128 and case.d_model < 8


def _size(case: ExpertsCase) -> int:
    return max(case.tokens * case.top_k, case.experts) * case.d_model * case.d_inner


def call_without_memory(case: ExpertsCase) -> ExpertsCall:
    """Return a call of a case whose tensors have strides alone."""
    x = torch.empty(case.tokens, case.d_model, dtype=case.dtype, device="meta")
    sizes = (case.experts, case.d_model, case.d_inner)
    down = torch.empty(*sizes, dtype=case.dtype, device="meta")
    return ExpertsCall(
        lay_out(x, case.layout).requires_grad_(case.backward),
        case.indices(),
        lay_out(down, case.of_weights),
        case.biased,
        case.shared,
    )
