"""Laws of RMS: the definition, epsilon, the gain, rows of their own, and gradients."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.rms_norm.causes import explaining
from attnspec.conformance.operators import regimes
from attnspec.conformance.operators.rms_norm.case import RMSNormCase, Rows, cases
from attnspec.conformance.operators.rms_norm.subject import AXES, RMSNormSubject
from attnspec.spec import Layout
from attnspec.spec.rms_norm import Gain

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (torch.float64, F32, F16, BF16)
PINNED = (
    RMSNormCase(shape=(1,), channels=1),
    RMSNormCase(),
    RMSNormCase(shape=(2, 3), channels=5, epsilon=0.5, seed=1),
    *(RMSNormCase(shape=(3,), channels=33, dtype=dtype, seed=2) for dtype in DTYPES),
    *(RMSNormCase(shape=(4,), channels=64, rows=rows, dtype=F32, seed=3) for rows in Rows),
    RMSNormCase(shape=(2,), channels=4096, dtype=F32, seed=4),
    RMSNormCase(shape=(2,), channels=768, dtype=BF16, rows=Rows.OUTLIER, seed=5),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _wide(subject: RMSNormSubject, **fixed: object) -> st.SearchStrategy[RMSNormCase]:
    return cases(subject, dtype=subject.widest, **fixed)


@law("RMS-1", pinned=PINNED, explore=cases)
def law_rms_norm_equals_the_definition(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-1: each channel is its gain times the channel over the root of the mean square."""
    _check(subject, case, "an RMSNorm differs from gain times x over its root mean square")


def _check(subject: RMSNormSubject, case: RMSNormCase, message: str) -> torch.Tensor:
    """Check a case against the definition, and name what a wrong result is instead."""
    x, weight = case.draw(subject.profile.gain)
    with explaining(subject, (x, weight, case.epsilon)):
        return subject.judge(x, weight, case.epsilon, message)


@law("RMS-2", pinned=WIDE, explore=_wide)
def law_normalized_rows_have_root_mean_square_one(
    subject: RMSNormSubject, case: RMSNormCase
) -> None:
    """RMS-2: with a gain of one, the mean square of a row of mean square m is m / (m + epsilon)."""
    x, weight = case.draw(subject.profile.gain)
    neutral = torch.zeros_like if subject.profile.gain is Gain.ONE_PLUS else torch.ones_like
    weight = neutral(weight)
    expected = subject.expect(x, weight, case.epsilon)
    square = x.double().square().mean(-1)
    with explaining(subject, (x, weight, case.epsilon)):
        got = subject.call(x, weight, case.epsilon).double()
        check_close(
            got.square().mean(-1),
            square / (square + case.epsilon),
            (expected.bounds.out * (2 * expected.out.abs() + expected.bounds.out)).mean(-1),
            what="mean square",
            message="the root mean square of a normalized row is not one",
            axes=AXES[:-1],
        )


