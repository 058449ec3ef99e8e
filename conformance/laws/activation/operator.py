"""Laws of ACT for a GELU that is judged on its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators import regimes
from attnspec.conformance.operators.gated_mlp.subject import Allowed, is_within
from attnspec.conformance.operators.gelu.case import Arguments, GELUCase, cases
from attnspec.conformance.operators.gelu.subject import AXES, GELUSubject, expect
from attnspec.reference.activation import ACTIVATIONS, gelu_erf, gelu_tanh
from attnspec.spec import Layout
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (torch.float64, F32, F16, BF16)
PINNED = (
    GELUCase(),
    *(GELUCase(shape=(65,), dtype=dtype, seed=1) for dtype in DTYPES),
    *(GELUCase(shape=(3, 33), dtype=F32, arguments=each, seed=2) for each in Arguments),
    GELUCase(shape=(4099,), dtype=F32, arguments=Arguments.WIDE, seed=3),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)
TELLING = GELUCase(shape=(64,), arguments=Arguments.WIDE)
"""A call in which other functions differ."""

_OTHERS = {
    "x times the logistic function of 1.702 x (quick_gelu)": ACTIVATIONS["quick_gelu"],
    "SiLU": ACTIVATIONS["silu"],
    "ReLU": ACTIVATIONS["relu"],
    "GELU without its half": lambda x: 2 * gelu_erf(x),
    "the tanh form without its cube": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * x))
    ),
    "the tanh form with 0.44715 for 0.044715": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.44715 * x**3)))
    ),
    "the tanh form with 2/pi for its root": lambda x: (
        0.5 * x * (1 + torch.tanh(2 / torch.pi * (x + 0.044715 * x**3)))
    ),
    "the distribution function without its argument": lambda x: 0.5 * (1 + torch.erf(x / 2**0.5)),
    "the identity": lambda x: x,
}
"""Functions that are taken for GELU, by their descriptions."""


@contextmanager
def explaining(subject: GELUSubject, *calls: torch.Tensor) -> Iterator[None]:
    """Name what the result of a call is instead, if a check fails and there is a name for it.

    Raises:
        Explained: naming it.
        Violation: that of the check, if every result is right or none has a name.
    """
    kept = [each.detach().clone() for each in calls]
    try:
        yield
    except Violation as error:
        failed = subject.last_call
        found = next((cause for each in kept if (cause := _cause(subject, each))), "")
        subject.last_call = failed  # the call that the failure shows
        if not found:
            raise
        raise Explained(found, error.mismatch) from None


def _cause(subject: GELUSubject, x: torch.Tensor) -> str:
    """Return what explains a wrong result, if anything does; empty for a right one."""
    profile = subject.profile
    if not _is_wrong(subject, x, profile):
        return ""
    calls = (x, TELLING.but(dtype=x.dtype).draw())
    other = next(form for form in Approximate if form is not profile.approximate)
    name = {Approximate.NONE: "the exact form, by erf", Approximate.TANH: "the tanh form"}[other]
    if all(_fits(subject, each, replace(profile, approximate=other)) for each in calls):
        return f"{name}: the profile says approximate={profile.approximate}"
    for description, function in _OTHERS.items():
        if all(_is_function(subject, each, function) for each in calls):
            return f"this is {description}, not GELU"
    if x.dtype == torch.float64:
        narrowed = replace(profile, float64_precision=Float64Precision.FLOAT32)
        if all(_fits(subject, each, narrowed) for each in calls):
            return "results in float64 have the accuracy of float32"
    if x.dtype.itemsize == 2 and _is_right_in_float32(subject):
        for answer in Working:
            if answer is not profile.working and all(
                _fits(subject, each, replace(profile, working=answer)) for each in calls
            ):
                return f"right only under working={answer}: the profile says {profile.working}"
    return ""


def _result(subject: GELUSubject, x: torch.Tensor) -> torch.Tensor | None:
    """Return the result of a call, or None if it has none; the argument stays as it is."""
    try:
        return subject.call(x.clone()).detach().double()
    except (Raised, Violation):
        return None


def _fits(subject: GELUSubject, x: torch.Tensor, profile: GELUProfile) -> bool:
    """Return whether the result of a call is right under a profile."""
    got, both = _result(subject, x), expect(x, profile)
    return got is not None and is_within(got, Allowed(value=both.out, bound=both.bounds.out))


def _is_right_in_float32(subject: GELUSubject) -> bool:
    """Return whether float32 is not claimed, or right on every kind of arguments."""
    wide = torch.float32
    return wide not in subject.implementation.dtypes or all(
        _fits(subject, TELLING.but(dtype=wide, arguments=each).draw(), subject.profile)
        for each in Arguments
    )


def _is_wrong(subject: GELUSubject, x: torch.Tensor, profile: GELUProfile) -> bool:
    return _result(subject, x) is not None and not _fits(subject, x, profile)


def _is_function(subject: GELUSubject, x: torch.Tensor, function: object) -> bool:
    """Return whether the result of a call is another function, within the bound of GELU."""
    assert callable(function)
    got, both = _result(subject, x), expect(x, subject.profile)
    value = function(x.detach().double())
    # the functions have twice the slope of GELU at most, and as many roundings
    rounding = 8 * torch.finfo(x.dtype).eps * value.abs()
    return got is not None and is_within(
        got, Allowed(value=value, bound=2 * both.bounds.out + rounding)
    )


def _check(subject: GELUSubject, case: GELUCase, message: str) -> torch.Tensor:
    """Check a case against the definition, and name what a wrong result is instead."""
    x = case.draw()
    with explaining(subject, x):
        return subject.judge(x, message)


@law("ACT-2", pinned=WIDE, explore=cases, cost=2.0)
def law_a_gelu_minus_its_mirror_image_is_the_argument(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-2: gelu(x) − gelu(−x) = x."""
    x = case.draw()
    with explaining(subject, x, -x):
        check_close(
            subject.call(x).double() - subject.call(-x).double(),
            x.double(),
            subject.expect(x).bounds.out + subject.expect(-x).bounds.out,
            what="gelu(x) - gelu(-x)",
            message="gelu(x) - gelu(-x) is not x",
            axes=AXES,
        )


