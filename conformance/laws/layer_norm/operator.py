"""Laws of LNM for a LayerNorm that is judged on its own."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.layer_norm.causes import explaining
from attnspec.conformance.operators import regimes
from attnspec.conformance.operators.layer_norm.case import LayerNormCase, Rows, cases
from attnspec.conformance.operators.layer_norm.subject import AXES, NAMES, LayerNormSubject
from attnspec.spec import Layout

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (torch.float64, F32, F16, BF16)
PINNED = (
    LayerNormCase(shape=(1,), channels=1),
    LayerNormCase(),
    LayerNormCase(shape=(2, 3), channels=5, epsilon=0.5, seed=1),
    *(LayerNormCase(shape=(3,), channels=33, dtype=dtype, seed=2) for dtype in DTYPES),
    *(LayerNormCase(shape=(4,), channels=64, rows=rows, dtype=F32, seed=3) for rows in Rows),
    LayerNormCase(shape=(2,), channels=4096, dtype=F32, seed=4),
    LayerNormCase(shape=(2,), channels=768, dtype=BF16, rows=Rows.OUTLIER, seed=5),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _wide(subject: LayerNormSubject, **fixed: object) -> st.SearchStrategy[LayerNormCase]:
    return cases(subject, dtype=subject.widest, **fixed)


def _check(subject: LayerNormSubject, case: LayerNormCase, message: str) -> torch.Tensor:
    """Check a case against the definition, and name what a wrong result is instead."""
    operands = case.draw()
    with explaining(subject, (operands, case.epsilon)):
        return subject.judge(operands, case.epsilon, message)


@law("LNM-1", "LNM-2", pinned=PINNED, explore=cases)
def law_a_layer_norm_equals_the_definition(subject: LayerNormSubject, case: LayerNormCase) -> None:
    """LNM-1: each channel is its gain times (x − mean) / √(variance + ε), plus its bias."""
    _check(subject, case, "a LayerNorm differs from gain times normalized row plus bias")


@law("LNM-1", pinned=WIDE, explore=_wide)
def law_normalized_rows_have_mean_zero_and_biased_variance_one(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-1: with gain 1 and bias 0 a row has mean 0 and mean square v/(v + ε)."""
    x, weight, bias = case.draw()
    operands = (x, torch.ones_like(weight), torch.zeros_like(bias))
    expected = subject.expect(operands, case.epsilon)
    variance = x.double().var(-1, unbiased=False)
    bound = expected.bounds.out
    with explaining(subject, (operands, case.epsilon)):
        got = subject.call(operands, case.epsilon).double()
        check_close(
            got.mean(-1),
            torch.zeros_like(variance),
            bound.mean(-1),
            what="mean",
            message="a normalized row has a mean",
            axes=AXES[:-1],
        )
        check_close(
            got.square().mean(-1),
            variance / (variance + case.epsilon),
            (bound * (2 * expected.out.abs() + bound)).mean(-1),
            what="mean square",
            message="rows are not divided by the root of the biased variance plus epsilon",
            axes=AXES[:-1],
        )


