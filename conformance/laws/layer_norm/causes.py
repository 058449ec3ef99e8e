"""The causes of wrong results of a LayerNorm: the formulas that give them instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.operators.gated_mlp.subject import Allowed, is_within
from attnspec.conformance.operators.layer_norm.case import LayerNormCase, Rows
from attnspec.conformance.operators.layer_norm.subject import (
    LayerNormSubject,
    Operands,
    expect,
)
from attnspec.spec.layer_norm import LayerNormProfile
from attnspec.spec.profiles import Float64Precision

Call = tuple[Operands, float]
"""Rows, gain and bias of a call, and its epsilon."""

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
"""The epsilons that libraries have as defaults."""

TELLING = (
    LayerNormCase(shape=(3,), channels=16, epsilon=0.5),
    LayerNormCase(shape=(3,), channels=16, rows=Rows.SMALL),
    LayerNormCase(shape=(3,), channels=16, rows=Rows.UNLIKE),
    LayerNormCase(shape=(3,), channels=16, rows=Rows.OFFSET),
)
"""Calls on which formulas differ that are alike on others."""


@contextmanager
def explaining(subject: LayerNormSubject, *calls: Call) -> Iterator[None]:
    """Name what the result of a call is instead, if a check fails and there is a name for it.

    Args:
        subject: the subject.
        calls: those that the check compares.

    Raises:
        Explained: naming it.
        Violation: that of the check, if every result is right or none has a name.
    """
    kept = [(_copied(operands), epsilon) for operands, epsilon in calls]
    try:
        yield
    except Violation as error:
        failed = subject.last_call
        found = next((cause for each in kept if (cause := _cause(subject, each))), "")
        subject.last_call = failed  # the call that the failure shows
        if not found:
            raise
        raise Explained(found, error.mismatch) from None


def _copied(operands: Operands) -> Operands:
    x, weight, bias = (each.detach().clone() for each in operands)
    return x, weight, bias


def _cause(subject: LayerNormSubject, call: Call) -> str:
    """Return what explains a wrong result, if anything does; empty for a right one.

    Formulas that no call tells apart are all named.
    """
    got, expected = _result(subject, call), _expected(call, subject.profile)
    if got is None or is_within(got, expected):
        return ""
    dtype, equal = call[0][0].dtype, _are_equal(call[0][0])
    if bool(equal.any()) and torch.equal(got.isnan().all(-1), equal):
        return "a row of equal numbers gives NaN: epsilon is not added"
    if found := " or ".join(_fitting(subject, call, got, expected)):
        return found
    if _is_right_once_centred(subject, call):
        wrong = "rows far from zero are normalized wrongly, and right once their mean is subtracted"
        return f"{wrong}: is the variance the mean of squares less the square of the mean?"
    for name, profile in _other_roundings(subject, dtype):
        if is_within(got, _expected(call, profile)):
            return name
    if dtype.itemsize == 2 and _is_right_in_float32(subject, call):
        named = str(dtype).removeprefix("torch.")
        wrong = f"mean or variance is wrong in {named} and right in float32"
        return f"{wrong}: compute both in float32"
    return ""


def _result(subject: LayerNormSubject, call: Call) -> torch.Tensor | None:
    """Return the result of a call, or None if it has none; the operands stay as they are."""
    operands, epsilon = call
    try:
        return subject.call(_copied(operands), epsilon).detach().double()
    except (Raised, Violation):
        return None


def _expected(call: Call, profile: LayerNormProfile) -> Allowed:
    both = expect(*call, profile)
    return Allowed(value=both.out, bound=both.bounds.out)


def _fitting(
    subject: LayerNormSubject, call: Call, got: torch.Tensor, expected: Allowed
) -> list[str]:
    """Return the formulas that give a wrong result, and that no other call refutes."""
    same = Allowed(value=expected.value, bound=expected.bound / 16)
    fitting = [
        name
        for name, each in _formulas(call, subject.profile).items()
        # one that is the definition in this call explains nothing, nor does one of no precision
        if bool(each.bound.isfinite().all())
        and is_within(got, each)
        and not is_within(each.value, same)
    ]
    for case in TELLING if fitting else ():
        other = (case.but(dtype=call[0][0].dtype).draw(), case.epsilon)
        result = _result(subject, other)
        if result is not None and not is_within(result, _expected(other, subject.profile)):
            formulas = _formulas(other, subject.profile)
            fitting = [name for name in fitting if is_within(result, formulas[name])]
    return fitting


def _formulas(call: Call, profile: LayerNormProfile) -> dict[str, Allowed]:
    """Return the results that other formulas allow, by their descriptions."""
    (x, weight, bias), epsilon = call
    rows, gain, shift = (each.detach().double() for each in (x, weight, bias))
    count = x.shape[-1]

    def of(gain: torch.Tensor, shift: torch.Tensor, eps: float) -> Allowed:
        return _expected(((x, gain, shift), eps), profile)

    mean = rows.mean(-1, keepdim=True)
    variance = (rows - mean).square().mean(-1, keepdim=True)
    least = torch.finfo(torch.float64).tiny
    without = of(gain, torch.zeros_like(shift), least)
    ones, zeros = torch.ones_like(gain), torch.zeros_like(shift)

    def over(denominator: torch.Tensor) -> Allowed:
        """Return rows about their mean over another denominator, times gain plus bias."""
        ratio = torch.where(variance == 0, 0, variance.sqrt() / denominator)
        bound = torch.where(ratio == 0, 0, without.bound * ratio)
        # the bias is added at the size of the sum
        size = (without.value * ratio).abs() + shift.abs()
        rounding = torch.finfo(x.dtype).eps * size
        return Allowed(value=without.value * ratio + shift, bound=bound + 2 * rounding)

    square = rows.square().mean(-1, keepdim=True)
    moved = mean / (variance + epsilon).sqrt() * gain
    centred = of(gain, shift, epsilon)
    uncentred = gain * rows / (square + epsilon).sqrt() + shift
    formulas = {
        "the gain is forgotten": of(ones, shift, epsilon),
        "the bias is forgotten": of(gain, zeros, epsilon),
        "the bias is added before the gain": of(gain, gain * shift, epsilon),
        "the bias is subtracted": of(gain, -shift, epsilon),
        "the gain is 1 + g": of(1 + gain, shift, epsilon),
        "the root is of the sum of squares, not of their mean": of(
            gain / count**0.5, shift, epsilon / count
        ),
        "epsilon is not added": over(variance.sqrt().clamp(min=least)),
        "epsilon is added outside the root": over(variance.sqrt() + epsilon),
        "the variance is that of all rows": over(
            (variance.mean() + epsilon).sqrt().expand_as(variance)
        ),
        "the mean is not subtracted from the row": Allowed(
            value=centred.value + moved, bound=2 * centred.bound
        ),
        "the mean is not subtracted: this is RMSNorm plus a bias": Allowed(
            value=uncentred, bound=centred.bound + 2 * torch.finfo(x.dtype).eps * uncentred.abs()
        ),
    }
    if count > 1:
        share = (count - 1) / count
        formulas["the variance is divided by one less than the channels"] = of(
            gain * share**0.5, shift, epsilon * share
        )
    for constant in EPSILONS:
        if constant != epsilon:
            formulas[f"epsilon is {constant:g} whatever the caller says"] = of(
                gain, shift, constant
            )
    return formulas


def _is_right_in_float32(subject: LayerNormSubject, call: Call) -> bool:
    """Return whether the same call in float32 is claimed and right."""
    (x, weight, bias), epsilon = call
    if torch.float32 not in subject.implementation.dtypes:
        return False
    wide = ((x.float(), weight.float(), bias.float()), epsilon)
    got = _result(subject, wide)
    return got is not None and is_within(got, _expected(wide, subject.profile))


def _other_roundings(
    subject: LayerNormSubject, dtype: torch.dtype
) -> Iterator[tuple[str, LayerNormProfile]]:
    """Return profiles under which other calls are right and not under the declared one."""
    profile = subject.profile
    if dtype == torch.float64:
        narrowed = replace(profile, float64_precision=Float64Precision.FLOAT32)
        if _are_right(subject, dtype, narrowed) and not _are_right(subject, dtype, profile):
            yield "results in float64 have the accuracy of float32", narrowed
    wide = torch.float32
    if dtype.itemsize > 2 or not (
        wide not in subject.implementation.dtypes or _are_right(subject, wide, profile)
    ):
        return
    for question in ("rounding", "working"):
        declared = getattr(profile, question)
        for answer in type(declared):
            other = replace(profile, **{question: answer})
            if answer is not declared and _are_right(subject, dtype, other):
                yield f"right only under {question}={answer}: the profile says {declared}", other


def _are_right(subject: LayerNormSubject, dtype: torch.dtype, profile: LayerNormProfile) -> bool:
    """Return whether the telling calls of a storage type are right under a profile."""
    for case in TELLING:
        call = (case.but(dtype=dtype).draw(), case.epsilon)
        got = _result(subject, call)
        if got is None or not is_within(got, _expected(call, profile)):
            return False
    return True


def _are_equal(x: torch.Tensor) -> torch.Tensor:
    """Return which rows have one number in all channels."""
    return (x == x[..., :1]).all(-1)


def _is_right_once_centred(subject: LayerNormSubject, call: Call) -> bool:
    """Return whether rows far from zero are wrong, and right without their mean."""
    (x, weight, bias), epsilon = call
    rows = x.double()
    mean = rows.mean(-1, keepdim=True)
    centred = rows - mean
    if bool((mean.abs() < 8 * centred.square().mean(-1, keepdim=True).sqrt()).all()):
        return False
    near = ((centred.to(x.dtype), weight, bias), epsilon)
    got = _result(subject, near)
    return got is not None and is_within(got, _expected(near, subject.profile))
