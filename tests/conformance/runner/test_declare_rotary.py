"""Bare rotary embeddings: profile and features by calls, and the first cause of wrong ones."""

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.mutants.bases.rotary import PlainRotary
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.causes import causes_of
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator, profile_in_words
from attnspec.spec.operator import Working
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rotary import (
    AnglePrecision,
    Pairing,
    RotaryImplementation,
    RotaryProfile,
    ScalingKind,
)

LAWS = [law for law in laws.load().values() if law.judges == "rotary"]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def half(x, positions):
    """As in transformers: angles of float32, cosine and sine in the type of x."""
    pairs = x.shape[-1] // 2
    theta = 10_000.0 ** -(torch.arange(pairs) / pairs)
    angles = positions[:, None, :, None] * theta
    a, b = x[..., :pairs], x[..., pairs:]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


def interleaved(x, positions, *, rotary_dim=None, base=10_000.0):
    """As in Meta's Llama, with complex numbers, in float64."""
    width = rotary_dim or x.shape[-1]
    theta = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[:, None, :, None] * theta
    pairs = torch.complex(x[..., 0:width:2].double(), x[..., 1:width:2].double())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., width:]], -1)


def declared(function, **claims):
    return declare_operator("it", function, Claims(operator="rotary", **claims))


@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize("angles", AnglePrecision)
@pytest.mark.parametrize("working", Working)
def test_calls_find_the_profile(pairing, angles, working):
    class Function(PlainRotary):
        profile = RotaryProfile(pairing=pairing, angles=angles, working=working)

        def powers(self, width, base, dtype):
            wide = torch.float64 if angles is AnglePrecision.WIDEST else torch.float32
            return super().powers(width, base, min(dtype, wide, key=lambda each: each.itemsize))

    found = declared(Function())
    assert found.profile == Function.profile
    assert found.dtypes == DTYPES
    assert found.features == RotaryImplementation.FEATURES


def test_parameters_and_calls_find_the_features():
    assert declared(half).features == set()
    assert declared(interleaved).features == {"partial", "base"}

    def with_one_scaling(x, positions, *, scaling=None):
        if scaling is not None and scaling["rope_type"] != "linear":
            raise ValueError("linear alone")
        return half(x, positions)

    assert declared(with_one_scaling).features == {"linear"}


def test_the_profile_is_said_in_words():
    words = "pairing=half, angles=float32, working=storage, float64_precision=float64"
    assert profile_in_words(declared(half)) == words
    words = "pairing=interleaved, angles=widest, working=float32, float64_precision=float64"
    assert profile_in_words(declared(interleaved)) == words


def in_float32(x, positions, *, rotary_dim=None):
    d = rotary_dim or x.shape[-1]
    y = half(x[..., :d].float(), positions)
    return torch.cat([y, x[..., d:].float()], -1).to(x.dtype)


def in_float32_and_doubled(x, positions):
    return in_float32(x, 2 * positions)


def test_a_function_that_computes_float64_in_float32_is_declared_so_and_conforms():
    found = declared(in_float32)
    assert found.profile.float64_precision is Float64Precision.FLOAT32
    for law in LAWS:
        record = check(law, subject_of_operator(found), None)
        is_claimed = law.needs <= found.features
        assert record.outcome is (Outcome.PASSED if is_claimed else Outcome.NOT_CLAIMED), record


def test_wrong_angles_do_not_hide_that_float64_is_computed_in_float32():
    assert declared(in_float32_and_doubled).profile.float64_precision is Float64Precision.FLOAT32


def test_answers_that_are_given_are_held():
    claims = Claims.read(profile=["pairing=half"], operator="rotary")
    assert declare_operator("it", interleaved, claims).profile.pairing is Pairing.HALF


def test_a_type_in_which_a_call_raises_is_not_claimed():
    def of_float32(x, positions):
        if x.dtype != torch.float32:
            raise TypeError("float32 alone")
        return half(x, positions)

    assert declared(of_float32).dtypes == (torch.float32,)


def test_a_function_that_raises_is_declared_and_judged():
    def broken(x, positions):
        raise RuntimeError("no")

    assert declared(broken).profile == RotaryProfile()
    record = check(LAWS[0], subject_of_operator(declared(broken)), None)
    assert record.outcome is Outcome.ERRORED


@pytest.mark.parametrize("function", [half, interleaved])
def test_correct_functions_conform(function):
    found = declared(function)
    for law in LAWS:
        record = check(law, subject_of_operator(found), None)
        is_claimed = law.needs <= found.features
        expected = Outcome.PASSED if is_claimed else Outcome.NOT_CLAIMED
        assert record.outcome is expected, record.message


def in_the_type_of_x(x, positions):
    pairs = x.shape[-1] // 2
    theta = (10_000.0 ** -(torch.arange(pairs) / pairs)).to(x.dtype)
    angles = positions[:, None, :, None].to(x.dtype) * theta
    a, b = x[..., :pairs], x[..., pairs:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def two_angles(x, positions):
    theta = 10_000.0 ** -(torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angles = positions[:, None, :, None] * torch.cat([theta, theta])
    other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return (x * angles.cos() + other * angles.sin()).to(x.dtype)


def twice_behind_a_cache(x, positions):
    out = half(x, positions)
    return half(out, positions) if x.shape[2] == 1 else out


def in_place(x, positions):
    return x.copy_(half(x, positions))


MISTAKES = {
    "angles have the accuracy of bfloat16, in which positions 256 and 257": in_the_type_of_x,
    "the two channels of a pair are turned by different angles": two_angles,
    "tokens are turned twice": twice_behind_a_cache,
    "the call overwrites x, so that a second call turns it twice": in_place,
    "positions are ignored: tokens are turned by their place in the call": (
        lambda x, positions: half(x, torch.arange(x.shape[2]).expand_as(positions))
    ),
    "positions are one too large": lambda x, positions: interleaved(x, positions + 1),
    "pairs are turned the other way: the sine has the wrong sign": (
        lambda x, positions: half(x, -positions)
    ),
    "the base is 10000, not": lambda x, positions, *, base=1e4: interleaved(x, positions),
    "the scaling linear is forgotten": lambda x, positions, *, scaling=None: (
        half(x, positions) if scaling is None or scaling["rope_type"] == "linear" else None
    ),
    "the whole head is turned": lambda x, positions, *, rotary_dim=None: half(x, positions),
    "every sequence is turned by the positions of the first": (
        lambda x, positions: half(x, positions[:1].expand_as(positions))
    ),
    "nothing is turned": lambda x, positions: x.clone(),
}


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize("cause", MISTAKES)
def test_the_first_cause_of_a_classic_mistake_is_true(cause):
    found = declared(MISTAKES[cause])
    records = [check(law, subject_of_operator(found), None) for law in LAWS]
    assert causes_of(records)[0].explanation.startswith(cause)


def test_pairs_other_than_the_given_ones_are_named():
    claims = Claims.read(profile=["pairing=half"], operator="rotary")
    found = declare_operator("it", interleaved, claims)
    records = [check(law, subject_of_operator(found), None) for law in LAWS]
    first = causes_of(records)[0].explanation
    assert first == "pairs are interleaved: the profile says half"


def test_the_features_are_keywords_and_scalings():
    assert {"partial", "base"} | set(ScalingKind) == RotaryImplementation.FEATURES