@law("LNM-3", pinned=WIDE[:8], explore=lambda subject: _wide(subject, rows=Rows.NORMAL), cost=2.0)
def law_rows_with_a_constant_added_are_normalized_alike(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-3: adding one number to every channel of a row changes nothing."""
    _, weight, bias = case.draw()
    # sixteenths of about one, whose sums with the numbers below are exact in float32
    x = (case.but(rows=Rows.NORMAL, layout=Layout.CONTIGUOUS).draw()[0].double() * 16).round() / 16
    plain = (x.to(case.dtype), weight, bias)
    first = subject.expect(plain, case.epsilon)
    for added in (-3.0, 4096.0):
        moved = ((x + added).to(case.dtype), weight, bias)
        if not torch.equal(moved[0].double(), x + added):
            continue  # numbers of 16 bits are rounded
        second = subject.expect(moved, case.epsilon)
        with explaining(subject, (plain, case.epsilon), (moved, case.epsilon)):
            check_close(
                subject.call(moved, case.epsilon).double(),
                subject.call(plain, case.epsilon).double(),
                first.bounds.out + second.bounds.out,
                what="out of moved rows",
                message=(
                    f"adding {added:g} to every channel changes the result: is the variance the "
                    "mean of squares less the square of the mean?"
                ),
                axes=AXES,
            )


@law("LNM-4", pinned=WIDE, explore=_wide, cost=3.0)
def law_multiplied_rows_are_normalized_alike(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-4: a row times a power of two, and epsilon times its square, are normalized alike."""
    x, weight, bias = case.draw()
    plain, zero = (x, weight, torch.zeros_like(bias)), case.epsilon
    first = subject.expect(plain, zero)
    for factor in (-1.0, 0.125, 32.0):
        scaled, epsilon = (x * factor, weight, plain[2]), case.epsilon * factor**2
        if not torch.equal(scaled[0] / factor, x):
            continue  # numbers of 16 bits leave their range
        second = subject.expect(scaled, epsilon)
        with explaining(subject, (plain, case.epsilon), (scaled, epsilon)):
            check_close(
                subject.call(scaled, epsilon).double(),
                subject.call(plain, case.epsilon).double() * (1 if factor > 0 else -1),
                first.bounds.out + second.bounds.out,
                what="out of multiplied rows",
                message=f"a row times {factor:g}, epsilon times {factor**2:g}, differs",
                axes=AXES,
            )


@law(
    "LNM-5",
    pinned=(
        *(LayerNormCase(rows=Rows.SMALL, dtype=dtype) for dtype in (torch.float64, F32)),
        LayerNormCase(epsilon=0.5, channels=8, seed=1),
        LayerNormCase(rows=Rows.EQUAL, channels=3, seed=2),
        LayerNormCase(rows=Rows.EQUAL, channels=8, dtype=F16, seed=3),
    ),
    explore=lambda subject: _wide(subject, rows=Rows.SMALL),
)
def law_a_layer_norm_adds_epsilon_inside_the_root(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-5: epsilon is added to the variance, so that a row of equal numbers gives the bias."""
    _check(subject, case, "epsilon is not added to the variance, inside the root")


@law("LNM-6", pinned=PINNED[1:], explore=cases, cost=2.0)
def law_a_layer_norm_treats_rows_independently(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-6: a row of the output does not depend on other rows."""
    x, weight, bias = case.draw()
    rows = x.reshape(-1, case.channels)
    changed = rows * 8
    changed[::2] = rows[::2]
    both = [((each, weight, bias), case.epsilon) for each in (x, changed.view(x.shape))]
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
    "LNM-7",
    pinned=tuple(
        LayerNormCase(shape=(3,), channels=channels, dtype=dtype, rows=rows, seed=1)
        for dtype in (F16, BF16)
        for channels in (64, 4096)
        for rows in (Rows.NORMAL, Rows.OFFSET, Rows.LARGE)
    ),
    explore=lambda subject: cases(subject, rows=Rows.OFFSET),
)
def law_moments_are_computed_in_float32_or_wider(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-7: mean and variance of 16-bit rows are neither rounded to 16 bits nor overflow."""
    _check(subject, case, "mean or variance is rounded, or overflows, in the storage type")


@law(
    "LNM-8",
    pinned=tuple(
        LayerNormCase(shape=(4,), channels=4096, dtype=dtype, seed=seed)
        for dtype in (F16, BF16)
        for seed in (1, 2)
    ),
    explore=lambda subject: cases(subject, channels=4096),
)
def law_a_layer_norm_rounds_as_declared(subject: LayerNormSubject, case: LayerNormCase) -> None:
    """LNM-8: a result of 16 bits is rounded once, at the end, or before the gain if declared."""
    _check(subject, case, f"results are not rounded {subject.profile.rounding}")


@law(
    "LNM-9",
    pinned=tuple(
        LayerNormCase(shape=(2, 3), channels=8, layout=layout, dtype=F32, seed=1)
        for layout in (Layout.CONTIGUOUS, Layout.TRANSPOSED, Layout.SLICED)
    ),
    explore=cases,
)
def law_a_layer_norm_reads_rows_by_their_strides(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-9: rows in any strides are read, and neither rows nor gain nor bias are written to."""
    operands = case.draw()
    before = [each.clone() for each in operands]
    with explaining(subject, (operands, case.epsilon)):
        subject.judge(operands, case.epsilon, f"rows that lie {case.layout} are read wrongly")
    for name, now, then in zip(NAMES, operands, before, strict=True):
        if not torch.equal(now, then):
            raise Violation(f"{name} is written to")


@law(
    "LNM-10",
    pinned=(
        LayerNormCase(shape=(2, 3, 4), channels=8, rows=Rows.UNLIKE),
        LayerNormCase(shape=(2, 3, 4), channels=8, rows=Rows.UNLIKE, dtype=F32),
        LayerNormCase(shape=(1, 2, 5), channels=64, rows=Rows.UNLIKE, dtype=F32),
        LayerNormCase(shape=(), channels=8),
    ),
)
def law_a_layer_norm_takes_any_axes_before_the_channels(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-10: each index of the axes before the channels is a row."""
    _check(subject, case, f"with {len(case.shape)} axes before the channels, rows are wrong")


@law("LNM-11", pinned=tuple(LayerNormCase(shape=(3,), channels=8, dtype=each) for each in DTYPES))
def law_a_layer_norm_keeps_a_nan_in_its_row(subject: LayerNormSubject, case: LayerNormCase) -> None:
    """LNM-11: a NaN makes its whole row NaN, and no other row."""
    numbers, weight, bias = case.draw()
    x = numbers.clone()
    x[1, case.channels // 2] = torch.nan
    got = subject.call((x, weight, bias), case.epsilon)
    with explaining(subject, ((numbers, weight, bias), case.epsilon)):
        if not bool(got[1].isnan().all()):
            raise Violation("a row with a NaN has numbers")
        if bool(got[::2].isnan().any()):
            raise Violation("a NaN spreads to other rows")


@law(
    "LNM-12",
    pinned=(
        *(case.but(backward=True) for case in PINNED),
        *(
            LayerNormCase(shape=(3,), channels=8, dtype=each, rows=Rows.OFFSET, backward=True)
            for each in (F16, BF16)
        ),
    ),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_gradients_of_a_layer_norm_equal_the_definition(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-12: the gradients of rows, gain and bias are those of the definition."""
    _check_gradients(subject, case, case.draw_gradient(), "differs from that of the definition")


@law(
    "LNM-13",
    pinned=tuple(
        LayerNormCase(shape=(rows,), channels=3, dtype=dtype, backward=True, seed=1)
        for rows, dtype in ((600, BF16), (5000, F16), (5000, F32))
    ),
)
def law_gradients_of_gain_and_bias_are_summed_as_declared(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-13: sums over many rows do not stay behind, unless they are declared to be short."""
    # ones, whose sum in 16 bits ends where one more changes nothing
    ones = torch.ones_like(case.draw_gradient())
    _check_gradients(subject, case, ones, "is not the sum over all rows: is it kept in 16 bits?")


def _cases_of_design(subject: LayerNormSubject, seed: int) -> tuple[LayerNormCase, ...]:
    """Return cases in which any two regimes meet, and note what they are to cover."""
    claimed = subject.implementation
    chosen = regimes.design(tuple(claimed.dtypes), has_gradients=claimed.has_gradients)
    regimes.note_design(chosen)
    return tuple(LayerNormCase(**case) for case in chosen.cases)


@law("LNM-14", pinned=regimes.pinned(LayerNormCase, DTYPES), wide=_cases_of_design)
def law_a_layer_norm_is_right_in_every_two_regimes(
    subject: LayerNormSubject, case: LayerNormCase
) -> None:
    """LNM-14: in any two classes of sizes, strides, types and passes, results are in bounds."""
    x, *others = case.draw()
    expected = subject.expect((x, others[0], others[1]), case.epsilon)
    _check(subject, case, "a LayerNorm of this size, layout or type differs from the definition")
    if case.backward:
        _check_gradients(subject, case, case.draw_gradient(), "differs from the definition")
    regimes.note_call(x.requires_grad_(case.backward), expected.out, expected.bounds.out)


def _check_gradients(
    subject: LayerNormSubject, case: LayerNormCase, grad_out: torch.Tensor, of_sums: str
) -> None:
    operands = case.draw()
    expected = subject.expect(operands, case.epsilon, grad_out)
    with explaining(subject, (operands, case.epsilon)):
        _, got = subject.gradients(operands, case.epsilon, grad_out)
        for name, value in expected.grads.items():
            check_close(
                got[name],
                value,
                getattr(expected.bounds, name),
                what=f"gradient of {name}",
                message=f"the gradient of {name} "
                + ("differs from that of the definition" if name == "input" else of_sums),
                axes=AXES,
            )
