"""Regimes of a router: classes of calls for which kernels have code of their own."""

from typing import NamedTuple

import torch

from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.operators import regimes as of_rows
from attnspec.conformance.operators.experts.case import RouterCase
from attnspec.conformance.operators.experts.regimes import CHOICE, experts_between
from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.regimes import Axes, axis_of, axis_over, design_of, drawn
from attnspec.spec import Layout
from attnspec.spec.experts import RouterScores


class RouterCall(NamedTuple):
    """The operands of a call that its classes depend on."""

    x: torch.Tensor
    weight: torch.Tensor
    top_k: int
    is_biased: bool

    @property
    def experts(self) -> int:
        """The number of experts."""
        return len(self.weight)


def call_of(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, *, bias: torch.Tensor | None = None
) -> RouterCall:
    """Return what the classes read of the operands of a call."""
    return RouterCall(x, weight, top_k, bias is not None)


def _x(call: RouterCall) -> torch.Tensor:
    return call.x


AXES: Axes = {
    "tokens": axis_of(
        "tokens",
        one=lambda call: len(call.x) == 1,
        _2_to_64=lambda call: 2 <= len(call.x) <= 64,
        over_256=lambda call: len(call.x) > 256,
    ),
    "width": axis_over(of_rows.AXES["width"], _x),
    "experts": axis_of(
        "experts",
        _2=experts_between(2, 2),
        _3_to_7=experts_between(3, 7),
        _8=experts_between(8, 8),
        _60=experts_between(60, 60),
        _64=experts_between(64, 64),
        _128_and_more=experts_between(128, float("inf")),
    ),
    **CHOICE,
    "layout": axis_over(of_rows.AXES["layout"], _x),
    "weights": axis_of(
        "weights",
        contiguous=lambda call: call.weight.is_contiguous(),
        transposed=lambda call: not call.weight.is_contiguous(),
    ),
    "bias": axis_of("bias", no=lambda call: not call.is_biased, yes=lambda call: call.is_biased),
    "dtype": axis_over(of_rows.AXES["dtype"], _x),
    "backward": axis_over(of_rows.AXES["backward"], _x),
}
"""The classes of each axis."""

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
_PLAIN = (
    RouterCase(tokens=5, d_model=16, experts=8, top_k=2, seed=1),
    RouterCase(tokens=1, d_model=33, experts=64, top_k=8, dtype=F32, seed=2),
    RouterCase(tokens=300, d_model=16, experts=5, top_k=3, dtype=F16, seed=3),
    RouterCase(tokens=2, d_model=8, experts=2, top_k=2, dtype=BF16, seed=4),
    RouterCase(tokens=3, d_model=16, experts=160, top_k=6, dtype=F32, backward=True, seed=5),
    RouterCase(tokens=3, d_model=16, experts=60, top_k=1, seed=6),
)
_LAID_OUT = (
    *(_PLAIN[0].but(layout=layout, dtype=F32) for layout in of_rows.LAYOUTS[1:]),
    _PLAIN[0].but(of_weights=Layout.TRANSPOSED),
)
PINNED = (*_PLAIN, *_LAID_OUT, _PLAIN[0].but(biased=True))
"""A case of every class, also for implementations without a bias."""

_EVERY = 1000


def cases(subject: RouterSubject, seed: int) -> tuple[RouterCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    values = drawn(
        1500,
        tokens=(1, 2, 33, 64, 300),
        d_model=(1, 3, 16, 33, 64),
        experts=(2, 3, 5, 8, 60, 64, 128, 160),
        top_k=(1, 2, 3, 4, 8, 10, _EVERY),
        dtype=subject.implementation.dtypes,
        biased=(False, True),
        layout=of_rows.LAYOUTS,
        of_weights=(Layout.CONTIGUOUS, Layout.TRANSPOSED),
        backward=(False, True),
    )
    made = (RouterCase(**each) for each in values)
    possible = (each.but(top_k=min(each.top_k, each.experts)) for each in made)
    # the score of a single choice may be one, whose gradient is zero
    is_constant = subject.profile.scores is RouterScores.SOFTMAX_CHOSEN
    judged = [each for each in possible if not (is_constant and each.backward and each.top_k == 1)]
    return design_of(subject, judged, _size, call_without_memory, AXES).cases


def _size(case: RouterCase) -> int:
    return case.tokens * case.d_model * case.experts


def call_without_memory(case: RouterCase) -> RouterCall:
    """Return a call of a case whose tensors have strides alone."""
    x = torch.empty(case.tokens, case.d_model, dtype=case.dtype, device="meta")
    weight = torch.empty(case.experts, case.d_model, dtype=case.dtype, device="meta")
    return RouterCall(
        lay_out(x, case.layout).requires_grad_(case.backward),
        lay_out(weight, case.of_weights),
        case.top_k,
        case.biased,
    )