@law(
    "ACT-3",
    pinned=tuple(
        GELUCase(shape=(8,), dtype=dtype, arguments=arguments)
        for arguments in (Arguments.FAR, Arguments.LARGE)
        for dtype in DTYPES
    ),
    explore=lambda subject: cases(subject, arguments=Arguments.FAR),
)
def law_a_gelu_tends_to_zero_and_to_its_argument(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-3: far below zero gelu(x) is 0, far above it is x."""
    drawn = case.draw()
    x = torch.where(drawn.abs() < 10, torch.full_like(drawn, 10), drawn)
    with explaining(subject, x):
        check_close(
            subject.call(x),
            x.double().clamp(min=0),
            subject.expect(x).bounds.out,
            what="out",
            message="gelu(x) is not 0 far below zero, or not x far above it",
            axes=AXES,
        )


@law("ACT-6", pinned=PINNED, explore=cases)
def law_a_gelu_is_of_the_declared_form(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-6: each element is x/2·(1 + erf(x/√2)), or the tanh form if that is declared."""
    _check(
        subject, case, f"the function is not GELU with approximate={subject.profile.approximate}"
    )


@law(
    "ACT-4",
    "ACT-6",
    pinned=tuple(
        GELUCase(shape=(6,), dtype=dtype, arguments=Arguments.PEAKS) for dtype in DTYPES[:2]
    ),
)
def law_the_two_forms_of_gelu_are_told_apart(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-4: where the two forms differ most, the result is of the declared one."""
    x = case.draw()
    exact = x.double()
    erf, tanh = gelu_erf(exact), gelu_tanh(exact)
    distance = tanh - erf if subject.profile.approximate is Approximate.TANH else 0 * erf
    with explaining(subject, x):
        check_close(
            subject.call(x).double() - erf,
            distance,
            subject.expect(x).bounds.out,
            what="distance from the exact form",
            message=f"the form is not the declared one, {subject.profile.approximate}",
            axes=AXES,
        )


@law(
    "ACT-7",
    pinned=tuple(
        GELUCase(shape=(257,), dtype=dtype, arguments=arguments, seed=1)
        for dtype in (F16, BF16)
        for arguments in Arguments
    ),
    explore=lambda subject: cases(subject, arguments=Arguments.WIDE),
)
def law_a_gelu_is_computed_in_float32_or_wider(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-7: a result of 16 bits is rounded once, unless every step is declared to be."""
    _check(subject, case, "steps are rounded, or overflow, in the storage type")


@law(
    "ACT-8",
    pinned=(
        *(
            GELUCase(shape=shape, layout=layout, dtype=F32, seed=1)
            for shape in ((2, 3, 5), (4, 9))
            for layout in (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
        ),
        *(GELUCase(shape=shape, dtype=F32, seed=1) for shape in ((), (1,), (0,), (3, 0), (17,))),
    ),
    explore=cases,
)
def law_a_gelu_reads_any_shape_by_its_strides(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-8: a tensor of any shape and strides is read, and not written to."""
    x = case.draw()
    before = x.clone()
    with explaining(subject, x):
        subject.judge(x, f"a tensor of shape {case.shape} that lies {case.layout} is read wrongly")
    if not torch.equal(x, before):
        raise Violation("input is written to")


@law("ACT-9", pinned=tuple(GELUCase(shape=(2, 9), dtype=each) for each in DTYPES))
def law_a_gelu_keeps_a_nan_in_its_element(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-9: a NaN gives a NaN in its place, and nowhere else."""
    numbers = case.draw()
    x = numbers.clone()
    x[0, 4] = torch.nan
    got = subject.call(x)
    with explaining(subject, numbers):
        if not bool(got[0, 4].isnan()):
            raise Violation("a NaN gives a number")
        if int(got.isnan().sum()) > 1:
            raise Violation("a NaN spreads to other elements")


@law(
    "ACT-10",
    pinned=tuple(case.but(backward=True) for case in PINNED),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_the_gradient_of_a_gelu_equals_the_definition(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-10: the gradient is the incoming one times the derivative of the declared form."""
    _check_gradient(subject, case)


def _rows_of(*, shape: tuple[int, ...], channels: int, **others: Any) -> GELUCase:
    """Return a case whose last axis has a number of channels."""
    return GELUCase(shape=(*shape, channels), **others)


def _cases_of_design(subject: GELUSubject, seed: int) -> tuple[GELUCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    claimed = subject.implementation
    chosen = regimes.design(tuple(claimed.dtypes), has_gradients=claimed.has_gradients)
    regimes.note_design(chosen)
    return tuple(_rows_of(**case) for case in chosen.cases)


@law("ACT-11", pinned=regimes.pinned(_rows_of, DTYPES), wide=_cases_of_design)
def law_a_gelu_is_right_in_every_two_regimes(subject: GELUSubject, case: GELUCase) -> None:
    """ACT-11: in any two classes of sizes, strides, types and passes, results are in bounds."""
    x = case.draw()
    expected = subject.expect(x)
    _check(subject, case, "a GELU of this size, layout or type differs from the definition")
    if case.backward:
        _check_gradient(subject, case)
    regimes.note_call(x.requires_grad_(case.backward), expected.out, expected.bounds.out)


def _check_gradient(subject: GELUSubject, case: GELUCase) -> None:
    x, grad_out = case.draw(), case.draw_gradient()
    expected = subject.expect(x, grad_out)
    assert expected.grad is not None
    assert expected.bounds.input is not None
    with explaining(subject, x):
        _, got = subject.gradients(x, grad_out)
        check_close(
            got,
            expected.grad,
            expected.bounds.input,
            what="gradient of input",
            message="the gradient differs from the derivative of the declared form",
            axes=AXES,
        )
