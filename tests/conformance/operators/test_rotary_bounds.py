"""The bound of rotary positions: correct computations stay inside, wrong ones do not."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.mutants.bases.rotary import correct
from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.rotary.angles import (
    exact_frequencies,
    roundoff_of_angles,
    turns,
)
from attnspec.conformance.operators.rotary.bounds import join, split, turned
from attnspec.conformance.operators.rotary.case import SCALINGS, RotaryCase, cases
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.reference.rotary import scaled_frequencies
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import (
    AnglePrecision,
    Pairing,
    RotaryProfile,
    RotaryScaling,
    ScalingKind,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ANY = RotarySubject(implementation=correct())
PLACES = [(d, base) for d in (4, 8, 16, 64, 80, 128) for base in (1e4, 5e5, 1e6)]


def theta_of(case, length, dtype, *, as_exponential):
    """Frequencies in one type, by a power or by an exponential."""
    d, base = case.turned, case.base
    scaling = case.scaling
    if scaling is not None and scaling.kind is ScalingKind.DYNAMIC:
        longest = torch.tensor(max(length, scaling.original_length)).to(dtype)
        ratio = scaling.factor * longest / scaling.original_length - (scaling.factor - 1)
        base = base * ratio ** (d / (d - 2))
    exponent = torch.arange(0, d, 2, dtype=dtype) / d
    base = torch.as_tensor(base, dtype=dtype)
    theta = torch.exp(-exponent * base.log()) if as_exponential else 1 / base**exponent
    if scaling is None or scaling.kind is ScalingKind.DYNAMIC:
        return theta
    if scaling.kind is ScalingKind.LINEAR:
        return theta / scaling.factor
    if scaling.kind is ScalingKind.LLAMA3:
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        wavelength = 2 * math.pi / theta
        kept = (scaling.original_length / wavelength - low) / (high - low)
        kept = kept.clamp(0, 1)
    else:

        def pair(count):
            ratio = scaling.original_length / (count * 2 * math.pi)
            return d * math.log(ratio) / (2 * math.log(case.base))

        low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        kept = 1 - ((torch.arange(d // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)
    return theta / scaling.factor * (1 - kept) + theta * kept


def separate(x, cosine, sine, pairing):
    """Each product rounded, in the type of x."""
    a, b = split(x, 2 * cosine.shape[-1], pairing)
    return join(a * cosine - b * sine, a * sine + b * cosine, pairing)


def fused(x, cosine, sine, pairing):
    """Each second product added without a rounding of its own."""
    a, b = split(x, 2 * cosine.shape[-1], pairing)
    return join(torch.addcmul(a * cosine, b, -sine), torch.addcmul(b * cosine, a, sine), pairing)


def as_complex(x, cosine, sine, pairing):
    a, b = split(x, 2 * cosine.shape[-1], pairing)
    product = torch.complex(a, b) * torch.complex(cosine, sine).expand_as(torch.complex(a, b))
    return join(product.real, product.imag, pairing)


WAYS = (separate, fused, as_complex)


def computed(x, case, profile, way, *, as_exponential):
    """Compute a case in the types of a profile, as libraries do."""
    if profile.float64_precision.computed_in(x.dtype) is not x.dtype:
        wide = replace(profile, float64_precision=Float64Precision.FLOAT64)
        narrow = case.but(dtype=torch.float32)
        return computed(x.float(), narrow, wide, way, as_exponential=as_exponential).to(x.dtype)
    positions = case.positions()
    is_wide = case.dtype == torch.float64 and profile.angles is AnglePrecision.WIDEST
    dtype = torch.float64 if is_wide else torch.float32
    theta = theta_of(case, int(positions.max()) + 1, dtype, as_exponential=as_exponential)
    angles = positions[:, None, :, None].to(dtype) * theta
    magnitude = 1.0 if case.scaling is None else case.scaling.magnitude
    cosine, sine = angles.cos() * magnitude, angles.sin() * magnitude
    working = x
    if profile.working is Working.STORAGE:
        cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    elif case.dtype != torch.float64:
        working = x.float()
    else:
        cosine, sine = cosine.double(), sine.double()
    out = way(working, cosine, sine, profile.pairing).to(x.dtype)
    return torch.cat([out, x[..., case.turned :]], -1)


def allowed(x, case, profile, **options):
    positions = case.positions()
    found = exact_frequencies(case.turned, case.base, case.scaling, int(positions.max()) + 1)
    by = turns(positions, found, roundoff_of_angles(x.dtype, profile))
    computed = profile.float64_precision.computed_in(x.dtype)
    narrowed = computed is not x.dtype
    precision = Precision.of(computed)
    return turned(
        x, by, profile.pairing, precision, profile.working, is_narrowed=narrowed, **options
    )


def fraction(got, bound):
    distance = (got.double() - bound.value).abs()
    return float(torch.where(distance == 0, 0.0, distance / bound.bound).max())


profiles = st.builds(
    RotaryProfile,
    pairing=st.sampled_from(Pairing),
    angles=st.sampled_from(AnglePrecision),
    working=st.sampled_from(Working),
    float64_precision=st.sampled_from(Float64Precision),
)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60)
@given(case=cases(ANY), profile=profiles, as_exponential=st.booleans())
def test_correct_computations_stay_inside(way, case, profile, as_exponential):
    if way is as_complex and case.dtype.itemsize == 2 and profile.working is Working.STORAGE:
        return  # there are no complex numbers of 16 bits
    x = case.draw()
    got = computed(x, case, profile, way, as_exponential=as_exponential)
    assert fraction(got, allowed(x, case, profile)) <= 1


def test_a_channel_that_is_not_turned_is_rounded_with_the_others():
    case = RotaryCase(heads=2, length=5, d_head=8, rotary_dim=4, start=40, dtype=torch.float64)
    x = case.draw()
    profile = RotaryProfile(float64_precision=Float64Precision.FLOAT32)
    got = computed(x, case, profile, separate, as_exponential=False)
    assert fraction(got, allowed(x, case, profile)) <= 1
    assert fraction(got, allowed(x, case, RotaryProfile())) > 1
    got[0, 0, 0, 7] += 1e-6 * got[0, 0, 0, 7].abs()
    assert fraction(got, allowed(x, case, profile)) > 1


@settings(max_examples=60)
@given(case=cases(ANY), profile=profiles)
def test_gradients_of_correct_computations_stay_inside(case, profile):
    x, grad_out = case.draw().requires_grad_(), case.draw_gradient()
    got = computed(x, case, profile, separate, as_exponential=False)
    (gradient,) = torch.autograd.grad(got, x, grad_out)
    assert fraction(gradient, allowed(grad_out, case, profile, back=True)) <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize("precision", Float64Precision)
def test_one_wrong_element_is_outside(pairing, dtype, precision):
    profile = RotaryProfile(pairing=pairing, float64_precision=precision)
    case = RotaryCase(heads=2, length=5, d_head=8, start=40, dtype=dtype, seed=7)
    x = case.draw()
    bound = allowed(x, case, profile)
    got = computed(x, case, profile, separate, as_exponential=False)
    assert fraction(got, bound) <= 1
    for place in ((0, 0, 0, 0), (0, 1, 3, 5), (0, 1, 4, 7)):
        wrong = got.clone()
        step = 4 * torch.finfo(precision.computed_in(dtype)).eps * (1 + got.double().abs().max())
        is_wide = precision.computed_in(dtype) == torch.float64
        wrong[place] += 100 * step if is_wide else 30 * step
        assert fraction(wrong, bound) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bound_is_evidence(dtype):
    """At small positions its largest part is a small share of the largest result."""
    case = RotaryCase(heads=2, length=9, d_head=16, start=20, dtype=dtype)
    bound = allowed(case.draw(), case, RotaryProfile())
    share = float(bound.bound.max() / bound.value.abs().max())
    limit = {torch.float64: 1e-13, torch.float32: 1e-4, torch.bfloat16: 8e-3, torch.float16: 1e-3}
    assert share < limit[dtype]


@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_exact_angles_are_those_of_mpmath(scaling):
    for d, base in PLACES[2:8]:
        found = exact_frequencies(d, base, scaling, 100)
        plain = exact_frequencies(d, base, None, 100)
        with mpmath.workdps(40):
            for pair, theta in enumerate(plain.exact):
                exact = mpmath.mpf(base) ** (-mpmath.mpf(2 * pair) / d)
                assert abs(mpmath.mpf(str(theta)) / exact - 1) < 1e-35
            positions = torch.tensor([[0, 1, 255, 999_999]])
            by = turns(positions, found, 2.0**-53)
            for token, position in enumerate(positions[0].tolist()):
                for pair, theta in enumerate(found.exact):
                    angle = position * mpmath.mpf(str(theta))
                    cosine = float(mpmath.cos(angle)) * found.magnitude
                    sine = float(mpmath.sin(angle)) * found.magnitude
                    assert abs(float(by.cosine[0, token, pair]) - cosine) < 1e-15
                    assert abs(float(by.sine[0, token, pair]) - sine) < 1e-15


@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
@pytest.mark.parametrize(("d", "base"), PLACES)
def test_frequencies_of_the_reference_are_the_exact_ones(d, base, scaling):
    for length in (5, 100, 10_000):
        found = exact_frequencies(d, base, scaling, length)
        got = scaled_frequencies(d, base, scaling, length)
        for one, exact, units in zip(got.tolist(), found.exact, found.error, strict=True):
            assert abs(one / float(exact) - 1) <= 2.0**-53 * (units + 2)


@pytest.mark.parametrize(("d", "base"), PLACES)
def test_no_end_of_a_ramp_is_close_to_a_whole_number(d, base):
    """There, rounding a number down in float64 would differ from the exact result."""
    for scaling in SCALINGS:
        if scaling.kind is ScalingKind.YARN and scaling.truncate:
            for count in (scaling.beta_fast, scaling.beta_slow):
                ratio = scaling.original_length / (2 * math.pi * count)
                end = d * math.log(ratio) / (2 * math.log(base))
                assert abs(end - round(end)) > 1e-6


def test_the_error_of_an_angle_grows_with_the_position_and_ends_at_two():
    found = exact_frequencies(64, 10_000.0, None, 0)
    positions = torch.tensor([[0, 1, 10, 100, 1000, 10**6, 10**9]])
    error = turns(positions, found, 2.0**-24).error[0, :, 1]
    assert bool((error.diff() >= 0).all())
    assert float(error[-1]) == 2
    assert float(error[0]) < 1e-6


def test_a_factor_of_cosine_and_sine_is_part_of_the_bound():
    scaling = RotaryScaling(kind=ScalingKind.YARN, factor=4.0, original_length=4096)
    positions = torch.tensor([[3]])
    large = exact_frequencies(16, 10_000.0, scaling, 4)
    by = turns(positions, large, 2.0**-24)
    assert large.magnitude == pytest.approx(1.1386, abs=1e-4)
    assert float((by.cosine**2 + by.sine**2).sqrt()[0, 0, 0]) == pytest.approx(large.magnitude)
