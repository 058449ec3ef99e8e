"""The causes of wrong results of an RMSNorm: the formulas that give them instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from attnspec.conformance.comparison.violation import Explained, Raised, Violation
from attnspec.conformance.operators.gated_mlp.subject import Allowed, is_within
from attnspec.conformance.operators.rms_norm.bounds import bounds, roundoff_of
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows
from attnspec.conformance.operators.rms_norm.subject import RMSNormSubject, expect
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormProfile

Operands = tuple[torch.Tensor, torch.Tensor, float]
"""Rows, learned numbers and epsilon of a call."""

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
"""The epsilons that libraries have as defaults."""

TELLING = (
    RMSNormCase(shape=(3,), channels=16, epsilon=0.5),
    RMSNormCase(shape=(3,), channels=16, rows=Rows.SMALL),
    RMSNormCase(shape=(3,), channels=16, rows=Rows.UNLIKE),
)
"""Calls on which formulas differ that are alike on others."""

WIDE = 8
"""The least number of channels in which the factor of a row differs from other mistakes."""


@contextmanager
def explaining(subject: RMSNormSubject, *calls: Operands) -> Iterator[None]:
    """Name what the result of a call is instead, if a check fails and there is a name for it.

    Args:
        subject: the subject.
        calls: those that the check compares.

    Raises:
        Explained: naming it.
        Violation: that of the check, if every result is right or none has a name.
    """
    kept = [(x.detach().clone(), weight.detach().clone(), eps) for x, weight, eps in calls]
    try:
        yield
    except Violation as error:
        failed = subject.last_call
        found = next((cause for each in kept if (cause := _cause(subject, each))), "")
        subject.last_call = failed  # the call that the failure shows
        if not found:
            raise
        raise Explained(found, error.mismatch) from None


def _cause(subject: RMSNormSubject, call: Operands) -> str:
    """Return what explains a wrong result, if anything does; empty for a right one.

    Formulas that no call tells apart are all named.
    """
    got, expected = _result(subject, call), _expected(call, subject.profile)
    if got is None or is_within(got, expected):
        return ""
    x = call[0]
    if _has_overflown(got, x):
        return f"the sum of squares overflows in {_named(x.dtype)}: add squares in float32"
    if found := " or ".join(_fitting(subject, call, got, expected)):
        return found
    if found := _factor_of_rows(subject, call, got, expected):
        return found
    for name, profile in _other_roundings(x.dtype, subject.profile):
        if is_within(got, _expected(call, profile)):
            return name
    return ""


def _result(subject: RMSNormSubject, call: Operands) -> torch.Tensor | None:
    """Return the result of a call, or None if it has none; the operands stay as they are."""
    x, weight, epsilon = call
    try:
        return subject.call(x.clone(), weight.clone(), epsilon).detach().double()
    except (Raised, Violation):
        return None


def _expected(call: Operands, profile: RMSNormProfile) -> Allowed:
    both = expect(*call, profile)
    return Allowed(value=both.out, bound=both.bounds.out)


def _fitting(
    subject: RMSNormSubject, call: Operands, got: torch.Tensor, expected: Allowed
) -> list[str]:
    """Return the formulas that give a wrong result, and that no other call refutes."""
    same = Allowed(value=expected.value, bound=expected.bound / 16)
    fitting = [
        name
        for name, each in _formulas(call, subject.profile).items()
        # one that is the definition in this call explains nothing
        if is_within(got, each) and not is_within(each.value, same)
    ]
    for case in TELLING if fitting else ():
        other = (*case.but(dtype=call[0].dtype).draw(subject.profile.gain), case.epsilon)
        result = _result(subject, other)
        if result is not None and not is_within(result, _expected(other, subject.profile)):
            formulas = _formulas(other, subject.profile)
            fitting = [
                name
                for name in fitting
                if name not in formulas or is_within(result, formulas[name])
            ]
    return fitting


def _has_overflown(got: torch.Tensor, x: torch.Tensor) -> bool:
    """Return whether rows are lost, and just some whose sum of squares leaves the storage type."""
    if x.dtype != torch.float16:
        return False  # the others have the range of float32, beyond which nothing is promised
    total = x.detach().double().square().sum(-1)
    beyond = total > torch.finfo(x.dtype).max
    lost = (got == 0).all(-1) | ~got.isfinite().all(-1)
    return bool(lost.any()) and bool(beyond[lost & (total > 0)].all())


def _formulas(call: Operands, profile: RMSNormProfile) -> dict[str, Allowed]:
    """Return the results that other formulas allow, by their descriptions."""
    x, weight, epsilon = call
    rows, learned, count = x.detach().double(), weight.detach().double(), x.shape[-1]
    is_one_plus = profile.gain is Gain.ONE_PLUS
    gain = 1 + learned if is_one_plus else learned
    factor = replace(profile, gain=Gain.FACTOR)

    def of(gain: torch.Tensor, eps: float) -> Allowed:
        return _expected((x, gain, eps), factor)

    # without epsilon, and times the ratio of the roots
    plain, tiny = of(gain, 0.0), roundoff_of(x.dtype, profile).tiny
    mean_square = rows.square().mean(-1, keepdim=True)
    root = mean_square.sqrt()

    def over(denominator: torch.Tensor) -> Allowed:
        ratio = torch.where(root == 0, 0, root / denominator)
        value = torch.where(root == 0, 0, plain.value * ratio)
        bound = torch.where(root == 0, 0, plain.bound * ratio)
        return Allowed(value=value, bound=bound + tiny)

    formulas = {
        f"the gain is {'g' if is_one_plus else '1 + g'}: the profile says {profile.gain}": of(
            learned if is_one_plus else 1 + learned, epsilon
        ),
        "the gain is forgotten": of(torch.ones_like(learned), epsilon),
        "the root is of the sum of squares, not of their mean": of(
            gain / count**0.5, epsilon / count
        ),
        "the mean is subtracted": _centred(call, gain, factor),
        "the mean square is that of all rows": over(
            (mean_square.mean() + epsilon).sqrt().expand_as(root)
        ),
        "epsilon is not added": over(root),
        "epsilon is added outside the root": over(root + epsilon),
        "epsilon is the least mean square, and not added": over(
            mean_square.clamp(min=epsilon).sqrt()
        ),
    }
    for constant in EPSILONS:
        if constant != epsilon:
            formulas[f"epsilon is {constant:g} whatever the caller says"] = of(gain, constant)
    if x.dtype.itemsize == 2:
        rounded = x.detach().square().double().mean(-1, keepdim=True)
        formulas[f"squares are rounded to {_named(x.dtype)}"] = over((rounded + epsilon).sqrt())
    return formulas


def _centred(call: Operands, gain: torch.Tensor, profile: RMSNormProfile) -> Allowed:
    """Return the results of a LayerNorm without bias."""
    x, _, epsilon = call
    unit, rows = roundoff_of(x.dtype, profile), x.detach().double()
    mean = rows.mean(-1, keepdim=True)
    centred = rows - mean
    root = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    normalized = centred / root
    # the mean is a sum that rounds, and so does each difference
    rounding = unit.gamma(rows.shape[-1] + 2) * rows.abs().mean(-1, keepdim=True)
    rounding = rounding + unit.step * (centred.abs() + mean.abs())
    error = gain.abs() * rounding / root * (1 + normalized.abs())
    bound = bounds(centred, gain, epsilon, profile, unit=unit).out
    return Allowed(value=gain * normalized, bound=bound + 2 * error)


def _factor_of_rows(
    subject: RMSNormSubject, call: Operands, got: torch.Tensor, expected: Allowed
) -> str:
    """Name a root that is wrong: then each row is a multiple of the right one."""
    x, value = call[0], expected.value
    if x.shape[-1] < WIDE or not bool(got.isfinite().all() & value.isfinite().all()):
        return ""
    squares = value.square().sum(-1, keepdim=True)
    factors = torch.where(squares == 0, 1, (got * value).sum(-1, keepdim=True) / squares)
    allowed = 2 * expected.bound * factors.abs().clamp(min=1)
    fits = is_within(got, Allowed(value=factors * value, bound=allowed))
    if not fits or is_within(factors * value, expected):
        return ""
    if x.dtype.itemsize == 2 and _is_right_in_float32(subject, call):
        wrong = f"the mean square is wrong in {_named(x.dtype)} and right in float32"
        return f"{wrong}: add squares in float32"
    return "rows are divided by a root that is not theirs"


def _is_right_in_float32(subject: RMSNormSubject, call: Operands) -> bool:
    """Return whether the same call in float32 is claimed and right."""
    x, weight, epsilon = call
    if torch.float32 not in subject.implementation.dtypes:
        return False
    wide = (x.float(), weight.float(), epsilon)
    got = _result(subject, wide)
    return got is not None and is_within(got, _expected(wide, subject.profile))


def _other_roundings(
    dtype: torch.dtype, profile: RMSNormProfile
) -> Iterator[tuple[str, RMSNormProfile]]:
    """Return profiles that round otherwise, each by its description."""
    if dtype == torch.float64:
        narrowed = replace(profile, float64_precision=Float64Precision.FLOAT32)
        yield "results in float64 have the accuracy of float32", narrowed
    for question in ("rounding", "working") if dtype.itemsize == 2 else ():
        declared = getattr(profile, question)
        for answer in type(declared):
            if answer is not declared:
                yield (
                    f"right only under {question}={answer}: the profile says {declared}",
                    replace(profile, **{question: answer}),
                )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