@law("RMS-3", pinned=WIDE, explore=_wide, cost=2.0)
def law_scaled_rows_are_normalized_alike(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-3: rows and the root of epsilon, both times a power of two, give the same result."""
    x, weight = case.draw(subject.profile.gain)
    for power in (-3, 5):
        scaled, epsilon = x * 2.0**power, case.epsilon * 4.0**power
        if not torch.equal(scaled * 2.0**-power, x):
            continue  # numbers of 16 bits leave their range
        with explaining(subject, (x, weight, case.epsilon), (scaled, weight, epsilon)):
            check_close(
                subject.call(scaled, weight, epsilon).double(),
                subject.call(x, weight, case.epsilon).double(),
                subject.expect(scaled, weight, epsilon).bounds.out
                + subject.expect(x, weight, case.epsilon).bounds.out,
                what="out of scaled rows",
                message="a row times a power of two is normalized differently",
                axes=AXES,
            )


@law(
    "RMS-4",
    pinned=(
        *(RMSNormCase(rows=Rows.SMALL, dtype=dtype) for dtype in (torch.float64, F32)),
        RMSNormCase(epsilon=0.5, channels=8, seed=1),
        RMSNormCase(rows=Rows.ZERO, channels=3, seed=2),
    ),
    explore=lambda subject: _wide(subject, rows=Rows.SMALL),
)
def law_epsilon_is_added_inside_the_root(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-4: epsilon is added to the mean square, inside the root, so that a zero row is zero."""
    got = _check(subject, case, "epsilon is not added to the mean square, inside the root")
    if case.rows is Rows.ZERO and bool(got.flatten(0, -2)[0].ne(0).any()):
        raise Violation("a row of zeros is not normalized to zeros")


@law(
    "RMS-5",
    pinned=tuple(RMSNormCase(rows=Rows.OFFSET, channels=8, dtype=dtype) for dtype in DTYPES),
    explore=lambda subject: cases(subject, rows=Rows.OFFSET),
)
def law_no_mean_is_subtracted(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-5: the mean of a row stays in it, unlike LayerNorm's."""
    _check(subject, case, "rows far from zero are normalized wrongly: is their mean subtracted?")


@law("RMS-6", pinned=WIDE, explore=_wide)
def law_the_gain_is_the_declared_one(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-6: a learned number g multiplies its channel by g, or by 1 + g, as declared."""
    x, weight = case.draw(subject.profile.gain)
    # a gain far from one tells the two apart, and every channel has another
    numbers = torch.arange(1, case.channels + 1, dtype=torch.float64) / case.channels
    weight = numbers.to(weight.dtype)
    with explaining(subject, (x, weight, case.epsilon)):
        subject.judge(x, weight, case.epsilon, "the gain of a channel is not the declared one")


@law(
    "RMS-7",
    pinned=tuple(
        RMSNormCase(shape=(3,), channels=channels, dtype=dtype, rows=rows, seed=1)
        for dtype in (F16, BF16)
        for channels in (64, 4096)
        for rows in (Rows.NORMAL, Rows.LARGE)
    ),
    explore=lambda subject: cases(subject, rows=Rows.LARGE),
)
def law_squares_are_added_in_float32_or_wider(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-7: squares beyond the storage type do not overflow, and many are added in float32."""
    _check(subject, case, "squares are rounded, or overflow, in the storage type")


@law("RMS-8", pinned=PINNED[1:], explore=cases, cost=2.0)
def law_rms_norm_treats_rows_independently(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-8: a row of the output does not depend on other rows."""
    x, weight = case.draw(subject.profile.gain)
    rows = x.reshape(-1, case.channels)
    changed = rows * 8
    changed[::2] = rows[::2]
    other = changed.view(x.shape)
    both = [(each, weight, case.epsilon) for each in (x, other)]
    bounds = [subject.expect(*each).bounds.out.flatten(0, -2) for each in both]
    with explaining(subject, *both):
        first, second = (subject.call(*each).double().flatten(0, -2) for each in both)
        check_close(
            second[::2],
            first[::2],
            bounds[0][::2] + bounds[1][::2],
            what="out of the unchanged rows",
            message="other rows change the result of a row",
            axes=AXES,
        )


@law(
    "RMS-9",
    pinned=tuple(
        RMSNormCase(shape=(2, 3), channels=8, layout=layout, dtype=F32, seed=1)
        for layout in (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
    ),
    explore=cases,
)
def law_rows_are_read_by_their_strides_and_stay_as_they_are(
    subject: RMSNormSubject, case: RMSNormCase
) -> None:
    """RMS-9: rows in any strides are read, and neither rows nor gain are written to."""
    x, weight = case.draw(subject.profile.gain)
    before = x.clone(), weight.clone()
    with explaining(subject, (x, weight, case.epsilon)):
        subject.judge(x, weight, case.epsilon, f"rows that lie {case.layout} are read wrongly")
    for name, now, then in zip(("input", "weight"), (x, weight), before, strict=True):
        if not torch.equal(now, then):
            raise Violation(f"{name} is written to")


@law(
    "RMS-10",
    pinned=(
        RMSNormCase(shape=(2, 3, 4), channels=8, rows=Rows.UNLIKE),
        RMSNormCase(shape=(2, 3, 4), channels=8, rows=Rows.UNLIKE, dtype=F32),
        RMSNormCase(shape=(1, 2, 5), channels=64, rows=Rows.UNLIKE, dtype=F32),
        RMSNormCase(shape=(), channels=8),
    ),
)
def law_any_axes_before_the_channels_are_rows(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-10: heads of queries and keys are rows: each is normalized over its channels alone."""
    _check(subject, case, f"with {len(case.shape)} axes before the channels, rows are wrong")


@law("RMS-11", pinned=tuple(RMSNormCase(shape=(3,), channels=8, dtype=each) for each in DTYPES))
def law_a_nan_stays_in_its_row(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-11: a NaN makes its whole row NaN, and no other row."""
    numbers, weight = case.draw(subject.profile.gain)
    x = numbers.clone()
    x[1, case.channels // 2] = torch.nan
    got = subject.call(x, weight, case.epsilon)
    with explaining(subject, (numbers, weight, case.epsilon)):
        if not bool(got[1].isnan().all()):
            raise Violation("a row with a NaN has numbers")
        if bool(got[::2].isnan().any()):
            raise Violation("a NaN spreads to other rows")


@law(
    "RMS-12",
    pinned=tuple(case.but(backward=True) for case in PINNED),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_rms_norm_equal_the_definition(
    subject: RMSNormSubject, case: RMSNormCase
) -> None:
    """RMS-12: the gradients of rows and gain are those of the definition."""
    _check_gradients(subject, case)


def _check_gradients(subject: RMSNormSubject, case: RMSNormCase) -> None:
    x, weight = case.draw(subject.profile.gain)
    grad_out = case.draw_gradient()
    expected = subject.expect(x, weight, case.epsilon, grad_out)
    with explaining(subject, (x, weight, case.epsilon)):
        _, got = subject.gradients(x, weight, case.epsilon, grad_out)
        for name, value in expected.grads.items():
            check_close(
                got[name],
                value,
                getattr(expected.bounds, name),
                what=f"gradient of {name}",
                message=f"the gradient of {name} differs from that of the definition",
                axes=AXES,
            )


def _cases_of_design(subject: RMSNormSubject, seed: int) -> tuple[RMSNormCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    claimed = subject.implementation
    chosen = regimes.design(tuple(claimed.dtypes), has_gradients=claimed.has_gradients)
    regimes.note_design(chosen)
    return tuple(RMSNormCase(**case) for case in chosen.cases)


@law("RMS-14", pinned=regimes.pinned(RMSNormCase, DTYPES), wide=_cases_of_design)
def law_rms_norm_is_right_in_every_two_regimes(subject: RMSNormSubject, case: RMSNormCase) -> None:
    """RMS-14: in any two classes of sizes, strides, types and passes, results are in bounds."""
    x, weight = case.draw(subject.profile.gain)
    expected = subject.expect(x, weight, case.epsilon)
    _check(subject, case, "an RMSNorm of this size, layout or type differs from the definition")
    if case.backward:
        _check_gradients(subject, case)
    regimes.note_call(x.requires_grad_(case.backward), expected.out, expected.bounds.out)


@law(
    "RMS-13",
    pinned=tuple(
        RMSNormCase(shape=(4,), channels=4096, dtype=dtype, seed=seed)
        for dtype in (F16, BF16)
        for seed in (1, 2)
    ),
    explore=lambda subject: cases(subject, channels=4096),
)
def law_results_of_16_bits_are_rounded_as_declared(
    subject: RMSNormSubject, case: RMSNormCase
) -> None:
    """RMS-13: a result of 16 bits is rounded once, after the gain, or twice if so declared."""
    _check(subject, case, f"results are not rounded {subject.profile.rounding}")
