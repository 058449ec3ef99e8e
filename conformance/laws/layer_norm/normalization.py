"""Laws of LNM: layer normalization, read from the final LayerNorm of a model."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.case import ModelCase, model_cases, normal
from attnspec.conformance.models.oracle import check_within
from attnspec.conformance.models.readout import PINNED, coarse_rows, make_readout, normalized
from attnspec.spec import ModelImplementation


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


@law("LNM-1", pinned=PINNED, explore=_cases)
def law_layer_norm_has_zero_mean_and_biased_unit_variance(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """LNM-1: before gain and bias a row has mean 0 and mean square v/(v + ε), v its variance."""
    readout = make_readout(coarse_rows(case), case)
    rows, tolerance = readout.read(subject).double(), readout.tolerance
    check_within(
        rows.mean(-1),
        torch.zeros(rows.shape[:-1], dtype=torch.float64),
        tolerance.mean(-1),
        what="mean of a row",
        message="LayerNorm leaves a mean",
    )
    variance = readout.stream.var(-1, unbiased=False)
    check_within(
        rows.square().mean(-1),
        variance / (variance + case.layer_norm_epsilon),
        (tolerance * (2 * rows.abs() + tolerance)).mean(-1),
        what="mean square of a row",
        message="LayerNorm does not divide by the root of the biased variance plus epsilon",
    )


@law("LNM-2", pinned=PINNED, explore=_cases, cost=2.0)
def law_layer_norm_applies_gain_then_bias(subject: ModelImplementation, case: ModelCase) -> None:
    """LNM-2: with gain g and bias b a row is g·y + b, y being the row with gain 1 and bias 0."""
    plain = make_readout(coarse_rows(case), case)
    width = plain.config.n_embd
    gain = (normal(case.seed, "gain", width) * 16).round() / 16
    bias = (normal(case.seed, "bias", width) * 16).round() / 16
    affine = plain.but(ln_f__weight=gain, ln_f__bias=bias)
    check_within(
        affine.read(subject).double(),
        gain * plain.read(subject).double() + bias,
        affine.tolerance + gain.abs() * plain.tolerance,
        what="final LayerNorm",
        message="gain and bias do not act channel by channel after normalizing",
    )


@law("LNM-3", pinned=PINNED, explore=_cases, cost=3.0)
def law_layer_norm_ignores_a_shift_of_the_row(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """LNM-3: adding one number to every channel of a row changes nothing."""
    rows = coarse_rows(case)
    plain = make_readout(rows, case)
    first = plain.read(subject).double()
    for shift in (-3.0, 64.0):
        moved = make_readout(rows + shift, case)
        check_within(
            moved.read(subject).double(),
            first,
            moved.tolerance + plain.tolerance,
            what="final LayerNorm",
            message=f"adding {shift:g} to every channel changes the normalized row",
        )


@law("LNM-4", pinned=PINNED, explore=_cases, cost=4.0)
def law_layer_norm_scales_with_its_row(subject: ModelImplementation, case: ModelCase) -> None:
    """LNM-4: multiplying a row by 2ᵏ and epsilon by 4ᵏ changes nothing."""
    rows = coarse_rows(case)
    plain = make_readout(rows, case)
    first = plain.read(subject).double()
    for scale in (-4.0, 0.125, 32.0, -1.0):
        epsilon = case.layer_norm_epsilon * scale**2
        scaled = make_readout(rows * scale, case, layer_norm_epsilon=epsilon)
        if scale != -1 and subject.supports(scaled.config) is not None:
            continue  # many builds refuse other epsilons: a mirrored row needs none
        check_within(
            scaled.read(subject).double(),
            first * (1 if scale > 0 else -1),
            scaled.tolerance + plain.tolerance,
            what="final LayerNorm",
            message=f"a row times {scale:g}, epsilon times {scale**2:g}, is not normalized alike",
        )


@law("LNM-5", pinned=PINNED, explore=_cases, cost=2.0)
def law_epsilon_is_inside_the_root(subject: ModelImplementation, case: ModelCase) -> None:
    """LNM-5: a row whose variance is small beside epsilon is divided by √(variance + ε)."""
    # powers of two are exact in any dtype; the last row has no variance at all
    size = 2.0 ** torch.tensor([-3.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    shape = coarse_rows(case.but(vocab_size=4))
    rows = torch.cat([shape * size[:, None], torch.ones_like(shape[:1])])
    tokens = torch.arange(5)[None]
    large, small, usual = (
        make_readout(rows * factor, case, input_ids=tokens, layer_norm_epsilon=epsilon)
        for factor, epsilon in ((1.0, 1.0), (2.0**-8, 2.0**-16), (2.0**-8, case.layer_norm_epsilon))
    )
    claimed = [each for each in (large, small) if subject.supports(each.config) is None]
    for readout in claimed or [usual]:
        check_within(
            readout.read(subject),
            normalized(readout.stream, readout.config.layer_norm_epsilon),
            readout.tolerance,
            what="final LayerNorm",
            message=f"epsilon {readout.config.layer_norm_epsilon:g} is not added to the variance",
        )


@law("LNM-6", pinned=PINNED[2:], explore=_cases, cost=2.0)
def law_layer_norm_treats_rows_independently(subject: ModelImplementation, case: ModelCase) -> None:
    """LNM-6: a normalized row does not depend on rows at other positions or in the batch."""
    case = case.but(batch=2, length=3, n_positions=max(case.n_positions, 3))
    rows = coarse_rows(case.but(vocab_size=6))
    rows[3:] *= 32
    before = torch.tensor([[0, 1, 2], [1, 2, 0]])
    unchanged = torch.tensor([[True, False, True], [False, True, False]])
    after = torch.where(unchanged, before, torch.tensor([[3, 4, 5], [5, 4, 3]]))
    first, second = (make_readout(rows, case, input_ids=input_ids) for input_ids in (before, after))
    tolerance = first.tolerance + second.tolerance
    check_within(
        second.read(subject)[unchanged].double(),
        first.read(subject)[unchanged].double(),
        tolerance[unchanged],
        what="final LayerNorm of the unchanged rows",
        message="other rows change what LayerNorm makes of a row",
    )
